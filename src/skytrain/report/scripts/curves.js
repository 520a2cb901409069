// Draws the curves of runs. Reads numbers and texts from #data; texts reach the page as text only, never as HTML.
(() => {
const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07D00", "#3A9BDC", "#8E44AD", "#8C6D31", "#C0392B", "#6B7280"];
const STATES = {done: "#009E73", running: "#0072B2", interrupted: "#D55E00", failed: "#C0392B"};
const MARGIN = {left: 58, right: 14, top: 10, bottom: 26};
const HEIGHT = 260;
let data = JSON.parse(document.getElementById("data").textContent);
const view = {axis: "step", from: null, to: null, log: false, hidden: new Set()};
const panels = new Map();

function colour(run) { return PALETTE[run % PALETTE.length]; }

function interpolated(steps, values, step) {
  if (!steps.length) return NaN;
  let low = 0, high = steps.length - 1;
  if (step <= steps[0]) return values[0];
  if (step >= steps[high]) return values[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const share = (step - steps[low]) / ((steps[high] - steps[low]) || 1);
  return values[low] + share * (values[high] - values[low]);
}

function along(run, step) {
  if (view.axis === "step") return step;
  return interpolated(run[view.axis][0], run[view.axis][1], step);
}

// The positions of a curve on the chosen axis, computed once for each axis.
function places(run, curve) {
  if (curve.placedFor !== view.axis) {
    curve.places = curve.x.map(step => along(run, step));
    curve.placedFor = view.axis;
  }
  return curve.places;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(1);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "K"]]) {
    if (size >= unit) return Number((value / (letter === "K" ? 1e3 : unit)).toPrecision(4)) + letter;
  }
  return String(Number(value.toPrecision(5)));
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [low];
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = power * [1, 2, 5, 10].find(factor => rough <= factor * power);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-12) && found.length < 50; at++) found.push(at * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) {
      const value = factor * Math.pow(10, power);
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 1 ? found : ticks(low, high, 4);
}

function shownRuns(metric) {
  return data.runs.map((run, number) => ({run, number, curve: run.curves[metric]}))
    .filter(each => each.curve && each.curve.x.length && !view.hidden.has(each.run.name));
}

// What the axis of all panels spans: the zoom, or everything that is shown.
function span() {
  let low = Infinity, high = -Infinity;
  for (const {metric} of data.panels) {
    for (const {run, curve} of shownRuns(metric)) {
      const xs = places(run, curve);
      if (xs[0] < low) low = xs[0];
      if (xs[xs.length - 1] > high) high = xs[xs.length - 1];
    }
  }
  if (low === high) { low -= 0.5; high += 0.5; }
  return view.from === null ? [low, high + 0.02 * (high - low)] : [view.from, view.to];  // room for a mark at the end
}

