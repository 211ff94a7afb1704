// The live page: gathers what the server sends of each run into the data that report.js draws, and keeps it within bounds.
"use strict";

const FORMAT = 1; // of records
const POINTS_MAX = 3000; // of what is kept of a run: then older ones are thinned
const DRAW_MS = 500;
const SILENT_S = 10;
const SHOWN_FIRST = 4; // runs under way that are shown at once
const WINDOW_S = 20;
const EVENTS_SHOWN = 50;
const CHARTS_MAX = 12;

const runs = new Map(); // the runs that are shown, by name
let listed = []; // all there are
let source = null;
let due = false, connected = true, chosen = false;
let said = "";
const wrote = new Map(); // when each run wrote last, by this browser's clock
let drawn = ""; // the shape of what is drawn

const empty = () => ({head: null, at: [], events: [], stale: {}, values: Object.create(null), logged: [], readers: {each: [], others: 0}, advice: "", ended: null, failed: false, gone: false});

function take(run, line) {
  if (line.kind === "head") run.head = line.format === FORMAT ? line : null;
  else if (line.kind === "stale") run.stale = line.by;
  else if (line.kind === "logged") run.logged = line.names;
  else if (line.kind === "readers") run.readers = line;
  else if (line.kind === "advice") run.advice = line.what;
  else if (line.kind === "end") Object.assign(run, {ended: line.why || "cut short", failed: line.failed});
  else if (line.kind === "event") { // of what the run does again and again, such as checkpoints, the last time
    const others = run.events.filter((one) => one.worker != null || one.what !== line.what);
    run.events = [...others, line].slice(-500);
  }
  else if (line.kind === "at") {
    run.at.push(line);
    for (const [name, value] of Object.entries(line.values)) {
      const curve = run.values[name] ??= {time: [], y: []};
      curve.time.push(line.t);
      curve.y.push(value);
      if (curve.time.length > POINTS_MAX) {
        const keep = kept(curve.time);
        for (const key of ["time", "y"]) curve[key] = curve[key].filter((_, k) => keep[k]);
      }
    }
    if (run.at.length > POINTS_MAX) {
      const keep = kept(run.at.map(({t}) => t));
      run.at = run.at.filter((_, k) => keep[k]);
    }
  }
}

// Which points to keep: the first, the newer third, and of the time before that the last in each of equal shares, as record.py does.
function kept(times) {
  const newer = Math.floor(times.length * 2 / 3);
  const width = 2 ** Math.ceil(Math.log2(times[newer] / (POINTS_MAX / 3)));
  return times.map((t, k) => !k || k >= newer || Math.floor(t / width) !== Math.floor(times[k + 1] / width));
}

// Letters of a lane: in each column the kind that is owed most time, as in the report.
function letters(run, worker, from, until) {
  const kinds = ["compute", "wait", "exchange"];
  const own = run.at.map((line) => [line.t, line.workers.find((one) => one[0] === worker)]).filter(([, one]) => one);
  if (own.length && own[0] && run.at[0].workers.some((one) => one[0] === worker)) own.unshift([0, [worker, "", 0, 0, 0, 0, 0, 0]]);
  if (own.length < 2) return " ".repeat(COLUMNS);
  const times = own.map(([t]) => t);
  const spent = kinds.map((_, k) => own.map(([, one]) => one[3 + k]));
  const width = (until - from) / COLUMNS;
  const credit = [0, 0, 0];
  let text = "";
  for (let column = 0; column < COLUMNS; column++) {
    const [low, high] = [from + column * width, from + (column + 1) * width];
    const shares = low >= times[0] - width && low < times.at(-1)
      ? spent.map((total) => Math.max(0, at(times, total, high) - at(times, total, low)) / width) : [0, 0, 0];
    const there = shares.reduce((a, b) => a + b);
    if (there < 0.25) { text += " "; continue; }
    shares.forEach((share, k) => credit[k] += share / there);
    const best = credit.reduce((top, one, k) => (shares[k] && (top < 0 || one > credit[top]) ? k : top), -1);
    credit[best] -= 1;
    text += "cwe"[best];
  }
  return text;
}

const percent = (share) => `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)}%`;
const rate = (run, from) => {
  const [first, last] = [run.at[Math.max(0, run.at.findIndex((one) => one.t >= from))], run.at.at(-1)];
  return last.t > first.t ? (last.steps - first.steps) / (last.t - first.t) : 0;
};

