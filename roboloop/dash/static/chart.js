// One chart on a canvas: lines with bands, linear or log, drag, wheel or pinch to zoom, shift-drag to move, a crosshair that names values.

const LIGHT = ["#2a78d6", "#d9622b", "#1f9e77", "#b0449e", "#8a7a00", "#c22f4c", "#5a5fd0", "#007f8c", "#7c5c3b", "#5f7d1f"];
const DARK = ["#6aa9f4", "#f08a56", "#4fcfa2", "#dd82cd", "#cdbb3c", "#f2728b", "#9a9ef5", "#46c0cd", "#c29a72", "#a5c85a"];
const PAD = { left: 58, right: 20, top: 8, bottom: 26 };

const theme = matchMedia("(prefers-color-scheme: dark)");
// One listener and one observer for the page: a chart with its own would be kept for ever.
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart.later()));
theme.addEventListener("change", () => {
  for (const canvas of document.querySelectorAll(".chart canvas")) canvas.chart.later();
  for (const old of document.querySelectorAll(".swatch")) old.style.background = colour(+old.dataset.colour);
});

export const isDark = () => theme.matches;
export const colour = (i) => (isDark() ? DARK : LIGHT)[i % LIGHT.length];

export function swatch(i) {
  const made = document.createElement("span");
  made.className = "swatch"; made.dataset.colour = i; made.style.background = colour(i);
  return made;
}

export function short(v) {
  if (v === null || v === undefined || !isFinite(v)) return "-";
  const a = Math.abs(v);
  if (a >= 1e9 || (a < 1e-3 && a > 0)) return v.toExponential(1);
  if (a >= 1e6) return +(v / 1e6).toPrecision(4) + "M";
  if (a >= 1e4) return +(v / 1e3).toPrecision(4) + "k";
  return String(+v.toPrecision(4));
}

