// All about one run: state and buttons, progress, evaluations, films, data, time, settings, the end of its log.
import { Chart, short, swatch } from "/static/chart.js";

export function el(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

export function seconds(s) {
  if (s === null || s === undefined || !isFinite(s)) return "-";
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return `${(s / 3600).toFixed(1)} h`;
}

// Let a box hold these nodes and no others. Those that are in it already are not moved: a film plays on, focus stays.
function fit(box, nodes) {
  const wanted = new Set(nodes);
  for (const old of [...box.childNodes]) if (!wanted.has(old)) old.remove();
  nodes.forEach((n, i) => { if (box.childNodes[i] !== n) box.insertBefore(n, box.childNodes[i] || null); });
}

const ACTIVE = ["running", "starting"], RESUMABLE = ["stopped", "lost", "failed", "held"];

export class Detail {
  constructor(box, run, ask, close, changed) {
    this.box = box; this.run = run; this.id = run.id; this.ask = ask; this.changed = changed; this.to = null;
    const back = el("button", "", "back");
    back.addEventListener("click", close);
    this.state = el("p", "state");
    this.said = el("p", "hint");
    this.said.setAttribute("role", "status");
    this.stop = el("button", "stop", "stop");
    this.resume = el("button", "resume", "resume");
    this.stop.addEventListener("click", () => this.act("stop"));
    this.resume.addEventListener("click", () => this.act("resume"));
    this.body = el("div");
    this.parts = PARTS.map(([of, make]) => ({ of, make, shown: "", kept: new Map(), box: el("div") }));
    this.body.append(...this.parts.map((p) => p.box));
    this.log = el("pre");
    this.log.setAttribute("aria-label", "log");
    this.log.tabIndex = 0;
    box.replaceChildren(el("div", "bar", back, this.stop, this.resume), el("h2", "title", run.name), this.state, this.said, this.body, el("h2", "", "log"), this.log);
    this.show(run);
    this.poll().catch((e) => { this.said.textContent = e.message; });
  }

  show(run) {
    this.run = run;
    this.state.replaceChildren(el("span", run.state, run.state), ` · ${short(run.step)} of ${short(run.steps)} steps · ${run.steps_per_s ? short(Math.round(run.steps_per_s)) + " steps/s · " : ""}ETA ${seconds(run.eta_s)}${run.slot === null ? "" : ` · slot ${run.slot}`}${run.memory_bytes ? ` · ${Math.round(run.memory_bytes / 1e6)} MB` : ""}${run.error ? ` · ${run.error}` : ""}`);
    this.stop.disabled = !ACTIVE.includes(run.state);
    this.resume.disabled = !RESUMABLE.includes(run.state);
  }

  async act(what) {
    this.stop.disabled = this.resume.disabled = true;
    try {
      this.said.textContent = (await this.ask(`/api/${what}/${this.id}`, { method: "POST" })).said;
      await this.changed();
    } catch (e) { this.said.textContent = e.message; }
  }

  async poll(run) {
    if (run) this.show(run);
    await Promise.all([this.load(), this.follow()]);
  }

  async follow() {
    const got = await this.ask(`/api/log/${this.id}${this.to === null ? "" : `?from=${this.to}`}`);
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 20;
    if (this.to === null || got.from !== this.to) this.log.textContent = got.text;
    else if (got.text) this.log.textContent = (this.log.textContent + got.text).slice(-200000);
    this.to = got.to;
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  // Only what changed since is made anew. A run that cannot be read now may be at the next look.
  async load() {
    let about;
    try {
      about = await this.ask(`/api/run/${this.id}?known=${this.version || ""}`);
      if (this.trouble && this.said.textContent === this.trouble) this.said.textContent = "";
    } catch (e) { this.said.textContent = this.trouble = e.message; }
    if (!about) return;
    this.version = about.version;
    for (const part of this.parts) {
      const now = JSON.stringify(part.of(about));
      if (now === part.shown) continue;
      part.shown = now;
      const before = part.kept;
      part.kept = new Map();
      const keep = (name, make) => { part.kept.set(name, before.get(name) || make()); return part.kept.get(name); };
      fit(part.box, part.make(about, keep, this.id));
    }
  }
}

function table(head, rows, name = "") {
  return el("div", "wide", el("table", name, el("thead", "", el("tr", "", ...head.map((h) => el("th", "", h)))),
    el("tbody", "", ...rows.map((r) => el("tr", "", ...r.map((c, i) => el("td", i ? "" : "key", String(c))))))));
}

function evaluations(about) {
  if (!about.evaluations.length) return [];
  const rows = [];
  const row = (name, e, r) => rows.push([name, short(e.step), r.episodes, r.successes === null ? "-" : `${r.successes}/${r.episodes}`, `${short(r.mean_return)} (${short(r.return_low)} to ${short(r.return_high)})`]);
  for (const e of about.evaluations) {
    row(`${e.split}${Object.keys(e.special).length ? " " + JSON.stringify(e.special) : ""}`, e, e.whole);
    for (const [task, r] of Object.entries(e.tasks)) row(`  ${task}`, e, r);
  }
  return [el("h2", "", "evaluations"), table(["episodes of", "checkpoint", "episodes", "success", "return"], rows, "evaluations")];
}

function media(about, keep, id) {
  if (!about.media.length) return [];
  const box = keep("", () => el("div", "media"));
  fit(box, about.media.map((m) => keep(`${m.name} ${m.unix_s} ${m.bytes}`, () => figure(m, id))));
  return [keep("title", () => el("h2", "", "films and pictures")), box];
}

function figure(m, id) {
  const path = `/media/${id}/${m.name.split("/").map(encodeURIComponent).join("/")}?at=${m.unix_s}`;  // or an older one of that name is shown
  const shown = document.createElement(m.kind === "video" ? "video" : "img");
  shown.src = path;
  if (m.kind === "video") { shown.controls = true; shown.loop = true; shown.muted = true; shown.preload = "metadata"; } else { shown.className = "picture"; shown.alt = m.name; shown.loading = "lazy"; }
  shown.setAttribute("aria-label", m.name);
  return el("figure", "", shown, el("figcaption", "", `${m.name} · ${short(m.bytes / 1e3)} kB`));
}

function datasets(about, keep, id) {
  return about.datasets.flatMap(({ name, unix_s }) => {
    const nodes = keep(name, () => {
      const sheet = el("img", "picture sheet"), none = el("p", "hint", "no pictures to show");
      sheet.alt = `contact sheet of ${name}: a row for each of its newest episodes`;
      none.hidden = true;
      for (const event of ["load", "error"]) sheet.addEventListener(event, () => { sheet.hidden = event === "error"; none.hidden = !sheet.hidden; });
      return [el("h2", "", name), sheet, none];
    });
    nodes[1].src = `/sheet/${id}/${name}?at=${unix_s}`;  // the old one stands until the new one is there
    return nodes;
  });
}

function chartOf(keep, title, lines, { xText = short, fromZero = false } = {}) {
  const chart = keep(title, () => new Chart(el("div"), title, () => {}));
  if (lines.length > 1) chart.box.firstChild.replaceChildren(title, ...lines.flatMap((l, i) => [" ", swatch(i), l.name]));
  chart.xText = xText; chart.fromZero = fromZero;
  chart.box.classList.add("small");
  chart.set(lines.map((l, i) => ({ colour: i, ...l })), false);
  return chart.box;
}

const SOURCES = { eval: "evaluations", train: "episodes of training" };

function progress(about, keep) {
  const boxes = Object.entries(about.progress).map(([measure, sources]) => chartOf(keep, measure,
    Object.entries(sources).map(([source, { step, value }]) => ({ name: SOURCES[source], x: step, y: value }))));
  return boxes.length ? [keep("heading", () => el("h2", "", "progress")), ...boxes] : [];
}

function timeline(about, keep) {
  if (!about.timeline) return [];
  const { step, shares } = about.timeline, sums = step.map(() => 0);
  const lines = Object.entries(shares).map(([task, share]) => {
    const low = sums.slice(), high = share.map((s, i) => (sums[i] += s));
    return { name: task, x: step, y: high, low, high };
  });
  return [el("h2", "", "which task acted (share of steps, one on another)"), chartOf(keep, "tasks", lines), table(["task", "last share"], lines.map((l) => [l.name, short(l.high.at(-1) - l.low.at(-1))]))];
}

function latency(about, keep) {
  if (!about.latency) return [];
  const edges = about.latency.edges_ms.map((ms, i, all) => Math.log10(ms || all[i + 1] / 2));  // the first bin begins at zero
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);
  const boxes = Object.entries(about.latency.histograms).map(([name, counts]) => {
    const first = counts.findIndex(Boolean), last = counts.findLastIndex(Boolean), x = [], y = [];
    counts.slice(first, last + 1).forEach((n, i) => { x.push(edges[first + i], edges[first + i + 1]); y.push(n, n); });
    return chartOf(keep, `${name}: ticks by milliseconds`, [{ name, x, y, low: y.map(() => 0), high: y }], { xText: (v) => short(+(10 ** v).toPrecision(1)) });
  });
  const ticks = Math.max(...Object.values(about.latency.histograms).map(sum));
  const media = keep("", () => el("div", "media"));
  fit(media, boxes);
  return [el("h2", "", `real-time latency of ${ticks} ticks`), media];
}

const RESOURCES = [
  ["steps and updates per second", ["steps_per_s", "updates_per_s"]],
  ["cores used", ["cores_used"]],
  ["memory in MB", ["memory_mb"]],
  ["memory of the device in MB", ["device_memory_mb", "device_memory_max_mb"]],
];

function resources(about, keep) {
  if (!about.resources.length) return [];
  const charts = RESOURCES.map(([title, keys]) => {
    const lines = keys.map((key) => ({ name: key, rows: about.resources.filter((r) => key in r) })).filter((l) => l.rows.length)
      .map((l) => ({ name: l.name, x: l.rows.map((r) => r.step), y: l.rows.map((r) => r[l.name]) }));
    return lines.length ? chartOf(keep, title, lines, { fromZero: true }) : null;
  });
  const parts = Object.entries(about.seconds).filter(([name]) => name !== "wall"), total = about.seconds.wall || 1;
  const rows = parts.map(([name, s]) => [name, seconds(s), `${Math.round((100 * s) / total)} %`]);
  return [el("h2", "", "time and resources"), ...charts.filter(Boolean), ...(rows.length ? [table(["section", "time", "share"], rows)] : [])];
}

function settings(about) {
  const flat = (o) => Object.entries(o).map(([k, v]) => [k, typeof v === "string" ? v : JSON.stringify(v)]);
  const fold = (title, rows) => el("details", "", el("summary", "", title), table(["name", "value"], rows));
  return [fold("settings", flat(about.config)), fold("origin", flat({ path: about.path, ...about.origin }))];
}

// Of what each part of the page is made, and by what: a part is made anew when that has changed.
const PARTS = [
  [(a) => a.notes, (a) => a.notes.map((n) => el("p", "hint", n))],
  [(a) => a.progress, progress],
  [(a) => a.evaluations, evaluations],
  [(a) => a.media, media],
  [(a) => a.datasets, datasets],
  [(a) => a.timeline, timeline],
  [(a) => a.latency, latency],
  [(a) => [a.resources, a.seconds], resources],
  [(a) => [a.config, a.path, a.origin], settings],
];