function draw(panel, {range, width, style}) {
  const {canvas, metric} = panel;
  if (!width) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(HEIGHT * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const {ink, line, faint} = style;
  pen.font = "11px system-ui, sans-serif";
  const shown = shownRuns(metric);
  const [x0, x1] = range;
  let low = Infinity, high = -Infinity, points = 0;
  const see = value => {
    if (!Number.isFinite(value) || (view.log && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const {run, curve} of shown) {
    const xs = places(run, curve);
    for (let at = 0; at < xs.length; at++) {
      if (xs[at] < x0 || xs[at] > x1) continue;
      points++;
      const error = curve.errors ? curve.errors[at] : 0;
      see(curve.low ? curve.low[at] : curve.y[at] - error);
      see(curve.high ? curve.high[at] : curve.y[at] + error);
    }
    if (curve.chance !== undefined) see(curve.chance);
    if (metric === "cost/usd" && view.from === null) for (const limit of [run.budget, run.projected]) if (limit !== null) see(limit);
  }
  panel.figure.dataset.points = points;
  panel.place = null;
  if (!points || !Number.isFinite(low)) {
    pen.fillStyle = faint;
    pen.fillText(points ? "nothing above zero here" : "nothing here: no value, hidden, or outside the zoom", MARGIN.left, HEIGHT / 2);
    return;
  }
  if (view.log) { const room = Math.pow(high / low, 0.05) * 1.001; low /= room; high *= room; }
  else { const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1; low -= room; high += room; }
  const right = width - MARGIN.right, bottom = HEIGHT - MARGIN.bottom;
  const X = value => MARGIN.left + (value - x0) / (x1 - x0) * (right - MARGIN.left);
  const scale = view.log ? Math.log : value => value;
  const Y = value => bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (bottom - MARGIN.top);
  panel.place = {X, Y, x0, x1, right};
  pen.lineWidth = 1;
  pen.strokeStyle = line;
  pen.fillStyle = faint;
  pen.textAlign = "right";
  for (const value of view.log ? logTicks(low, high) : ticks(low, high, 5)) {
    pen.beginPath(); pen.moveTo(MARGIN.left, Y(value)); pen.lineTo(right, Y(value)); pen.stroke();
    pen.fillText(short(value), MARGIN.left - 6, Y(value) + 4);
  }
  pen.textAlign = "center";
  for (const value of ticks(x0, x1, Math.max(2, Math.floor(width / 80)))) {
    pen.beginPath(); pen.moveTo(X(value), MARGIN.top); pen.lineTo(X(value), bottom); pen.stroke();
    pen.fillText(short(value), X(value), HEIGHT - 10);
  }
  pen.save();
  pen.beginPath(); pen.rect(MARGIN.left - 4, 0, right - MARGIN.left + 4, bottom + 1); pen.clip();
  const chances = new Set(shown.map(each => each.curve.chance).filter(value => value !== undefined));
  for (const chance of chances) {
    pen.setLineDash([2, 3]); pen.strokeStyle = ink;
    pen.beginPath(); pen.moveTo(MARGIN.left, Y(chance)); pen.lineTo(right, Y(chance)); pen.stroke();
    pen.setLineDash([]); pen.fillStyle = ink; pen.textAlign = "right";
    pen.fillText("chance " + short(chance), right - 4, Y(chance) - 4);
  }
  const labels = [];
  for (const {run, number, curve} of shown) drawCurve(pen, {run, number, curve, X, Y, bottom, labels, ink});
  if (metric === "cost/usd" && view.from === null) for (const each of shown) drawMoney(pen, {...each, ink}, X, Y, right);
  pen.restore();
}

// A curve with more points than pixels, as one point for each column of pixels: the picture is the same.
function columns(xs, curve, X) {
  const first = Math.round(X(xs[0])), last = Math.round(X(xs[xs.length - 1]));
  if (xs.length <= 2 * (last - first) || last - first > 4000) return {xs, ...curve};
  const thin = {xs: [], y: [], low: [], high: [], lowest: curve.lowest, not_finite: curve.not_finite};
  let column = NaN, count = 0;
  for (let at = 0; at < xs.length; at++) {
    const here = Math.round(X(xs[at])), end = thin.xs.length - 1;
    const low = curve.low ? curve.low[at] : curve.y[at], high = curve.high ? curve.high[at] : curve.y[at];
    if (here !== column) {
      column = here;
      count = 1;
      thin.xs.push(xs[at]); thin.y.push(curve.y[at]); thin.low.push(low); thin.high.push(high);
    } else {
      count++;
      thin.y[end] += (curve.y[at] - thin.y[end]) / count;
      if (low < thin.low[end]) thin.low[end] = low;
      if (high > thin.high[end]) thin.high[end] = high;
    }
  }
  return thin;
}

function drawCurve(pen, {run, number, curve: whole, X, Y, bottom, labels, ink}) {
  const {xs, ...curve} = columns(places(run, whole), whole, X);
  const above = value => !view.log || value > 0;
  pen.strokeStyle = pen.fillStyle = colour(number);
  if (curve.low) {
    pen.globalAlpha = 0.18;
    pen.beginPath();
    for (let at = 0; at < xs.length; at++) if (above(curve.high[at])) pen.lineTo(X(xs[at]), Y(curve.high[at]));
    for (let at = xs.length - 1; at >= 0; at--) if (above(curve.low[at])) pen.lineTo(X(xs[at]), Y(curve.low[at]));
    pen.fill();
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 1.6;
  pen.setLineDash(number >= PALETTE.length ? [6, 3] : []);
  pen.beginPath();
  for (let at = 0; at < xs.length; at++) if (above(curve.y[at])) pen.lineTo(X(xs[at]), Y(curve.y[at]));
  pen.stroke();
  pen.setLineDash([]);
  if (xs.length <= 60) {
    for (let at = 0; at < xs.length; at++) {
      if (!above(curve.y[at])) continue;
      pen.beginPath(); pen.arc(X(xs[at]), Y(curve.y[at]), 2.6, 0, 7); pen.fill();
    }
  }
  if (curve.errors) {
    pen.lineWidth = 1;
    for (let at = 0; at < xs.length; at++) {
      const top = Y(curve.y[at] + curve.errors[at]), end = Y(Math.max(curve.y[at] - curve.errors[at], view.log ? 1e-12 : -Infinity));
      pen.beginPath(); pen.moveTo(X(xs[at]), top); pen.lineTo(X(xs[at]), end);
      for (const y of [top, end]) { pen.moveTo(X(xs[at]) - 4, y); pen.lineTo(X(xs[at]) + 4, y); }
      pen.stroke();
    }
  }
  if (curve.lowest && above(curve.lowest[1])) {
    const x = X(along(run, curve.lowest[0])), y = Y(curve.lowest[1]);
    pen.lineWidth = 1.5;
    pen.beginPath(); pen.arc(x, y, 6, 0, 7); pen.stroke();
    const text = short(curve.lowest[1]), before = x > 120, wide = pen.measureText(text).width + 4;
    const label = {left: before ? x - 9 - wide : x + 9, y: Math.min(y + 14, bottom - 3), wide};
    // A label that would cover another is left out: hovering tells the value.
    if (!labels.some(one => Math.abs(one.y - label.y) < 12 && one.left < label.left + wide && label.left < one.left + one.wide)) {
      labels.push(label);
      pen.textAlign = before ? "right" : "left";
      pen.fillStyle = ink;  // small letters in a curve's colour cannot be read in the dark
      pen.fillText(text, x + (before ? -9 : 9), label.y);
    }
  }
  if (curve.not_finite) {
    const x = X(along(run, curve.not_finite[0]));
    pen.lineWidth = 2;
    pen.beginPath(); pen.moveTo(x - 5, 14); pen.lineTo(x + 5, 24); pen.moveTo(x + 5, 14); pen.lineTo(x - 5, 24); pen.stroke();
  }
}

function drawMoney(pen, {run, number, curve, ink}, X, Y, right) {
  pen.strokeStyle = pen.fillStyle = colour(number);
  pen.lineWidth = 1;
  if (run.budget !== null) {
    pen.setLineDash([8, 4]);
    pen.beginPath(); pen.moveTo(MARGIN.left, Y(run.budget)); pen.lineTo(right, Y(run.budget)); pen.stroke();
    pen.textAlign = "left"; pen.fillStyle = ink; pen.fillText("budget", MARGIN.left + 4, Y(run.budget) - 3);
    pen.fillStyle = colour(number);
  }
  if (run.projected !== null && run.state !== "done") {
    const last = curve.x.length - 1;
    const end = view.axis === "step" || view.axis === "tokens" ? Math.min(X(along(run, run.steps)), right - 4) : right - 4;
    pen.setLineDash([2, 4]);
    pen.beginPath(); pen.moveTo(X(places(run, curve)[last]), Y(curve.y[last])); pen.lineTo(end, Y(run.projected)); pen.stroke();
    pen.beginPath(); pen.arc(end, Y(run.projected), 3, 0, 7); pen.fill();
  }
  pen.setLineDash([]);
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function hover(panel, x) {
  panel.tip.replaceChildren();
  if (x === null || !panel.place) { hideHover(); return; }
  element("div", panel.tip, `${view.axis} ${short(x)}`, "at");
  const rows = shownRuns(panel.metric).map(each => {
    const xs = places(each.run, each.curve), at = nearest(xs, x);
    return {...each, at, value: each.curve.y[at]};
  });
  rows.sort((one, other) => one.value - other.value);
  for (const {run, number, curve, at, value} of rows.slice(0, 20)) {
    const row = element("div", panel.tip);
    element("i", row).style.background = colour(number);
    const spread = curve.errors ? ` ± ${short(curve.errors[at])}` : curve.low ? ` (${short(curve.low[at])} to ${short(curve.high[at])})` : "";
    element("b", row, short(value) + spread);
    appendName(row, run.name);
    element("span", row, `step ${Math.round(curve.x[at])}`, "at");
  }
  panel.tip.hidden = false;
  const at = panel.place.X(x), left = at > panel.canvas.clientWidth / 2;
  panel.tip.style.left = left ? "auto" : `${at + 12}px`;
  panel.tip.style.right = left ? `${panel.canvas.clientWidth - at + 12}px` : "auto";
  for (const each of panels.values()) {
    const show = each.place && x >= each.place.x0 && x <= each.place.x1;
    each.cross.hidden = !show;
    if (show) each.cross.style.left = `${each.place.X(x)}px`;
  }
}

function hideHover() {
  for (const each of panels.values()) { each.tip.hidden = true; each.cross.hidden = true; }
}

function listen(panel) {
  let began = null;
  const at = event => {
    const box = panel.canvas.getBoundingClientRect();
    return Math.max(MARGIN.left, Math.min(event.clientX - box.left, panel.place ? panel.place.right : MARGIN.left));
  };
  const value = pixel => panel.place.x0 + (pixel - MARGIN.left) / (panel.place.right - MARGIN.left) * (panel.place.x1 - panel.place.x0);
  panel.canvas.addEventListener("pointerdown", event => {
    if (!panel.place || event.button) return;
    began = at(event);
    panel.canvas.setPointerCapture(event.pointerId);
  });
  panel.canvas.addEventListener("pointermove", event => {
    if (!panel.place) return;
    const now = at(event);
    hover(panel, value(now));
    if (began !== null) {
      panel.choice.hidden = false;
      panel.choice.style.left = `${Math.min(began, now)}px`;
      panel.choice.style.width = `${Math.abs(now - began)}px`;
    }
  });
  panel.canvas.addEventListener("pointerup", event => {
    const now = at(event);
    panel.choice.hidden = true;
    if (began !== null && Math.abs(now - began) > 6) zoom(value(Math.min(began, now)), value(Math.max(began, now)));
    began = null;
  });
  panel.canvas.addEventListener("pointercancel", () => { began = null; panel.choice.hidden = true; hideHover(); });
  panel.canvas.addEventListener("pointerleave", hideHover);
  panel.canvas.addEventListener("dblclick", () => zoom(null, null));
}

function zoom(from, to) {
  view.from = from;
  view.to = to;
  document.getElementById("reset").disabled = from === null;
  hideHover();
  redraw();
}

// Panels on the screen are drawn at once and the others in the pauses after, so that many runs open as soon as one.
// Everything is measured before anything is drawn: a new size of one canvas would lay out the whole page again.
let waiting = [];

function redraw() {
  const range = span(), computed = getComputedStyle(document.documentElement);
  const style = Object.fromEntries(["ink", "line", "faint"].map(name => [name, computed.getPropertyValue("--" + name).trim()]));
  const measured = [...panels.values()].map(panel => {
    const box = panel.canvas.getBoundingClientRect();
    return {panel, range, style, width: panel.canvas.clientWidth, seen: box.bottom > 0 && box.top < innerHeight};
  });
  delete document.documentElement.dataset.drawn;
  document.documentElement.dataset.span = range.join(" ");
  for (const each of measured) if (each.seen) draw(each.panel, each);
  waiting = measured.filter(each => !each.seen);
  drawLater(waiting);
}

function drawLater(rest) {
  setTimeout(() => {
    if (rest !== waiting) return;  // something newer is drawn
    const began = performance.now();
    while (rest.length && performance.now() - began < 12) { const each = rest.shift(); draw(each.panel, each); }
    if (rest.length) drawLater(rest);
    else { document.documentElement.dataset.drawn = panels.size; performance.mark("drawn"); }
  });
}

function drawRest() {
  for (const each of waiting.splice(0)) draw(each.panel, each);
}

function buildControls() {
  const bar = document.getElementById("controls");
  bar.replaceChildren();
  const label = element("label", bar, "over ");
  const chooser = element("select", label);
  chooser.id = "axis";
  for (const axis of data.axes) element("option", chooser, axis).value = axis;
  chooser.value = view.axis;
  chooser.addEventListener("change", () => { view.axis = chooser.value; zoom(null, null); });
  const logarithmic = element("label", bar);
  const box = element("input", logarithmic);
  box.type = "checkbox";
  box.id = "log";
  logarithmic.append(" logarithmic");
  box.addEventListener("change", () => { view.log = box.checked; redraw(); });
  const reset = element("button", bar, "reset zoom");
  reset.id = "reset";
  reset.disabled = true;
  reset.addEventListener("click", () => zoom(null, null));
  element("span", bar, "drag over a plot to zoom, double-click to go back", "note");
}

function buildTable() {
  const table = document.getElementById("runs");
  table.replaceChildren();
  const head = element("tr", element("thead", table));
  element("th", head, "run");
  const facts = data.runs.length ? data.runs[0].facts : [];
  const known = facts.map((_, at) => data.runs.some(run => run.facts[at][1] !== "-"));  // a column of dashes says nothing
  facts.forEach(([name], at) => { if (known[at]) element("th", head, name); });
  const body = element("tbody", table);
  data.runs.forEach((run, number) => {
    const row = element("tr", body);
    const label = element("label", element("td", row));
    const box = element("input", label);
    box.type = "checkbox";
    box.checked = !view.hidden.has(run.name);
    box.addEventListener("change", () => {
      if (box.checked) view.hidden.delete(run.name); else view.hidden.add(run.name);
      redraw();
    });
    const swatch = element("i", label, undefined, number >= PALETTE.length ? "swatch dashed" : "swatch");
    swatch.style.borderTopColor = colour(number);
    appendName(label, run.name);
    run.facts.forEach(([, text], at) => { if (known[at]) element("td", row, text); });
  });
}

function buildPanels() {
  const grid = document.getElementById("panels");
  const wanted = new Set(data.panels.map(panel => panel.metric));
  for (const [metric, panel] of panels) if (!wanted.has(metric)) { panel.figure.remove(); panels.delete(metric); }
  for (const {metric, title, unit} of data.panels) {
    if (panels.has(metric)) continue;
    const figure = element("figure", grid);
    figure.dataset.metric = metric;
    const caption = element("figcaption", figure, title);
    element("span", caption, unit ? ` ${unit}` : "", "note");
    const stage = element("div", figure, undefined, "stage");
    const canvas = element("canvas", stage);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", title);
    const panel = {metric, figure, canvas, cross: element("div", stage, undefined, "cross"),
                   choice: element("div", stage, undefined, "choice"), tip: element("div", stage, undefined, "tip")};
    for (const part of [panel.cross, panel.choice, panel.tip]) part.hidden = true;
    panels.set(metric, panel);
    listen(panel);
  }
}

// Attempts on the clock of the world: one row for each run, a gap where nothing ran.
function buildTimeline() {
  const place = document.getElementById("timeline");
  place.replaceChildren();
  const all = data.runs.flatMap(run => run.attempts);
  if (!all.length) return;
  const start = Math.min(...all.map(each => each.start));
  const end = Math.max(...all.map(each => each.end), start + 1);
  element("h2", place, "Attempts");
  const when = seconds => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
  for (const run of data.runs) {
    const row = element("div", place, undefined, "row");
    appendName(element("span", row, undefined, "who"), run.name);
    const bar = element("div", row, undefined, "bar");
    for (const attempt of run.attempts) {
      const part = element("i", bar);
      part.style.left = `${100 * (attempt.start - start) / (end - start)}%`;
      part.style.width = `max(3px, ${100 * (attempt.end - attempt.start) / (end - start)}%)`;
      part.style.background = STATES[attempt.state] || "#8C6D31";
      part.title = `${attempt.text}\n${when(attempt.start)} to ${when(attempt.end)} UTC`;
    }
  }
  const ends = element("div", place, undefined, "row ends");
  element("span", ends, "UTC", "who");
  const labels = element("div", ends, undefined, "labels");
  element("span", labels, when(start));
  element("span", labels, when(end));
  const legend = element("p", place, undefined, "note");
  for (const state of new Set(all.map(each => each.state))) {
    element("i", legend, undefined, "dot").style.background = STATES[state] || "#8C6D31";
    legend.append(`${state}  `);
  }
}

function build() {
  buildTable();
  buildPanels();
  buildTimeline();
  redraw();
}

// A page of the dashboard asks for newer curves; 304 means that nothing has changed.
function follow() {
  const source = document.body.dataset.source;
  if (!source) return;
  const word = document.getElementById("live");
  let etag = "";
  const ask = async () => {
    try {
      const answer = await fetch(source, {headers: etag ? {"If-None-Match": etag} : {}, cache: "no-store"});
      if (answer.status === 200) {
        etag = answer.headers.get("ETag") || "";
        data = await answer.json();
        build();
      }
      word.textContent = `live, ${new Date().toLocaleTimeString()}`;
    } catch (error) {
      word.textContent = "the dashboard does not answer: is it still running?";
    }
    setTimeout(ask, 10000);
  };
  setTimeout(ask, 3000);
}

buildControls();
build();
let width = document.getElementById("panels").clientWidth;
new ResizeObserver(() => {
  const now = document.getElementById("panels").clientWidth;
  if (now !== width) { width = now; redraw(); }
}).observe(document.getElementById("panels"));
addEventListener("beforeprint", drawRest);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
follow();
})();