const span = (seconds) => {
  const [size, name] = [[86400, "days"], [3600, "hours"], [60, "minutes"]].find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${Math.round(seconds / size)} ${name}`;
};
const silentFor = (name) => (Date.now() - (wrote.get(name) ?? Date.now())) / 1000;

function state([name, run]) {
  if (run.gone) return "its folder is gone";
  if (run.failed) return "failed";
  if (run.ended) return run.ended === "finished" ? "finished" : `ended: ${run.ended.length > 60 ? `${run.ended.slice(0, 60)}...` : run.ended}`;
  if (silentFor(name) > SILENT_S) return `silent for ${span(silentFor(name))}`;
  const phase = run.head.phases?.[run.at.at(-1)?.phase ?? 0];
  return run.at.length ? `under way${phase ? ` in ${phase}` : ""}` : "starting";
}

// The names of all metrics; that of the target is the first.
function metricsOf(shown) {
  const target = shown[0]?.[1].head?.target?.[0];
  const names = [...new Set(shown.flatMap(([, run]) => Object.keys(run.values)))];
  return names.sort((one, other) => (other === target) - (one === target) || one.localeCompare(other));
}

function table_(shown) {
  const metrics = metricsOf(shown).slice(0, 2);
  const heads = ["state", "time, s", "version", "steps", "steps/s", "of ideal", "waiting", "staleness, mean (max)", "bytes", ...metrics];
  const rows = shown.map((one) => {
    const run = one[1], last = run.at.at(-1);
    if (!last) return [state(one), ...heads.slice(1).map(() => "–")];
    const all = last.workers.map((one) => [one[4], one[3] + one[4] + one[5]]);
    const [waited, total] = all.reduce(([a, b], [c, d]) => [a + c, b + d], [0, 0]);
    const {mean, max} = staleOf(run);
    const now = run.ended ? 0 : last.t - 5;
    return [state(one), format(last.t), format(last.version, 9), format(last.steps, 9), format(rate(run, now)),
      percent(last.ideal), percent(total ? waited / total : 0), `${mean.toFixed(2)} (${max})`, bytes(last.bytes),
      ...metrics.map((name) => format(run.values[name]?.y.at(-1)))];
  });
  const many = shown.some(([, run]) => run.at.at(-1)?.others) ? ["Waiting is that of the workers that are listed."] : [];
  return {heads, rows, best: [], notes: ["Steps/s of a run under way is that of the last five seconds.", ...many,
    ...new Set(shown.flatMap(([, run]) => run.head.notes))]};
}

const bytes = (n) => `${format(n / byteUnit(n).size, 3)} ${byteUnit(n).name}`;

function staleOf(run) {
  const pairs = Object.values(run.stale).flatMap((by) => Object.entries(by).map(([tau, n]) => [Number(tau), n]))
    .sort(([one], [other]) => one - other);
  const total = pairs.reduce((sum, [, n]) => sum + n, 0);
  let [sum, p99] = [0, 0];
  for (const [tau, n] of pairs) { if (sum < 0.99 * total) p99 = tau; sum += n; }
  const by_worker = Object.fromEntries(Object.entries(run.stale).map(([worker, by]) => [worker < 0 ? "all" : `worker ${worker}`, by]));
  return {mean: total ? pairs.reduce((s, [tau, n]) => s + tau * n, 0) / total : 0, p99, max: pairs.at(-1)?.[0] ?? 0, by_worker};
}

// The rows of each table.
function rowsOf(shown) {
  return shown.flatMap(([, run], k) => Object.entries(run.at.at(-1)?.rows ?? {}).map(([name, one]) => [k, name,
    ...[one.rows, one.born, one.stepped].map((count) => format(count, 9)), percent(one.stepped ? one.stale / one.stepped : 0),
    (one.stepped ? one.staleness_sum / one.stepped : 0).toFixed(2),
    ...[one.pulled_bytes, one.pushed_bytes, one.memory_bytes].map(bytes), one.hot]));
}

// Who is at what now: one row a worker.
function now(shown) {
  const rows = shown.flatMap(([, run], k) => run.ended || !run.at.length ? [] : run.at.at(-1).workers.map((one) => {
    const [worker, what, since, , , , steps, stale] = one;
    const last = run.at.at(-1);
    const whom = last.waited.filter((other) => other !== worker);
    const names = whom.length > 8 ? `${whom.length} workers` : `worker ${whom.join(", ")}`;
    const words = what === "compute" ? "computing" : what === "wait" ? `waiting${whom.length ? ` for ${names}` : ""}` : what;
    return h("tr", {}, h("th", {scope: "row"}, named(k)), h("td", {}, String(worker)), h("td", {class: "text"}, words),
      h("td", {}, Math.max(0, last.t - since).toFixed(2)),
      h("td", {}, format(steps, 9)), h("td", {}, String(stale)));
  }));
  const more = shown.map(([, run]) => run.ended ? 0 : run.at.at(-1)?.others ?? 0).reduce((a, b) => a + b, 0);
  return rows.length > 0 && [h("h2", {}, "What the workers are doing"),
    table(["run", "worker", "is", "for, s", "steps", "staleness of its last contribution"], rows, "now"),
    more > 0 && h("p", {class: "small"}, `${format(more, 9)} more workers are not listed.`)];
}

// Who only reads: one row a reader, while the run is under way.
function readers(shown) {
  const going = shown.map(([, run], k) => [k, run.ended ? {each: [], others: 0} : run.readers]);
  const rows = going.flatMap(([k, {each}]) => each.map(([name, version, behind, silent, sent]) => h("tr", {},
    h("th", {scope: "row"}, named(k)), h("td", {class: "text"}, name), h("td", {}, version < 0 ? "–" : format(version, 9)),
    h("td", {}, version < 0 ? "–" : format(behind, 9)), h("td", {}, silent.toFixed(1)), h("td", {}, bytes(sent)))));
  const more = going.reduce((sum, [, {others}]) => sum + others, 0);
  return rows.length > 0 && [h("h2", {}, "Who reads the run"),
    table(["run", "reader", "version", "behind", "silent, s", "was given"], rows, "readers"),
    h("p", {class: "small"}, "Behind: how many versions the run is ahead of what the reader took last. Silent: since it last asked for anything.",
      more > 0 && ` ${format(more, 9)} more readers are not listed.`)];
}

function buttons(shown) {
  return shown.map(([name, run], k) => !run.ended && run.at.length > 0 && h("div", {class: "controls ask"}, shown.length > 1 && named(k),
    h("button", {type: "button", id: `stop-${k}`, onclick: () => ask(name, "stop", "Stop this run? Its result so far is kept.")}, "Stop"),
    h("button", {type: "button", id: `checkpoint-${k}`, disabled: !run.head?.keeps,
      title: run.head?.keeps ? "" : "the run keeps no checkpoints", onclick: () => ask(name, "checkpoint")}, "Checkpoint"),
    (run.head?.phases ?? []).map((phase, place) => h("button", {type: "button", id: `switch-${k}-${place}`,
      disabled: place === (run.at.at(-1).phase ?? 0), title: place === (run.at.at(-1).phase ?? 0) ? "the run is in this phase" : "",
      onclick: () => ask(name, `switch-${place}`)}, `Switch to ${phase}`))));
}

const advised = (shown) => shown.map(([, run], k) => !run.ended && run.advice && h("p", {class: "advice"}, shown.length > 1 && [named(k), ": "], run.advice));

async function ask(name, what, sure) {
  if (sure && !confirm(sure)) return;
  const answer = await fetch(`ask?run=${encodeURIComponent(name)}&what=${what}`, {method: "POST"}).catch(() => null);
  const heard = silentFor(name) > SILENT_S ? " It has been silent: there may be nobody to hear it." : "";
  said = answer?.ok ? `${name}: asked for ${{stop: "its end", checkpoint: "a checkpoint"}[what] ?? "another phase"}.${heard}` : `${name}: ${answer ? await answer.text() : "the server does not answer"}.`;
  plan();
}

function gathered() {
  const shown = [...runs].filter(([, run]) => run.head);
  const twice = (strategy) => shown.filter(([, run]) => run.head.strategy === strategy).length > 1;
  const strategies = shown.map(([name, run]) => {
    const last = run.at.at(-1);
    const spent = {time: [0], samples: [0], steps: [0], rounds: [0], bytes: [0]};
    for (const line of run.at) {
      spent.time.push(line.t);
      for (const key of ["samples", "steps", "bytes"]) spent[key].push(line[key]);
      spent.rounds.push(line.version);
    }
    const label = twice(run.head.strategy) ? `${run.head.strategy} ${name}` : run.head.strategy;
    return {name: label, wall_s: last?.t ?? 0, folded: last?.version ?? 0, spent, staleness: staleOf(run)};
  });
  const names = metricsOf(shown);
  const target = shown[0]?.[1].head.target;
  const more = names.length - CHARTS_MAX;
  const charts = names.slice(0, CHARTS_MAX).map((name) => ({
    name, target: target?.[0] === name ? target[1] : null, small: names.length > 3,
    caption: shown.some(([, run]) => run.logged.includes(name)) ? `${name} as the workers logged it: the mean over all workers' last steps.`
      : `${name}, from evaluate().`,
    lines: shown.flatMap(([, {values}], k) => values[name]?.y.some((y) => y != null)
      ? [{strategy: k, ...values[name], end: format(values[name].y.at(-1)), dot: null}] : []),
  })).filter(({lines}) => lines.length);
  const groups = shown.flatMap(([, run], k) => run.at.length < 2 ? [] : [{
    strategy: k, start_s: Math.max(0, run.at.at(-1).t - WINDOW_S), end_s: run.at.at(-1).t,
    about: `waiting ${table_([["", run]]).rows[0][6]}${run.at.at(-1).others ? `; ${format(run.at.at(-1).others)} more workers` : ""}`,
    rows: run.at.at(-1).workers.map((one) => {
      const end = run.at.at(-1).t;
      const there = one[3] + one[4] + one[5];
      return {worker: one[0], waiting: percent(there ? one[4] / there : 0),
        whole: view.middle ? "" : letters(run, one[0], 0, end), middle: view.middle ? letters(run, one[0], Math.max(0, end - WINDOW_S), Math.max(end, WINDOW_S)) : ""};
    }),
  }]);
  const happened = shown.flatMap(([, run], k) => run.events.map((one) => [k, format(one.t), one.worker, one.what, one.t]))
    .sort((one, other) => other[4] - one[4]);
  const context = shown.flatMap(([name, run]) => [...(shown.length > 1 ? [["run", name]] : []), ...run.head.context]);
  const under = shown.filter(([, run]) => !run.ended).length;
  return {
    shown, strategies, context, title: shown.length === 1 ? (shown[0][1].head.temporary ? shown[0][1].head.strategy : shown[0][0]) : `${shown.length} runs`, setting: "",
    note: shown.filter(([, run]) => run.failed).map(([name, run]) => `${shown.length > 1 ? `${name} failed: ` : ""}${run.ended}`).join(" "),
    live: under > 0,
    finding: shown.length === 1 ? `${shown[0][1].head.strategy} on ${shown[0][1].head.train}: ${state(shown[0])}.` : `${under} of ${shown.length} runs are under way.`,
    rows: rowsOf(shown), row_servers: shown.map(([, {at}], k) => [k, at.at(-1)?.t, at.at(-1)?.row_servers ?? []]),
    clock: [...new Set(shown.map(([, run]) => `${run.head.clock} time`))].join(" and "), table: table_(shown),
    learning: {charts, notes: !charts.length ? ["Nothing was evaluated or logged yet."]
      : more > 0 ? [`${more} more metrics are not drawn: ${names.slice(CHARTS_MAX, CHARTS_MAX + 20).join(", ")}${more > 20 ? ", ..." : ""}.`] : []},
    lanes: {window_s: WINDOW_S, window: `the last ${WINDOW_S} s`, caption: "", groups},
    incidents: {rows: happened.slice(0, EVENTS_SHOWN), more: Math.max(0, happened.length - EVENTS_SHOWN), which: "earlier events", lost: []},
  };
}

