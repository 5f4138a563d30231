// The list of runs, the charts beside it, keys and polling. All text from runs goes in as text, never as markup.
import { Chart, short, swatch } from "/static/chart.js";
import { Detail, el, seconds } from "/static/detail.js";

const PERIOD_MS = 2000, MOST_DRAWN = 400;
const FIRST_KEYS = ["eval/success", "eval/return", "train/success", "train/return"];
const $ = (id) => document.getElementById(id);
const page = { runs: [], drawn: new Set(), seen: new Set(), cursor: null, keys: [], charts: new Map(), zoom: null, keysOf: "" };

export async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  if (answer.status === 204) return null;
  const type = answer.headers.get("content-type") || "";
  const content = type.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(content.error || `status ${answer.status}`);
  return content;
}

async function enter() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  await ask("/enter", { headers: { "x-roboloop-token": token } });
  history.replaceState(null, "", "/");
}

function trouble(line) { $("trouble").textContent = line; $("trouble").hidden = !line; }

// --- the list

function shown() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), state = $("state").value;
  return page.runs.filter((r) => (!state || r.state === state) && words.every((w) => r.name.toLowerCase().includes(w)));
}

async function loadRuns() {
  const found = await ask("/api/runs");
  page.runs = found.runs;
  for (const r of page.runs) {
    if (!page.seen.has(r.id) && page.drawn.size < MOST_DRAWN) page.drawn.add(r.id);
    page.seen.add(r.id);
  }
  const counts = {};
  for (const r of page.runs) counts[r.state] = (counts[r.state] || 0) + 1;
  const states = Object.keys(counts).sort(), select = $("state");
  $("sum").textContent = `${page.runs.length} runs: ${states.map((s) => `${counts[s]} ${s}`).join(", ") || (found.looking ? "looking for them" : "none yet")}`;
  if (states.join() !== page.states) {
    page.states = states.join();
    const old = select.value;
    select.replaceChildren(new Option("all states", ""), ...states.map((s) => new Option(s, s)));
    select.value = states.includes(old) ? old : "";
  }
  list();
}

function list() {
  const runs = shown();
  if (!runs.some((r) => r.id === page.cursor)) page.cursor = runs.length ? runs[0].id : null;
  const body = $("rows"), old = new Map([...body.children].map((tr) => [tr.dataset.id, tr]));
  const rows = runs.map((r) => {
    const tr = old.get(r.id) || newRow(r);
    fill(tr, r);
    return tr;
  });
  if (rows.length !== body.children.length || rows.some((tr, i) => body.children[i] !== tr)) body.replaceChildren(...rows);
}

function newRow(r) {
  const tr = el("tr"), box = el("input");
  tr.dataset.id = r.id;
  box.type = "checkbox";
  box.setAttribute("aria-label", `draw ${r.name}`);
  box.addEventListener("change", () => { draw(r.id, box.checked); });
  box.addEventListener("click", (e) => e.stopPropagation());
  tr.append(el("td", "", box), el("td", "name", el("button", "open", el("bdi"))), ...Array.from({ length: 6 }, () => el("td")));
  tr.addEventListener("click", () => { page.cursor = r.id; list(); open(r.id); });
  tr.addEventListener("focusin", () => { if (page.cursor !== r.id) { page.cursor = r.id; list(); } });
  return tr;
}

function fill(tr, r) {
  const cells = tr.children, places = [cells[1].querySelector("bdi"), ...Array.from(cells).slice(2)], texts = [
    r.name, r.state, `${short(r.step)}/${short(r.steps)}`, r.success === null ? "-" : `${Math.round(100 * r.success)} %`,
    short(r.return), r.steps_per_s === null ? "-" : short(Math.round(r.steps_per_s)), seconds(r.eta_s)];
  texts.forEach((t, i) => { if (places[i].textContent !== t) places[i].textContent = t; });
  cells[1].title = r.error ? `${r.name}: ${r.error}` : r.name;
  cells[2].className = r.state;
  cells[0].firstChild.checked = page.drawn.has(r.id);
  if (r.id === page.cursor) tr.setAttribute("aria-current", "true"); else tr.removeAttribute("aria-current");
}

