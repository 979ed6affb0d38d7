"use strict";
// The report of a run: all data is in the page. Cells are numbers 0 .. n - 1; columns are arrays over them.
const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#8c8c8c"];
const PAGE = 50;
const N = D.id.length;
const axisAt = new Map(D.axes.map((axis, k) => [axis.name, k]));
const measureAt = new Map(D.measures.map((measure, k) => [measure.name, k]));
const RATE = "request_rate_rps";
const seeds = new Set(["seed", "router_seed"]);
const state = { only: D.axes.map(() => new Set()), y: null, x: null, colour: null, sort: null, down: true, find: "", rows: PAGE, pick: null, extra: null };

// ---------------------------------------------------------------------------------------------------------- values

const axisValue = (k, cell) => D.axes[k].values[D.axis[k][cell]];
const measure = (name, cell) => D.measure[measureAt.get(name)][cell];
const text = (value) => (value === null || value === undefined ? "\u2013" : String(value));
function number(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 6 : 4 });
}
function shown(value, unit) {
  if (value === null || value === undefined) return "\u2013";
  if (unit === "share") return (100 * value).toFixed(1) + " %";
  if (unit === "s") return Math.abs(value) < 10 ? number(1000 * value) + " ms" : number(value) + " s";
  const short = { "requests/s": " req/s", "tokens/s": " tok/s" }[unit];
  return number(value) + (short || "");
}
function element(tag, content, attributes) {
  const node = document.createElement(tag);
  if (content !== undefined) node.textContent = content;
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  return node;
}
function visible() {
  const found = [];
  for (let cell = 0; cell < N; cell++) {
    if (state.only.every((set, k) => !set.size || set.has(D.axis[k][cell]))) found.push(cell);
  }
  return found;
}
const colourIndex = (cell) => (state.colour === null ? 0 : D.axis[state.colour][cell]);
const colourOf = (index) => COLOURS[index % COLOURS.length];

// --------------------------------------------------------------------------------------------------------- drawing

