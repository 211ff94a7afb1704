// Draws a report: `draw(data)` builds the page from the data that observe/report.py gathers, or live.js, and from what the reader
// chose.
"use strict";

const AXES = ["time", "samples", "steps", "rounds", "bytes"];
const DASHES = [[], [9, 4], [3, 3], [12, 4, 3, 4]];
const KINDS = {c: "computing", w: "waiting for others", e: "exchanging: push, fold, pull", " ": "gone, or nothing recorded"};
const CLASSES = {c: "compute", w: "wait", e: "exchange", " ": "none"};
const COLUMNS = 900; // of a lane
const EDGE = 1e30; // values beyond are drawn here
const BINS = 64;
const LOWER = /^(?!neg_).*(loss|error|mse|mae|perplexity|nll)/i; // as in observe/summary.py: these fall by orders of magnitude

const view = {axis: "time", zoom: null, hidden: new Set(), log: Object.create(null), middle: false}; // what the reader chose
let page = null; // the data, the scale of x, and the charts that are shown

// Elements, numbers

function h(tag, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(tag) && "http://www.w3.org/2000/svg";
  const element = svg ? document.createElementNS(svg, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false)); // strings become text: inert
  return element;
}

function format(value, digits = 4) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e9)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return value.toLocaleString("en", {maximumSignificantDigits: digits});
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const colour = (k) => `--s${k % 10}`;
const dash = (k) => DASHES[(k + Math.floor(k / 10)) % DASHES.length];

// A strategy's name after a square of its colour; long names may break between their parts.
function named(k) {
  const parts = page.data.strategies[k].name.split(/(?=\()|(?<=_)/);
  return h("span", {class: "name"}, h("i", {style: `background: var(${colour(k)})`}),
    h("span", {}, parts.map((part) => [h("wbr"), part])));
}

const unbroken = (head) => head.replace(/, (?=\w$)/, ",\u00a0"); // a unit stays beside what it is of

function table(heads, rows, name) {
  return h("div", {class: "scroll", id: name, tabindex: 0, role: "region", "aria-label": name}, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", {scope: "col"}, unbroken(head))))), h("tbody", {}, rows)));
}

// The horizontal axis

function byteUnit(n) {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log10(n || 1) / 3)));
  return {size: 1000 ** power, name: ["B", "kB", "MB", "GB", "TB"][power]};
}

// The unit in which `axis` is shown: its size and the axis's name.
function unit(axis, longest, clock) {
  if (axis === "time") {
    const [size, name] = longest < 600 ? [1, "s"] : longest < 3 * 3600 ? [60, "min"] : [3600, "h"];
    return {size, name: `${clock}, ${name}`, short: name};
  }
  if (axis === "bytes") {
    const {size, name} = byteUnit(longest);
    return {size, name: `bytes exchanged, ${name}`, short: name};
  }
  return {size: 1, name: {steps: "local steps of all workers", rounds: "rounds (versions)"}[axis] ?? axis, short: axis};
}

// `to` at `x`, where `from` is ascending: linear between the points.
function at(from, to, x) {
  let [low, high] = [0, from.length - 1];
  if (x >= from[high]) return to[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= x) low = middle;
    else high = middle;
  }
  const width = from[high] - from[low];
  return width > 0 ? to[low] + (to[high] - to[low]) * Math.max(0, x - from[low]) / width : to[low];
}

function along(strategy, time) {
  const {spent} = page.data.strategies[strategy];
  return (view.axis === "time" ? time : at(spent.time, spent[view.axis], time)) / page.x.size;
}

function zoom(range) {
  if (range) range = [Math.max(0, range[0]), Math.min(page.x.high, range[1])];
  view.zoom = range && range[1] - range[0] > 1e-6 * page.x.high ? range : null;
  const [min, max] = view.zoom ?? [0, page.x.high];
  for (const chart of page.charts) chart.setScale("x", {min, max});
  for (const reset of document.querySelectorAll(".reset")) reset.disabled = !view.zoom;
  document.querySelector("#lanes")?.replaceWith(lanes(page.data.lanes));
}

// Curves