// Of what the charts consist: if that changes, the page is drawn anew.
const shape = (data) => JSON.stringify([data.strategies.map(({name}) => name), scale(data).x.name,
  data.learning.charts.map(({name, lines}) => [name, lines.map(({strategy}) => strategy)])]);

// Show data that went on: curves in place, so that zoom and cursor stay, and all else anew.
function update(data, more) {
  if (!page || drawn !== shape(data)) {
    drawn = shape(data);
    return draw(data, more);
  }
  Object.assign(page, scale(data), {more});
  page.charts.forEach((chart, i) => {
    const one = data.learning.charts[i];
    chart.lines.forEach((line, k) => Object.assign(line, one.lines[k]));
    chart.batch(() => {
      chart.setData(uPlot.join(chart.lines.map((line) => points(line, chart.log))), false);
      const [min, max] = view.zoom ?? [0, page.x.high];
      chart.setScale("x", {min, max});
    });
    chart.told();
  });
  const focused = document.activeElement?.id;
  for (const [id, nodes] of Object.entries(around(data, more))) fill(document.getElementById(`part-${id}`), nodes);
  if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus({preventScroll: true});
}

function show() {
  due = false;
  const data = gathered();
  const over = data.shown.length > 0 && !data.live;
  const words = connected ? said : over ? "The run is over, and so is its page. plesio watch shows it again, if it has a run folder."
    : h("span", {class: "lost"}, "The page's server does not answer: what is shown stands still. plesio watch serves it again.");
  if (!data.shown.length) {
    const other = listed.find((one) => runs.has(one.name))?.other;
    document.querySelector("#report").replaceChildren(h("h1", {}, "plesio: live"),
      h("p", {class: "finding"}, !listed.length ? "There is no run here yet; one that begins is shown at once." : other ? `This run cannot be shown: ${other}.` : "Choose a run above."),
      h("p", {id: "status"}, words));
    page = null;
    return;
  }
  document.title = `${data.title}: plesio`;
  update(data, () => [h("p", {id: "status", role: "status"}, words), advised(data.shown), buttons(data.shown), now(data.shown), readers(data.shown)]);
}