const NS = "http://www.w3.org/2000/svg";
function draw(parent, tag, attributes, content) {
  const node = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (content !== undefined) node.textContent = content;
  parent.appendChild(node);
  return node;
}
function niceTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(+(at * step).toPrecision(12));
  return found;
}
function logTicks(low, high) {
  const found = [];
  const factors = high / low > 1000 ? [1] : high / low > 50 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of factors) {
      const at = +(factor * 10 ** power).toPrecision(12);
      if (at >= low && at <= high) found.push(at);
    }
  }
  return found;
}
function isGeometric(values) {
  const v = [...new Set(values)].sort((a, b) => a - b);
  if (v.length < 3 || v[0] <= 0) return false;
  const spread = (x) => { const m = x.reduce((a, b) => a + b) / x.length; return Math.sqrt(x.reduce((a, b) => a + (b - m) ** 2, 0) / x.length) / m; };
  return spread(v.slice(1).map((b, i) => Math.log(b / v[i]))) < spread(v.slice(1).map((b, i) => b - v[i]));
}
function scale(low, high, log, from, to, room) {
  if (!(high > low)) { low = log ? low / 2 : low - (Math.abs(low) || 1) / 2; high = log ? high * 2 : high + (Math.abs(high) || 1) / 2; }
  const f = log ? Math.log : (v) => v;
  const place = (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  return { place, ticks: log ? logTicks(low, high) : niceTicks(low, high, Math.max(2, Math.round(Math.abs(to - from) / room))) };
}
// points: {x, y, cell, colour}; lines: arrays of points; limits: {y, name}
function plot(box, spec) {
  const width = Math.max(box.clientWidth, 280), height = Math.round(Math.min(Math.max(0.62 * width, 260), 400));
  const left = 58, right = 14, top = 12, bottom = 44;
  box.textContent = "";
  const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.name });
  const xs = spec.points.map((p) => p.x).concat(spec.crosses.map((p) => p.x)), ys = spec.points.map((p) => p.y).concat(spec.limits.map((l) => l.y));
  if (!xs.length) { draw(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no cell has both values"); return; }
  const min = (v) => v.reduce((a, b) => Math.min(a, b), Infinity), max = (v) => v.reduce((a, b) => Math.max(a, b), -Infinity);
  const yHigh = ys.length ? max(ys) : 1, yPositive = min(spec.points.map((p) => p.y));
  const logY = spec.logY && yPositive > 0 && max(spec.points.map((p) => p.y)) / yPositive > 20;
  const logX = spec.logX && min(xs) > 0;
  const xLow = spec.zeroX ? 0 : min(xs), xHigh = max(xs), margin = logX ? (xHigh / xLow) ** 0.03 : 0.03 * (xHigh - xLow);
  const X = scale(spec.zeroX ? 0 : logX ? xLow / margin : xLow - margin, logX ? xHigh * margin : xHigh + margin, logX, left, width - right, 75);
  const Y = scale(logY ? min(ys) / 1.3 : 0, spec.percent ? 1.05 : logY ? yHigh * 1.3 : yHigh * 1.08 || 1, logY, height - bottom, top, 48);
  for (const at of Y.ticks) {
    draw(svg, "line", { class: "grid", x1: left, x2: width - right, y1: Y.place(at), y2: Y.place(at) });
    draw(svg, "text", { x: left - 6, y: Y.place(at) + 4, "text-anchor": "end" }, spec.yTick(at));
  }
  let lastLabel = -Infinity;
  for (const at of X.ticks) {
    const label = spec.xTick(at), room = 7 * label.length + 6;
    draw(svg, "line", { class: "grid", x1: X.place(at), x2: X.place(at), y1: top, y2: height - bottom });
    if (X.place(at) - lastLabel < room) continue;
    lastLabel = X.place(at);
    draw(svg, "text", { x: X.place(at), y: height - bottom + 17, "text-anchor": "middle" }, label);
  }
  draw(svg, "path", { class: "frame", fill: "none", d: `M${left} ${top}V${height - bottom}H${width - right}` });
  draw(svg, "text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, spec.xName);
  for (const line of spec.lines) {
    const d = line.map((p, i) => `${i ? "L" : "M"}${X.place(p.x).toFixed(1)} ${Y.place(p.y).toFixed(1)}`).join("");
    draw(svg, "path", { d, fill: "none", stroke: colourOf(line[0].colour), "stroke-width": 1.5, opacity: spec.lines.length > 40 ? 0.45 : 0.9 });
  }
  for (const limit of spec.limits) {
    draw(svg, "line", { class: "limit", x1: left, x2: width - right, y1: Y.place(limit.y), y2: Y.place(limit.y) });
    draw(svg, "text", { x: width - right - 2, y: Y.place(limit.y) - 4, "text-anchor": "end" }, limit.name);
  }
  const small = spec.points.length > 1500 ? 2.2 : spec.points.length > 300 ? 3 : 4;
  for (const p of spec.points) {
    const picked = p.cell === state.pick;
    draw(svg, "circle", { cx: X.place(p.x).toFixed(1), cy: Y.place(p.y).toFixed(1), r: picked ? 6 : small, fill: colourOf(p.colour), "fill-opacity": p.faint && !picked ? 0.35 : 1, class: picked ? "big" : "", "data-cell": p.cell });
  }
  for (const p of spec.crosses) {
    const x = X.place(p.x), y = height - bottom - 7;
    draw(svg, "path", { d: `M${x - 4} ${y - 4}L${x + 4} ${y + 4}M${x - 4} ${y + 4}L${x + 4} ${y - 4}`, stroke: colourOf(p.colour), "stroke-width": 1.8, "data-cell": p.cell });
  }
}
function drawCurves(cells) {
  const y = D.measures[state.y], axis = D.axes[state.x], column = D.measure[state.y];
  const groups = new Map(), crosses = new Map();
  for (const cell of cells) {
    const x = axis.values[D.axis[state.x][cell]];
    if (x === null) continue;
    const key = D.axes.map((other, k) => (k === state.x || seeds.has(other.name) ? "" : D.axis[k][cell])).join();
    if (column[cell] === null) { if (D.status[cell]) crosses.set(key + ":" + x, { x, cell, colour: colourIndex(cell) }); continue; }
    if (!groups.has(key)) groups.set(key, new Map());
    const points = groups.get(key);
    if (!points.has(x)) points.set(x, { x, sum: 0, count: 0, cell, colour: colourIndex(cell) });
    const point = points.get(x);
    point.sum += column[cell]; point.count += 1;
    if (cell === state.pick) point.cell = cell;
  }
  const lines = [...groups.values()].map((points) => [...points.values()].sort((a, b) => a.x - b.x));
  for (const p of lines.flat()) p.y = p.sum / p.count;
  const limits = [];
  if (y.name === "attainment") limits.push({ y: D.target, name: `target ${100 * D.target} %` });
  else for (const limit of D.slo[y.name.split("_")[0]] || []) if (y.unit === "s") limits.push({ y: limit, name: "SLO " + shown(limit, "s") });
  const points = lines.flat(), high = Math.max(...points.slice(0, 20000).map((p) => p.y), 0);
  const ms = y.unit === "s" && high < 10, share = y.unit === "share" && high <= 1;
  plot($("curves"), {
    name: y.name + " along " + axis.name, points, lines, crosses: [...crosses.values()], limits, logY: !share, logX: isGeometric(axis.values.filter((v) => v !== null)),
    percent: share, yTick: (v) => (y.unit === "share" ? number(100 * v) + " %" : y.unit === "s" ? (ms ? number(+(1000 * v).toPrecision(10)) + " ms" : number(v) + " s") : number(v)),
    xTick: number, xName: axis.name + (axis.unit ? ` (${axis.unit})` : ""),
  });
}
function drawPareto(cells) {
  const tpot = D.measure[measureAt.get("tpot_p50_s")], gpu = D.measure[measureAt.get("output_throughput_per_gpu_tps")];
  const points = [];
  if (tpot && gpu) for (const cell of cells) if (tpot[cell] > 0 && gpu[cell] !== null) points.push({ x: 1 / tpot[cell], y: gpu[cell], cell, colour: colourIndex(cell), faint: true });
  const fronts = new Map();
  for (const p of [...points].sort((a, b) => b.x - a.x || b.y - a.y)) {
    const front = fronts.get(p.colour) || [];
    if (!front.length || p.y > front[front.length - 1].y) { front.push(p); p.faint = false; }
    fronts.set(p.colour, front);
  }
  plot($("pareto"), { name: "throughput per GPU against tokens per second of a user", points, lines: [...fronts.values()], crosses: [], limits: [], zeroX: true, yTick: number, xTick: number, xName: "tokens/s of a user; up: output tokens/s per GPU" });
}

// ---------------------------------------------------------------------------------------------------------- tables

function columns() {
  const own = ["attainment", "ttft_p99_s", "tpot_p99_s", "output_throughput_tps"].concat(D.measures[state.y].name, state.extra || []);
  const found = [{ name: "cell_id", of: (cell) => D.id[cell], show: text, text: true }];
  D.axes.forEach((axis, k) => found.push({ name: axis.name, of: (cell) => axisValue(k, cell), show: text, text: !axis.number }));
  for (const name of [...new Set(own)]) if (measureAt.has(name)) {
    const unit = D.measures[measureAt.get(name)].unit;
    found.push({ name, of: (cell) => measure(name, cell), show: (value) => shown(value, unit), text: false });
  }
  if (D.status.some((status) => status)) found.push({ name: "status", of: (cell) => (D.status[cell] ? `${D.statuses[D.status[cell]]}: ${D.errors[D.error[cell]]}` : "ok"), show: text, text: true, long: true });
  return found;
}
function drawTable(cells) {
  const all = columns();
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) cells = cells.filter((cell) => { const line = (D.id[cell] + " " + D.axes.map((axis, k) => text(axisValue(k, cell))).join(" ")).toLowerCase().split(" "); return words.every((word) => line.some((part) => (isNaN(word) ? part.includes(word) : part === word))); });
  const by = all.find((column) => column.name === state.sort);
  if (by) {
    const sign = state.down ? -1 : 1;
    cells = [...cells].sort((a, b) => { const u = by.of(a), v = by.of(b); if (u === null || v === null) return (u === null) - (v === null); return u < v ? -sign : u > v ? sign : a - b; });
  }
  const head = $("cells").tHead, body = $("cells").tBodies[0];
  head.textContent = ""; body.textContent = "";
  const row = head.insertRow();
  for (const column of all) {
    const th = element("th", undefined, { class: column.text ? "text" : "", scope: "col", "aria-sort": column === by ? (state.down ? "descending" : "ascending") : "none" });
    const button = element("button", column.name + (column === by ? (state.down ? " \u2193" : " \u2191") : ""), { type: "button", title: (D.definitions[column.name] || {}).definition || "" });
    button.onclick = () => { state.down = state.sort === column.name ? !state.down : !column.text; state.sort = column.name; render(); };
    th.appendChild(button); row.appendChild(th);
  }
  for (const cell of cells.slice(0, state.rows)) {
    const tr = body.insertRow();
    tr.dataset.cell = cell;
    if (cell === state.pick) tr.className = "pick";
    for (const column of all) { const td = tr.insertCell(); td.textContent = column.show(column.of(cell)); td.className = (column.text ? "text" : "") + (column.long ? " long" : ""); }
  }
  $("rows").textContent = `${Math.min(state.rows, cells.length).toLocaleString("en")} of ${cells.length.toLocaleString("en")} cells`;
  $("more").hidden = cells.length <= state.rows;
}
function drawDetail() {
  const box = $("detail");
  box.hidden = state.pick === null;
  if (box.hidden) return;
  const cell = state.pick, list = box.querySelector("dl");
  box.querySelector("h2").textContent = "Cell " + D.id[cell] + (D.status[cell] ? ` \u2013 ${D.statuses[D.status[cell]]}: ${D.errors[D.error[cell]]}` : "");
  list.textContent = "";
  D.axes.forEach((axis, k) => {
    const chip = element("button", text(axisValue(k, cell)), { class: "chip", type: "button", "aria-pressed": state.only[k].has(D.axis[k][cell]) });
    chip.onclick = () => toggle(k, D.axis[k][cell]);
    line(list, axis.name, chip);
  });
  D.measures.forEach((m, k) => { if (D.measure[k][cell] !== null) line(list, m.name, shown(D.measure[k][cell], m.unit)); });
}
function line(list, name, value) {
  const div = element("div"), dd = element("dd");
  div.appendChild(element("dt", name, { title: (D.definitions[name] || {}).definition || "" }));
  if (typeof value === "string") dd.textContent = value; else dd.appendChild(value);
  div.appendChild(dd); list.appendChild(div);
}

// --------------------------------------------------------------------------------------------------------- choosing

function toggle(k, index) {
  const set = state.only[k];
  if (set.has(index)) set.delete(index); else set.add(index);
  state.rows = PAGE;
  render();
}
function drawAxes() {
  const box = $("axes");
  box.textContent = "";
  D.axes.forEach((axis, k) => {
    const row = element("div", undefined, { class: "axis" });
    row.appendChild(element("b", axis.name, { title: (D.definitions[axis.name] || {}).definition || "" }));
    axis.values.forEach((value, index) => {
      const chip = element("button", text(value), { class: "chip", type: "button", "aria-pressed": state.only[k].has(index), "data-axis": axis.name });
      chip.onclick = () => toggle(k, index);
      row.appendChild(chip);
    });
    box.appendChild(row);
  });
}
function drawLegend() {
  const box = $("legend");
  box.textContent = "";
  if (state.colour === null) return;
  const axis = D.axes[state.colour];
  axis.values.forEach((value, index) => {
    const chip = element("button", undefined, { class: "chip", type: "button", "aria-pressed": state.only[state.colour].has(index) });
    chip.append(element("i", undefined, { style: `background:${colourOf(index)}` }), element("span", axis.number ? `${axis.name} ${text(value)}` : text(value)));
    chip.onclick = () => toggle(state.colour, index);
    box.appendChild(chip);
  });
}
function render() {
  const cells = visible();
  $("left").textContent = `${cells.length.toLocaleString("en")} of ${N.toLocaleString("en")} cells chosen.`;
  $("clear").hidden = cells.length === N && !state.only.some((set) => set.size);
  drawAxes(); drawCurves(cells); drawPareto(cells); drawLegend(); drawDetail(); drawTable(cells);
}
function pick(cell) { state.pick = state.pick === cell ? null : cell; render(); }
function options(select, names, chosen) {
  names.forEach(([value, name]) => select.appendChild(element("option", name, { value })));
  if (chosen !== undefined) select.value = String(chosen);
}
function tip(event) {
  const mark = event.target.closest && event.target.closest("[data-cell]"), box = $("tip");
  if (!mark || mark.tagName === "TR") { box.style.visibility = "hidden"; return; }
  const cell = +mark.dataset.cell;
  box.textContent = "";
  box.appendChild(element("b", D.id[cell]));
  D.axes.forEach((axis, k) => { if (axisValue(k, cell) !== null) box.appendChild(element("div", `${axis.name} ${text(axisValue(k, cell))}`)); });
  if (D.status[cell]) box.appendChild(element("div", `${D.statuses[D.status[cell]]}: ${D.errors[D.error[cell]]}`));
  for (const name of [...new Set([D.measures[state.y].name, "attainment", "ttft_p99_s", "tpot_p99_s"])]) {
    if (measureAt.has(name) && measure(name, cell) !== null) box.appendChild(element("div", `${name} ${shown(measure(name, cell), D.measures[measureAt.get(name)].unit)}`));
  }
  const spot = mark.getBoundingClientRect(), room = document.documentElement.clientWidth;
  box.style.left = Math.max(4, Math.min(spot.left + 12, room - box.offsetWidth - 8)) + window.scrollX + "px";
  box.style.top = Math.max(window.scrollY + 4, spot.top + window.scrollY - box.offsetHeight - 10) + "px";
  box.style.visibility = "visible";
}

// ------------------------------------------------------------------------------------------------------------ start

function fill() {
  $("name").textContent = D.name; $("verdict").textContent = D.verdict; $("counts").textContent = D.counts;
  if (D.warning) { $("warning").textContent = D.warning; $("warning").hidden = false; }
  $("best-title").textContent = D.bestTitle;
  const head = $("best").createTHead().insertRow(), body = $("best").createTBody();
  D.bestColumns.forEach(([name, kind]) => head.appendChild(element("th", name, { class: kind })));
  D.best.forEach((row) => { const tr = body.insertRow(); row.forEach((value, i) => { const td = tr.insertCell(); td.textContent = value; td.className = D.bestColumns[i][1]; }); });
  $("toml").textContent = D.toml; $("file").textContent = D.file; $("command").textContent = `servesweep run ${D.file}`;
  for (const [box, facts] of [["facts", D.facts], ["fixed", D.fixed]]) facts.forEach(([name, value]) => line($(box), name, text(value)));
  const table = document.querySelector("#definitions table"), top = table.createTHead().insertRow();
  for (const name of ["column", "unit", "definition"]) top.appendChild(element("th", name, { class: "text" }));
  const rows = table.createTBody();
  for (const [name, about] of Object.entries(D.definitions)) { const tr = rows.insertRow(); for (const value of [name, about.unit, about.definition]) { const td = tr.insertCell(); td.textContent = value; td.className = "text"; } tr.lastChild.className = "text long"; }
  const numeric = D.axes.map((axis, k) => [k, axis.name]).filter(([k]) => D.axes[k].number && !seeds.has(D.axes[k].name));
  state.y = measureAt.has("attainment") ? measureAt.get("attainment") : 0;
  state.x = axisAt.has(RATE) ? axisAt.get(RATE) : numeric.length ? numeric[0][0] : 0;
  const first = ["system", "policy", "router"].find((name) => axisAt.has(name));
  const other = D.axes.findIndex((axis, k) => k !== state.x && !seeds.has(axis.name));
  state.colour = first ? axisAt.get(first) : other >= 0 ? other : null;
  options($("y"), D.measures.map((m, k) => [k, m.name]), state.y);
  options($("x"), numeric.length ? numeric : [[state.x, D.axes[state.x].name]], state.x);
  options($("colour"), [["", "nothing"], ...D.axes.map((axis, k) => [k, axis.name])], state.colour === null ? "" : state.colour);
  options($("add"), [["", "add ..."], ...D.measures.map((m) => [m.name, m.name])]);
  $("y").onchange = (event) => { state.y = +event.target.value; render(); };
  $("x").onchange = (event) => { state.x = +event.target.value; render(); };
  $("colour").onchange = (event) => { state.colour = event.target.value === "" ? null : +event.target.value; render(); };
  $("add").onchange = (event) => { state.extra = event.target.value || null; render(); };
  $("find").oninput = (event) => { state.find = event.target.value; state.rows = PAGE; drawTable(visible()); };
  $("more").onclick = () => { state.rows += 4 * PAGE; drawTable(visible()); };
  $("clear").onclick = () => { state.only.forEach((set) => set.clear()); render(); };
  document.addEventListener("click", (event) => { const mark = event.target.closest("[data-cell]"); if (mark) pick(+mark.dataset.cell); });
  document.addEventListener("mouseover", tip);
  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => { if (width !== document.documentElement.clientWidth) { width = document.documentElement.clientWidth; render(); } });
  render();
}
fill();