function controls() {
  const names = {time: page.data.clock, samples: "samples", steps: "steps", rounds: "rounds", bytes: "bytes"};
  const choose = (axis) => Object.assign(view, {axis, zoom: null}) && draw(page.data);
  return h("div", {class: "controls"},
    h("fieldset", {}, h("legend", {}, "Curves over"), AXES.map((axis) => h("label", {},
      h("input", {type: "radio", name: "axis", id: `axis-${axis}`, checked: axis === view.axis, onchange: () => choose(axis)}),
      names[axis]))),
    h("button", {type: "button", class: "reset", id: "reset", disabled: !view.zoom, onclick: () => zoom(null)}, "Whole run"),
    h("span", {class: "small"}, "Drag over a curve to zoom, double-click to go back. Keys: arrows, + and −, 0."
      + (page.data.strategies.length > 1 ? " A name beside a figure hides its curve." : "")));
}

function toggle(k) {
  if (!view.hidden.delete(k)) view.hidden.add(k);
  for (const button of document.querySelectorAll(`.legend [data-s="${k}"]`)) {
    button.setAttribute("aria-pressed", String(!view.hidden.has(k)));
  }
  for (const chart of page.charts) {
    chart.lines.forEach((line, i) => line.strategy === k && chart.setSeries(i + 1, {show: !view.hidden.has(k)}));
  }
}

// A line's points; what a logarithmic axis cannot show breaks the line.
function points(line, log) {
  const shown = (y) => y == null || (log && y <= 0) ? null : Math.max(log ? 1 / EDGE : -EDGE, Math.min(EDGE, y));
  return [line.time.map((time) => along(line.strategy, time)), line.y.map(shown)];
}

function range(low, high, target, log) {
  if (target != null && (target > 0 || !log)) [low, high] = [Math.min(low ?? target, target), Math.max(high ?? target, target)];
  if (low == null) return log ? [0.1, 1] : [0, 1];
  if (log) return [low / 1.1, high * 1.1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= 1e-9 * size || size < 1e-24) return size < 1e-24 ? [-1, 1] : [low - size / 10, high + size / 10];
  return uPlot.rangeNum(low, high, 0.05, false);
}

// Powers of ten, or 1, 2, 5 times them if there is room.
function decades(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.ceil((last - first) / 7);
  const values = Array.from({length: Math.floor((last - first) / step) + 1}, (_, k) => 10 ** (first + k * step));
  return values.flatMap((one) => (last - first <= 3 ? [one, 2 * one, 5 * one] : [one])).filter((one) => one >= low && one <= high);
}

// Points without a neighbour on either side are dots: no line goes through them.
function alone(chart, series, show) {
  const ys = chart.data[series].map((y, i) => [y, i]).filter(([y]) => y !== undefined);
  if (show) return ys.map(([, i]) => i);
  return ys.filter(([y], k) => y != null && ys[k - 1]?.[0] == null && ys[k + 1]?.[0] == null).map(([, i]) => i);
}