function draw(id, on) { if (on) page.drawn.add(id); else page.drawn.delete(id); list(); refresh(); }

// --- the curves

const drawn = () => page.runs.filter((r) => page.drawn.has(r.id));

async function loadKeys() {
  const runs = drawn(), ids = runs.map((r) => r.id).join();
  if (!ids || (ids === page.keysOf && Date.now() - page.keysAt < 10000)) return;
  const keys = (await ask(`/api/keys?runs=${ids}`)).keys;
  // of the same runs none is taken away: what a long log's sketch shows of rare ones differs from look to look
  page.keys = ids === page.keysOf ? [...new Set([...page.keys, ...keys])] : keys;
  page.keysOf = page.keys.length ? ids : ""; page.keysAt = Date.now();
  const select = $("key"), old = select.value;
  if (page.keys.join() === page.keyNames) return;
  page.keyNames = page.keys.join();
  select.replaceChildren(...page.keys.map((k) => new Option(k, k)));
  select.value = page.keys.includes(old) ? old : FIRST_KEYS.find((k) => page.keys.includes(k)) || page.keys[0] || "";
}

function wantedCharts() {
  const key = $("key").value;
  if (!key) return [];
  return $("tasks").checked ? [key, ...page.keys.filter((k) => k.startsWith(key + "/"))] : [key];
}

async function loadCurves() {
  const wanted = wantedCharts(), runs = drawn();
  for (const [key, chart] of page.charts) if (!wanted.includes(key)) { chart.box.remove(); page.charts.delete(key); }
  const names = new Map(runs.map((r) => [r.id, r.name]));
  for (const key of wanted) {
    if (!page.charts.has(key)) {
      const box = el("div");
      $("charts").append(box);
      page.charts.set(key, new Chart(box, key, zoomed));
      if (wanted.length > 1) box.classList.add("small");
    }
    const chart = page.charts.get(key), group = $("group").checked;
    const columns = Math.max(60, Math.min(1200, Math.round(Math.min(chart.canvas.clientWidth || 600, 24000 / Math.max(1, runs.length)))));
    const query = new URLSearchParams({ key, x: $("x").value, smoothing: $("smoothing").value, columns, by: group ? "group" : "run", runs: runs.map((r) => r.id).join() });
    if (page.zoom) { query.set("low", page.zoom[0]); query.set("high", page.zoom[1]); }
    const asked = query.toString(), log = $("log").checked;
    const known = asked === chart.asked ? `&known=${chart.version}` : "";
    const got = runs.length ? await ask(`/api/curves?${asked}${known}`) : { lines: [], version: "", reading: false };
    if (got === null) { if (log !== chart.log) chart.set(chart.lines, log); continue; }
    chart.asked = asked; chart.version = got.version; chart.zoom = page.zoom;
    chart.set(got.lines.map((l, i) => ({ ...l, colour: i, name: group ? `${l.id} (${l.seeds} ${l.seeds === 1 ? "seed" : "seeds"})` : names.get(l.id) || l.id })), log);
    chart.isSketch = got.reading || got.lines.some((l) => !l.whole);  // a run whose sketch lacks the key has no line yet
    if (key === wanted[0]) legend(chart.lines);
  }
  $("reading").hidden = ![...page.charts.values()].some((chart) => chart.isSketch);
}

function zoomed(ends) {
  page.zoom = ends;
  for (const chart of page.charts.values()) { chart.zoom = ends; chart.later(); }
  refresh();
}

function legend(lines) {
  const made = lines.slice(0, 60).map((l) => el("span", "", swatch(l.colour), l.name));
  if (lines.length > 60) made.push(el("span", "hint", `and ${lines.length - 60} more`));
  $("legend").replaceChildren(...made);
}

// --- one at a time: a question that is asked while another is open is asked once more after it

let busy = false, again = false;
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    do {
      again = false;
      if (!$("view").offsetParent && page.detail) continue;
      await loadKeys();
      await loadCurves();
    } while (again);
    trouble("");
  } catch (e) { trouble(e.message); } finally { busy = false; }
}