// Round values between two ends, about so many. Ends that only rounding tells apart are one: no step would lead from one to the other.
const FLAT = 1e-9;
export function ticks(low, high, wanted) {
  if (!(high - low > FLAT * Math.max(Math.abs(low), Math.abs(high)))) return [low];
  const raw = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((f) => f * size >= raw);
  const first = Math.ceil(low / step), last = Math.floor(high / step + FLAT);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

export class Chart {
  // onZoom is told the new ends of x, or null for the whole.
  constructor(box, title, onZoom) {
    this.box = box; this.onZoom = onZoom; this.lines = []; this.log = false; this.zoom = null; this.at = null; this.drag = null; this.drawn = 0;
    this.xText = short; this.fromZero = false;
    box.className = "chart";
    const head = document.createElement("h3");
    head.textContent = title;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.tip = document.createElement("div");
    this.tip.className = "tip"; this.tip.hidden = true;
    box.append(head, this.canvas, this.tip);
    this.title = title;
    this.canvas.chart = this;
    sizes.observe(this.canvas);
    this.listen();
  }

  set(lines, log) {
    this.lines = lines; this.log = log;
    this.canvas.setAttribute("aria-label", `${this.title}: ${lines.length} lines`);
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  ends() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const l of this.lines) { if (l.x.length) { x0 = Math.min(x0, l.x[0]); x1 = Math.max(x1, l.x[l.x.length - 1]); } }
    if (this.zoom) [x0, x1] = this.zoom;
    for (const l of this.lines) {
      const lows = l.low || l.y, highs = l.high || l.y;
      for (let i = 0; i < l.x.length; i++) {
        if (l.x[i] < x0 || l.x[i] > x1) continue;
        const a = this.log && lows[i] <= 0 ? l.y[i] : lows[i];
        if (!this.log || a > 0) y0 = Math.min(y0, a);
        if (!this.log || highs[i] > 0) y1 = Math.max(y1, highs[i]);
      }
    }
    if (!isFinite(x0)) [x0, x1] = [0, 1];
    if (!isFinite(y0) || !isFinite(y1)) [y0, y1] = this.log ? [1, 10] : [0, 1];
    if (this.fromZero && !this.log) y0 = Math.min(y0, 0);
    if (x1 <= x0) x1 = x0 + 1;
    if (this.log) return [x0, x1, y0 / 1.1, y1 * 1.1];
    const isFlat = y1 - y0 <= FLAT * Math.max(Math.abs(y0), Math.abs(y1));
    const room = isFlat ? Math.abs(y0) * 0.1 || 1 : (y1 - y0) * 0.04;
    return [x0, x1, y0 - room, y1 + room];
  }

  draw() {
    const scale = devicePixelRatio || 1, w = this.canvas.clientWidth, h = this.canvas.clientHeight;
    if (!w || !h) return;
    if (this.canvas.width !== Math.round(w * scale)) this.canvas.width = Math.round(w * scale);
    if (this.canvas.height !== Math.round(h * scale)) this.canvas.height = Math.round(h * scale);
    const c = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, w, h);
    const [x0, x1, y0, y1] = this.ends();
    const f = this.log ? Math.log10 : (v) => v, fy0 = f(y0), fy1 = f(y1);
    const X = (v) => PAD.left + ((v - x0) / (x1 - x0)) * (w - PAD.left - PAD.right);
    const Y = (v) => h - PAD.bottom - ((f(Math.max(v, this.log ? y0 : -Infinity)) - fy0) / (fy1 - fy0)) * (h - PAD.top - PAD.bottom);
    this.frame = { x0, x1, w, h, X, Y };
    this.axes(c, style, [x0, x1, fy0, fy1]);
    c.save();
    c.beginPath(); c.rect(PAD.left, PAD.top, w - PAD.left - PAD.right, h - PAD.top - PAD.bottom); c.clip();
    for (const l of this.lines) {
      if (!l.low) continue;
      c.beginPath();
      l.x.forEach((v, i) => (i ? c.lineTo(X(v), Y(l.high[i])) : c.moveTo(X(v), Y(l.high[i]))));
      for (let i = l.x.length - 1; i >= 0; i--) c.lineTo(X(l.x[i]), Y(l.low[i]));
      c.globalAlpha = 0.16; c.fillStyle = colour(l.colour); c.fill(); c.globalAlpha = 1;
    }
    c.lineWidth = this.lines.length > 30 ? 1 : 1.6; c.lineJoin = "round";
    for (const l of this.lines) {
      c.beginPath();
      let pen = false;
      for (let i = 0; i < l.x.length; i++) {
        if (this.log && l.y[i] <= 0) { pen = false; continue; }
        const px = X(l.x[i]), py = Y(l.y[i]);
        if (pen) c.lineTo(px, py); else c.moveTo(px, py);
        pen = true;
      }
      c.strokeStyle = colour(l.colour); c.stroke();
      if (l.x.length === 1) { c.beginPath(); c.arc(X(l.x[0]), Y(l.y[0]), 3, 0, 7); c.fillStyle = colour(l.colour); c.fill(); }
    }
    if (this.drag && !this.drag.move) {
      c.fillStyle = style.getPropertyValue("--accent"); c.globalAlpha = 0.15;
      c.fillRect(this.drag.from, PAD.top, this.drag.to - this.drag.from, h - PAD.top - PAD.bottom); c.globalAlpha = 1;
    }
    if (this.at !== null) {
      c.strokeStyle = style.getPropertyValue("--dim"); c.lineWidth = 1; c.setLineDash([3, 3]);
      c.beginPath(); c.moveTo(this.at, PAD.top); c.lineTo(this.at, h - PAD.bottom); c.stroke(); c.setLineDash([]);
    }
    c.restore();
    this.drawn += 1;
    this.box.dataset.lines = this.lines.length;
    this.box.dataset.drawn = this.drawn;
  }

  axes(c, style, [x0, x1, fy0, fy1]) {
    const { w, h, X } = this.frame, dim = style.getPropertyValue("--dim"), line = style.getPropertyValue("--line");
    c.font = "11px system-ui, sans-serif"; c.fillStyle = dim; c.strokeStyle = line; c.lineWidth = 1;
    const height = h - PAD.top - PAD.bottom, py = (fv) => h - PAD.bottom - ((fv - fy0) / (fy1 - fy0)) * height;
    c.textAlign = "right"; c.textBaseline = "middle";
    let marks = this.log ? ticks(Math.ceil(fy0), Math.floor(fy1), 6).filter((v) => v === Math.round(v)) : [];
    if (marks.length < 2) marks = ticks(fy0, fy1, Math.max(2, height / 45));
    for (const v of marks) {
      c.beginPath(); c.moveTo(PAD.left, py(v)); c.lineTo(w - PAD.right, py(v)); c.stroke();
      c.fillText(short(this.log ? 10 ** v : v), PAD.left - 6, py(v));
    }
    c.textAlign = "center"; c.textBaseline = "top";
    for (const v of ticks(x0, x1, Math.max(2, w / 110))) {
      c.beginPath(); c.moveTo(X(v), h - PAD.bottom); c.lineTo(X(v), h - PAD.bottom + 4); c.stroke();
      c.fillText(this.xText(v), X(v), h - PAD.bottom + 7);
    }
  }

  listen() {
    const at = (e) => e.clientX - this.canvas.getBoundingClientRect().left;
    const value = (px) => { const f = this.frame; return f.x0 + ((px - PAD.left) / (f.w - PAD.left - PAD.right)) * (f.x1 - f.x0); };
    const fingers = new Map();  // their places, by pointer
    let pinch = null, down = null, tap = null;
    const go = (ends) => { this.zoom = ends; this.later(); clearTimeout(this.asking); this.asking = setTimeout(() => this.onZoom(ends), 150); };
    // One finger moves the crosshair, or scrolls the page up and down (touch-action); two zoom: what was under each stays under it.
    const spread = () => {
      const [[a, va], [b, vb]] = [...pinch].map(([id, v]) => [fingers.get(id), v]), per = (vb - va) / (b - a);
      if (!(per > 0 && isFinite(per))) return;  // they have met
      const low = va - (a - PAD.left) * per;
      go([low, low + (this.frame.w - PAD.left - PAD.right) * per]);
    };
    this.canvas.addEventListener("pointerdown", (e) => {
      if (!this.frame) return;
      if (e.pointerType === "touch") {
        fingers.set(e.pointerId, at(e));
        down = fingers.size === 1 ? at(e) : null;
        if (fingers.size !== 2) return;
        pinch = new Map([...fingers].map(([id, px]) => [id, value(px)]));
        this.at = null; this.tip.hidden = true;
        return;
      }
      this.canvas.setPointerCapture(e.pointerId);
      this.drag = { from: at(e), to: at(e), move: e.shiftKey, ends: [this.frame.x0, this.frame.x1] };
    });
    this.canvas.addEventListener("pointermove", (e) => {
      if (!this.frame) return;
      if (fingers.has(e.pointerId)) fingers.set(e.pointerId, at(e));
      if (pinch) { if (pinch.has(e.pointerId)) spread(); return; }
      this.at = at(e);
      if (this.drag) {
        this.drag.to = this.at;
        if (this.drag.move) {
          const [a, b] = this.drag.ends, by = ((this.drag.from - this.at) / (this.frame.w - PAD.left - PAD.right)) * (b - a);
          go([a + by, b + by]);
        }
      }
      this.name(value(this.at));
      this.later();
    });
    const lift = (e) => { fingers.delete(e.pointerId); if (pinch?.has(e.pointerId)) pinch = null; };
    this.canvas.addEventListener("pointercancel", (e) => { lift(e); this.drag = null; this.later(); });  // the page scrolls
    this.canvas.addEventListener("pointerup", (e) => {
      if (e.pointerType === "touch") {
        const now = down !== null && Math.abs(at(e) - down) < 10 ? { ms: e.timeStamp, px: at(e) } : null;
        if (now && tap && now.ms - tap.ms < 350 && Math.abs(now.px - tap.px) < 30) go(null);
        tap = now;
        return lift(e);
      }
      const d = this.drag; this.drag = null;
      if (d && !d.move && Math.abs(d.to - d.from) > 5) go([value(d.from), value(d.to)].sort((a, b) => a - b));
      this.later();
    });
    this.canvas.addEventListener("pointerleave", () => { this.at = null; this.tip.hidden = true; this.later(); });
    this.canvas.addEventListener("dblclick", () => go(null));
    this.canvas.addEventListener("wheel", (e) => {
      if (!this.frame) return;
      e.preventDefault();
      const { x0, x1 } = this.frame, v = value(at(e)), k = e.deltaY > 0 ? 1.25 : 0.8;
      go([v - (v - x0) * k, v + (x1 - v) * k]);
    }, { passive: false });
  }

  // The crosshair's words: each line's value at the nearest point, the highest first.
  name(v) {
    const found = [];
    for (const l of this.lines) {
      if (!l.x.length || v < l.x[0] - (this.frame.x1 - this.frame.x0) / 50) continue;
      let a = 0, b = l.x.length - 1;
      while (b - a > 1) { const m = (a + b) >> 1; if (l.x[m] < v) a = m; else b = m; }
      const i = Math.abs(l.x[a] - v) < Math.abs(l.x[b] - v) ? a : b;
      found.push([l, l.y[i], l.low ? ` (${short(l.low[i])} to ${short(l.high[i])})` : ""]);
    }
    found.sort((p, q) => q[1] - p[1]);
    this.tip.replaceChildren(...[[null, v, ""], ...found.slice(0, 12)].map(([l, y, more]) => {
      const row = document.createElement("div");
      if (l) row.append(swatch(l.colour));
      row.append(`${l ? short(y) + more + "  " + l.name : this.xText(y)}`);
      return row;
    }));
    if (found.length > 12) this.tip.append(`and ${found.length - 12} more`);
    this.tip.hidden = !found.length;
    const right = this.at > this.frame.w / 2;
    this.tip.style.left = right ? "auto" : `${this.at + 14}px`;
    this.tip.style.right = right ? `${this.frame.w - this.at + 14}px` : "auto";
    this.tip.style.top = "2rem";
  }
}