function marks(chart, {target, lines}, log) {
  const {ctx, bbox} = chart;
  const place = (axis, value) => chart.valToPos(value, axis, true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (target != null && (target > 0 || !log)) {
    ctx.beginPath();
    ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.strokeStyle = css("--ink");
    ctx.moveTo(bbox.left, place("y", target));
    ctx.lineTo(bbox.left + bbox.width, place("y", target));
    ctx.stroke();
  }
  for (const {strategy, dot} of lines) {
    if (!dot || dot[1] == null || view.hidden.has(strategy)) continue;
    ctx.beginPath();
    ctx.fillStyle = css(colour(strategy));
    ctx.arc(place("x", along(strategy, dot[0])), place("y", dot[1]), 5 * devicePixelRatio, 0, 7);
    ctx.fill();
  }
  ctx.restore();
}

// The lines' names as buttons that switch them, in the order in which they end; the values are those at the cursor.
function legend(lines) {
  const last = (line) => line.y.findLast((y) => y != null);
  const place = h("div", {class: "legend-head"});
  const values = new Map(lines.map((line) => [line, h("b")]));
  const entries = [...lines].sort((one, other) => last(other) - last(one)).map((line) => {
    const k = line.strategy;
    const stroke = h("path", {d: "M0 4H30", stroke: `var(${colour(k)})`, "stroke-dasharray": dash(k).join(" ")});
    return h("button", {type: "button", "data-s": k, "aria-pressed": String(!view.hidden.has(k)), title: "show or hide",
      onclick: () => toggle(k)}, h("svg", {class: "sample", viewBox: "0 0 30 8"}, stroke), named(k), values.get(line));
  });
  const value = (chart, index, i) => {
    const near = chart.cursor.idxs[i + 1];
    if (near == null) return "–";
    const ended = along(lines[i].strategy, lines[i].time.at(-1)) < chart.data[0][index] && !page.data.live;
    return format(chart.data[i + 1][near]) + (ended ? " (ended)" : "");
  };
  const alone = page.data.strategies.length === 1;
  const show = (chart) => {
    const index = chart?.cursor.left >= 0 ? chart.cursor.idx : null;
    const at = index == null ? (page.data.live ? "now" : "at the end") : `at ${format(chart.data[0][index])} ${page.x.short}`;
    const told = lines.map((line, i) => (index == null ? line.end : value(chart, index, i)));
    place.textContent = alone ? `${at}: ${told[0]}` : at;
    lines.forEach((line, i) => values.get(line).textContent = told[i]);
  };
  show();
  return [alone ? place : h("div", {class: "legend"}, place, entries), show];
}

function keys(chart) {
  const [min, max] = [chart.scales.x.min, chart.scales.x.max];
  const {width, height} = chart.over.getBoundingClientRect();
  const left = chart.cursor.left >= 0 ? chart.cursor.left : width / 2;
  const move = (to) => chart.setCursor({left: Math.max(0, Math.min(width - 1, to)), top: height / 2});
  const middle = chart.posToVal(left, "x");
  const to = (factor) => zoom([middle - (middle - min) * factor, middle + (max - middle) * factor]);
  return {
    ArrowLeft: () => move(left - width / 100), ArrowRight: () => move(left + width / 100), Home: () => move(0),
    End: () => move(width), "+": () => to(0.5), "=": () => to(0.5), "-": () => to(2), 0: () => zoom(null),
    Escape: () => chart.setCursor({left: -10, top: -10}),
  };
}

function figure(one) {
  if (!one.lines.length) return h("p", {class: "empty"}, one.caption);
  const ys = one.lines.flatMap((line) => line.y).filter((y) => y != null);
  const [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
  const log = view.log[one.name] ?? (LOWER.test(one.name) && low > 0 && Math.log10(high / low) > 1.5);
  const [names, show] = legend(one.lines);
  const plot = h("div", {class: "plot", tabindex: 0, role: "img", "aria-label": `${one.name} over ${page.x.name}`});
  const axis = {stroke: () => css("--soft"), font: "12px system-ui, sans-serif", ticks: {show: false},
    grid: {stroke: () => css("--grid"), width: 1}, values: (_, splits) => splits.map((v) => (v == null ? "" : format(v, 6)))};
  const chart = new uPlot({
    width: 600, height: 320, legend: {show: false}, padding: [8, 16, 0, 0],
    scales: {
      x: {time: false, range: () => view.zoom ?? [0, page.x.high]},
      y: {distr: log ? 3 : 1, range: (_, min, max) => range(min, max, one.target, log)},
    },
    axes: [{...axis, label: page.x.name, labelFont: "13px system-ui, sans-serif", labelSize: 22, size: 30},
      {...axis, size: 64, ...(log && {splits: (_u, _i, min, max) => decades(min, max), filter: (_, splits) => splits})}],
    series: [{}, ...one.lines.map(({strategy}) => ({label: page.data.strategies[strategy].name, show: !view.hidden.has(strategy),
      stroke: () => css(colour(strategy)), width: 2, dash: dash(strategy), points: {size: 5, filter: alone}}))],
    cursor: {y: false, sync: {key: "report", setSeries: false}, drag: {setScale: false}, bind: {dblclick: () => () => zoom(null)}},
    hooks: {
      draw: [(u) => marks(u, one, log)],
      setCursor: [show],
      setSelect: [(u) => {
        const {left, width} = u.select;
        if (width > 3) zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
        u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
      }],
    },
  }, uPlot.join(one.lines.map((line) => points(line, log))), plot);
  Object.assign(chart, {lines: one.lines, small: one.small, log, told: () => show(chart)});
  page.charts.push(chart);
  page.watch.observe(plot);
  plot.chart = chart;
  plot.onmousedown = (event) => { // a drag may begin beside the curves
    const {left, right, top} = chart.over.getBoundingClientRect();
    if (chart.over.contains(event.target)) return;
    const clientX = Math.max(left, Math.min(right - 1, event.clientX));
    chart.over.dispatchEvent(new MouseEvent("mousedown", {clientX, clientY: top + 1, button: event.button}));
  };
  plot.onkeydown = (event) => {
    const act = !event.ctrlKey && !event.metaKey && !event.altKey && keys(chart)[event.key];
    if (act) event.preventDefault(act());
  };
  const choose = (event) => (view.log[one.name] = event.target.checked, draw(page.data));
  const single = page.data.strategies.length === 1;
  const goal = one.target != null && h("span", {class: "key"}, `target ${format(one.target, 6)}`);
  return h("figure", {},
    h("div", {class: "y-name"}, h("b", {}, one.name), goal, h("label", {},
      h("input", {type: "checkbox", checked: Boolean(log), id: `log-${one.name}`, onchange: choose}), "log scale"), single && names),
    h("div", {class: "chart"}, plot, !single && names), h("figcaption", {}, one.caption,
      view.axis === "bytes" && " The bytes of a run are spread evenly over its steps."));
}

// Lanes, staleness

function ticks(low, high, least = 0) {
  const raw = Math.max(least, (high - low) / 7);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999) ?? 1;
  return Array.from({length: Math.floor(high / step + 1e-6) - Math.ceil(low / step - 1e-6) + 1},
    (_, k) => (Math.ceil(low / step - 1e-6) + k) * step);
}

function under(low, high, name, place = (value) => (value - low) / (high - low), least = 0) {
  return h("div", {class: "row"}, h("span"), h("div", {class: "under"}, ticks(low, high, least).map((value, k) => h("span",
    {class: k % 2 ? "minor" : false, style: `left: ${100 * place(value)}%`}, format(value))),
  h("span", {class: "x-name"}, name)), h("span"));
}

function lane(letters, from, width) {
  const paths = {};
  for (const run of letters.matchAll(/(.)\1*/g)) paths[run[1]] = `${paths[run[1]] ?? ""}M${run.index} 1h${run[0].length}`;
  const shapes = Object.entries(paths).map(([kind, d]) => kind !== " " && h("path", {class: CLASSES[kind], d}));
  return h("svg", {class: "lane", viewBox: `${from} 0 ${width} 2`, preserveAspectRatio: "none"}, shapes);
}

function lanes({window_s, caption, groups}) {
  if (!groups.length) return h("p", {id: "lanes", class: "empty"}, "No timeline was recorded.");
  const {size, name} = unit("time", page.longest_s, page.data.clock);
  const [low, high] = view.middle ? [0, window_s] : view.axis === "time" && view.zoom ? view.zoom : [0, page.longest_s / size];
  const seconds = page.data.lanes.window ?? `${format(window_s, 2)} s from the middle of ${page.data.strategies.length > 1 ? "each run" : "the run"}`;
  const letters = (row) => (view.middle ? row.middle : row.whole);
  const blank = groups.some(({rows}) => rows.some((row) => letters(row).split(" ").length - 1 > 0.02 * COLUMNS));
  const choose = (middle) => (view.middle = middle, draw(page.data));
  return h("figure", {id: "lanes"},
    h("div", {class: "controls"}, h("fieldset", {}, h("legend", {}, "Lanes of"), [false, true].map((middle) => h("label", {},
      h("input", {type: "radio", name: "lanes", id: `lanes-${middle}`, checked: middle === view.middle,
        onchange: () => choose(middle)}), middle ? seconds : "the whole run, zoomed with the curves over time")))),
    h("div", {class: "kinds"}, Object.keys(KINDS).map((kind) => (kind !== " " || blank) && h("span", {},
      h("i", {class: `k-${CLASSES[kind]}`}), KINDS[kind]))),
    groups.map((group) => h("div", {class: "lanes"},
      h("h3", {}, named(group.strategy), h("small", {}, group.about,
        view.middle && `; from ${format(group.start_s)} s`)),
      group.rows.map((row) => {
        const scale = view.middle ? COLUMNS / window_s : size * COLUMNS / group.end_s;
        return h("div", {class: "row"}, h("span", {}, `worker ${row.worker}`),
          lane(letters(row), low * scale, (high - low) * scale), h("span", {}, `${row.waiting} waiting`));
      }))),
    under(low, high, view.middle ? "seconds into the window" : name),
    h("figcaption", {}, "One lane a worker: shares of short intervals, not single steps. Right: waiting over the whole run. ", caption));
}

function panel(k, stale, limit, width, bins) {
  const rows = Object.entries(stale.by_worker).map(([name, byTau]) => {
    const counts = new Array(bins).fill(0);
    const pairs = Object.entries(byTau).map(([tau, n]) => [Number(tau), n]);
    for (const [tau, n] of pairs) counts[Math.min(Math.floor(tau / width), bins - 1)] += n;
    const total = pairs.reduce((sum, [, n]) => sum + n, 0);
    return {name, mean: pairs.reduce((sum, [tau, n]) => sum + tau * n, 0) / total, shares: counts.map((n) => n / total)};
  });
  const top = Math.max(...rows.flatMap(({shares}) => shares));
  const bar = (share, i) => (share ? `M${i + 0.1} 100V${100 - Math.max(2, 100 * share / top)}h.8V100z` : "");
  const place = (value) => (Math.floor(value / width) + 0.5) / bins; // the middle of its bar
  return h("div", {}, h("h3", {}, named(k), h("small", {}, `mean ${stale.mean.toFixed(2)}, max ${format(stale.max, 9)}`)),
    rows.map(({name, mean, shares}) => h("div", {class: "row"}, h("span", {}, name),
      h("svg", {class: "bars", viewBox: `0 0 ${bins} 100`, preserveAspectRatio: "none", style: `fill: var(${colour(k)})`},
        h("path", {d: shares.map(bar).join("")})), h("span", {}, `mean ${mean.toFixed(2)}`))),
    under(0, Math.max(1, (bins - 1) * width), "versions", place, 1));
}

function staleness(strategies) {
  const pick = (test) => strategies.map(({staleness: one, folded}, k) => [k, one, folded]).filter((entry) => test(...entry));
  const known = (stale) => Object.keys(stale.by_worker).length > 0;
  const names = (entries) => entries.map(([k]) => strategies[k].name).join(", ");
  const stale = pick((_, one) => one.max > 0 && known(one));
  const fresh = pick((_, one, folded) => one.max === 0 && folded > 0);
  const unknown = pick((_, one, folded) => !(one.max > 0 ? known(one) : folded > 0));
  const limit = Math.max(0, ...stale.map(([, one]) => Math.min(one.max, Math.max(8, Math.floor(one.p99 * 3 / 2)))));
  const width = Math.ceil((limit + 1) / BINS);
  const beyond = stale.some(([, one]) => one.max > limit) && ` The last bar holds all that is staler than ${format(limit)} too.`;
  return [h("h2", {}, "Staleness"),
    fresh.length > 0 && h("p", {}, `Every contribution was fresh (staleness 0): ${names(fresh)}.`),
    unknown.length > 0 && h("p", {class: "empty"}, `No staleness was recorded: ${names(unknown)}.`),
    stale.length > 0 && h("figure", {}, h("div", {class: "panels"},
      stale.map(([k, one]) => panel(k, one, limit, width, Math.floor(limit / width) + 1))),
    h("figcaption", {}, "Staleness of the folded contributions. A bar is a share of that worker's contributions (of all, where " +
      "there are many workers); heights compare within a strategy, the horizontal scale is the same for all.", beyond))];
}

// The page

function marked(count) {
  return count > 1 ? "Marked: those that tie for the soonest at the target." : count === 1 && "Marked: the soonest at the target.";
}

const line = (k, cells) => h("tr", {}, h("th", {scope: "row"}, named(k)), cells);

function comparison({heads, rows, best, notes}) {
  const cell = (text, row, column) => h("td",
    {class: column === 0 && (best[row] ? "best" : text.startsWith(">") && "never")}, text);
  const body = rows.map((texts, k) => line(k, texts.map((text, column) => cell(text, k, column))));
  const about = [marked(best.filter(Boolean).length), ...notes].filter(Boolean).join(" ");
  return [table(["strategy", ...heads], body, "costs"), about && h("p", {class: "small"}, about)];
}

function incidents({rows, more, lost, which = "later incidents"}) {
  if (!rows.length && !lost.length) return h("p", {class: "empty"}, "None: no worker died and nothing was lost.");
  const body = rows.map(([k, time, worker, what]) => line(k, [h("td", {}, time),
    h("td", {}, worker == null ? "–" : String(worker)), h("td", {class: "text"}, what)]));
  return [rows.length > 0 && table(["strategy", "time, s", "worker", "what"], body, "incidents"),
    lost.map((sentence) => h("p", {}, sentence)),
    more > 0 && h("p", {}, `${format(more, 9)} ${which} are not listed.`)];
}

function rowsOfTables(rows, servers) {
  const all = (heads, lines, id, words) => lines.length > 0 && [table(["strategy", ...heads],
    lines.map(([k, ...texts]) => line(k, texts.map((text) => h("td", {}, text)))), id), h("p", {class: "small"}, words)];
  const loads = servers.flatMap(([k, s, each]) => each.map((one, j) => [k, `${j}`, format(one.rows, 9), format(one.pulls, 9),
    `${format(s && 100 * one.busy_s / s, 2)}%`, `${format(one.pulls && 1000 * one.waited_s / one.pulls, 3)} ms`]));
  return rows.length > 0 && [h("h2", {}, "Rows of tables"),
    all(["table", "rows", "born", "stepped", "stale", "staleness, mean", "pulled", "pushed", "memory", "hot keys"], rows, "tables",
      "Stale: the share of steps at rows that others had stepped since the worker pulled them. Staleness: how far such a row " +
      "had gone on meanwhile, in steps of the table. Hot: pulled by most contributions, with their share (estimated)."),
    all(["server", "rows", "pulls", "computes", "wait, a pull"], loads, "servers",
      "Wait: until a pull's rows are there. Workers wait for the slowest server.")];
}

function context(rows) {
  const body = rows.map(([name, words]) => h("tr", {}, h("th", {scope: "row"}, name), h("td", {class: "text"}, words)));
  return rows.length > 0 && [h("h2", {}, "How it was run"), table(["what", "value"], body, "context")];
}

// All but the curves, which are changed in place. `more` makes what is shown below the table.
function around(data, more) {
  return {
    head: [h("h1", {}, data.title), h("p", {class: "finding"}, data.finding), data.setting && h("p", {class: "setting"}, data.setting),
      data.note && h("p", {class: "note"}, data.note)],
    ...(data.strategies.length && {
      costs: [comparison(data.table), more(), rowsOfTables(data.rows, data.row_servers)],
      lanes: [h("h2", {}, "Where the workers' time went"), lanes(data.lanes)],
      staleness: staleness(data.strategies),
      incidents: [h("h2", {}, data.lanes.window ? "Events" : "Incidents"), incidents(data.incidents)],
      context: context(data.context),
    }),
  };
}

const fill = (part, nodes) => part.replaceChildren(...[nodes].flat(9).filter(Boolean));

function scale(data) {
  const highest = (axis) => Math.max(0, ...data.strategies.map(({spent}) => spent[axis].at(-1)));
  const x = unit(view.axis, highest(view.axis), data.clock);
  return {data, longest_s: highest("time") || 1, x: {...x, high: (highest(view.axis) || 1) / x.size}};
}

function draw(data, more = page?.more ?? (() => [])) {
  const focused = document.activeElement?.id;
  page?.watch.disconnect();
  page?.charts.forEach((chart) => chart.destroy());
  const watch = new ResizeObserver((entries) => entries.forEach(({target, contentRect: {width}}) =>
    width && target.chart.setSize({width, height: target.chart.small ? 200 : width < 500 ? 260 : 320})));
  page = {...scale(data), watch, charts: [], more};
  const {learning} = data;
  const parts = Object.entries(around(data, more)).map(([id, nodes]) => {
    const part = h("section", {id: `part-${id}`});
    fill(part, nodes);
    return part;
  });
  if (data.strategies.length) parts.splice(2, 0, h("section", {}, h("h2", {}, "Learning"),
    learning.charts.some(({lines}) => lines.length) ? controls() : "", learning.charts.map(figure),
    learning.notes.map((note) => h("p", {class: "empty"}, note))));
  const report = document.querySelector("#report");
  report.classList.toggle("alone", data.strategies.length === 1);
  report.replaceChildren(...parts);
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.charts.forEach((chart) => chart.redraw()));