function plan() {
  if (due) return;
  due = true;
  setTimeout(show, DRAW_MS);
}

function connect() {
  source?.close();
  if (!runs.size) return plan();
  source = new EventSource(`events?${[...runs.keys()].map((name) => `run=${encodeURIComponent(name)}`).join("&")}`);
  source.onopen = () => {
    connected = true;
    for (const name of runs.keys()) runs.set(name, empty()); // the server begins anew
  };
  source.onerror = () => { connected = false; plan(); };
  source.onmessage = ({data}) => {
    const told = JSON.parse(data);
    const run = runs.get(told.run);
    if (run && told.gone) run.gone = true;
    for (const line of (run && told.lines) || []) take(run, line);
    plan();
  };
}

function choose(name, on) {
  chosen = true;
  if (on && runs.size < 10) runs.set(name, empty());
  else runs.delete(name);
  connect();
  picker();
}

function picker() {
  const open = document.querySelector("nav details")?.open;
  const focused = document.activeElement?.closest("#runs") && document.activeElement.name;
  const rows = listed.map(({name, strategy, other, ended}, k) => h("li", {}, h("label", {},
    h("input", {type: "checkbox", id: `run-${k}`, name, checked: runs.has(name), onchange: (event) => choose(name, event.target.checked)}),
    name), h("small", {}, other || `${strategy}, ${ended ? "ended" : silentFor(name) > SILENT_S ? "silent" : "under way"}`)));
  document.querySelector("#runs").replaceChildren(h("details", {open: open ?? false},
    h("summary", {}, `${format(listed.length, 9)} ${listed.length === 1 ? "run" : "runs"} in the folder; ${runs.size} shown`), h("ul", {}, rows)));
  if (focused) document.getElementsByName(focused)[0]?.focus({preventScroll: true});
}

async function look() {
  const answer = await fetch("runs").catch(() => null);
  if (answer?.ok) {
    const fresh = await answer.json();
    const told = (list) => JSON.stringify(list.map(({name, other, ended, silent_s}) => [name, other, ended, silent_s > SILENT_S]));
    const changed = told(fresh) !== told(listed);
    const first = !listed.length && fresh.length;
    const news = fresh.filter(({name}) => !listed.some((one) => one.name === name));
    listed = changed ? fresh : listed;
    wrote.clear();
    for (const {name, silent_s} of fresh) wrote.set(name, Date.now() - 1000 * silent_s);
    if (first || (news.length && !chosen)) { // those under way, else the one that began last, until somebody chooses
      const going = fresh.filter(({ended, other, silent_s}) => !ended && !other && silent_s < SILENT_S);
      if (first || [...runs].every(([name, run]) => run.ended || run.gone || silentFor(name) > SILENT_S)) runs.clear();
      for (const {name} of first && going.length ? going : news.slice(0, 1)) if (runs.size < SHOWN_FIRST) runs.set(name, empty());
      connect();
    }
    if (changed) picker();
  }
  plan();
  setTimeout(look, 3000);
}

picker();
look();