async function poll() {
  if (!document.hidden) {
    try {
      await loadRuns();
      if (page.detail) await page.detail.poll(page.runs.find((r) => r.id === page.detail.id));
      await refresh();
    } catch (e) { trouble(e instanceof TypeError ? "the page's server does not answer" : e.message); }
  }
  setTimeout(poll, PERIOD_MS);
}

// --- one run

function open(id) {
  const run = page.runs.find((r) => r.id === id);
  if (!run) return;
  page.detail = new Detail($("detail"), run, ask, close, async () => { await loadRuns(); });
  reveal();
}

// Show the part beside the list, and let a reader begin at its heading.
function reveal() {
  document.querySelector("main").classList.add("detailed");
  $("detail").hidden = false;
  const heading = $("detail").querySelector("h2");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

const cursorRow = () => document.querySelector('#rows tr[aria-current="true"]');

function close() {
  page.detail = null;
  $("detail").hidden = true; $("detail").replaceChildren();
  document.querySelector("main").classList.remove("detailed");
  cursorRow()?.querySelector(".open").focus({ preventScroll: true });
  refresh();
}

async function compare() {
  const ids = drawn().map((r) => r.id).slice(0, 20);
  const got = await ask(`/api/diff?runs=${ids.join()}`);
  const head = el("tr", "", el("th", "", "setting"), ...got.names.map((n) => el("th", "", n)));
  const rows = Object.entries(got.rows).map(([key, values]) => el("tr", "", el("td", "key", key), ...values.map((v) => el("td", "", v === null ? "-" : JSON.stringify(v)))));
  const back = el("button", "", "back");
  back.addEventListener("click", close);
  page.detail = { id: null, poll: async () => {} };
  $("detail").replaceChildren(back, el("h2", "", `settings in which the ${ids.length} drawn runs differ`), el("div", "wide", el("table", "diff", head, ...rows)));
  reveal();
}

// --- keys

function move(by) {
  const runs = shown(), i = runs.findIndex((r) => r.id === page.cursor);
  if (!runs.length) return;
  page.cursor = runs[Math.max(0, Math.min(runs.length - 1, i + by))].id;
  const hadFocus = $("rows").contains(document.activeElement);
  list();
  cursorRow()?.scrollIntoView({ block: "nearest" });
  if (hadFocus) cursorRow()?.querySelector(".open").focus({ preventScroll: true });
}

const toggle = (id) => { $(id).checked = !$(id).checked; refresh(); };
const KEYS = {
  j: () => move(1), k: () => move(-1), "/": () => $("search").focus(), "?": () => $("help").showModal(),
  Enter: () => page.cursor && open(page.cursor), " ": () => page.cursor && draw(page.cursor, !page.drawn.has(page.cursor)),
  Escape: () => (page.detail ? close() : zoomed(null)), l: () => toggle("log"), g: () => toggle("group"), t: () => toggle("tasks"),
};

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("help").open) return;
  const typing = e.target.matches("input:not([type=checkbox]):not([type=range]), select, textarea, video");
  if (typing) { if (e.key === "Escape" || e.key === "Enter") e.target.blur(); return; }
  // what has a use for these keys keeps them; a run's name would only open it
  if ((e.key === "Enter" || e.key === " ") && e.target.closest("button:not(.open), input, summary, a, [tabindex='0']")) return;
  if (KEYS[e.key]) { e.preventDefault(); KEYS[e.key](); }
});

$("search").addEventListener("input", list);
$("state").addEventListener("change", list);
for (const id of ["key", "x", "log", "group", "tasks"]) $(id).addEventListener("change", () => { if (id === "x") page.zoom = null; refresh(); });
$("smoothing").addEventListener("input", refresh);
$("all").addEventListener("click", () => { page.drawn = new Set(shown().map((r) => r.id)); list(); refresh(); });
$("none").addEventListener("click", () => { page.drawn.clear(); list(); refresh(); });
$("compare").addEventListener("click", () => compare().catch((e) => trouble(e.message)));
$("show-help").addEventListener("click", () => $("help").showModal());
$("close-help").addEventListener("click", () => $("help").close());

enter().then(poll).catch((e) => { trouble(e.message); });
