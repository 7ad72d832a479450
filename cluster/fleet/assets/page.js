// The live page of a run. All text comes from the run and is set as text, never as markup.
"use strict";

const ACTIVITIES = ["computing", "data", "copying", "waiting", "starting", "compiling", "restoring", "idle", "dead"];
const NAMES = {
  computing: "computing", data: "waiting for data", copying: "copying", waiting: "waiting for the syncer",
  starting: "starting", compiling: "compiling", restoring: "restoring", idle: "idle by order", dead: "dead",
};
const FATES = { merged: "a-computing", discarded: "a-data", outstanding: "a-copying", lost: "a-dead" };
const AXES = ["step t", "tokens", "seconds"];
const CHART_PX = 220, MOST_ROUNDS = 8, MOST_MARKS = 2000;
const byId = (id) => document.getElementById(id);

let content = null, axis = 1;
let marks = [];
const charts = {};
const rows = new Map();

function make(name, text, kind) {
  const node = document.createElement(name);
  if (text !== undefined && text !== null) node.textContent = String(text);
  if (kind) node.className = kind;
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function amount(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return (value / unit).toPrecision(3) + " " + name;
  }
  return value.toFixed(0);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.floor(seconds), two = (part) => String(part).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");
function rate(bits) {
  const shown = amount(bits);
  return shown === "–" ? shown : shown.includes(" ") ? `${shown}bit/s` : `${shown} bit/s`;
}

const percent = (value) => (typeof value === "number" ? (100 * value).toFixed(1) + " %" : "–");

// --- parts of the page ---------------------------------------------------------------------------

function tiles(status) {
  const figures = status.figures || {}, rolling = figures.rolling_goodput || {};
  const last = content.loss.length ? content.loss[content.loss.length - 1] : null;
  const shown = {
    "held-out loss": last ? number(last[3], 4) : "–",
    "step t": `${status.t} of ${status.steps}`,
    "time left": duration(status.left_s),
    "tokens": amount(status.tokens_trained),
    "tokens per second": amount(status.tokens_per_s),
    "islands alive": `${status.alive} of ${status.wanted}`,
    "expected loss": status.expected ? number(status.expected.loss, 4) : "–",
    "loss spikes": String(figures.loss_spikes || 0),
    "merges": String(status.merges),
    "participants": number(status.participants, 1),
    "goodput": percent(figures.goodput),
    "goodput, last minute": percent(rolling["60"]),
    "uptime": percent(figures.uptime),
    "faults injected": String(status.faults),
  };
  const list = byId("tiles");
  for (const [name, value] of Object.entries(shown)) {
    let tile = list.querySelector(`[data-name="${name}"]`);
    if (!tile) {
      tile = make("div");
      tile.dataset.name = name;
      tile.append(make("dt", name), make("dd"));
      list.append(tile);
    }
    put(tile.lastChild, value);
  }
}

function keyed(kind, text) {
  const pair = make("span", "", "pair");
  pair.append(make("span", "", `key ${kind}`), document.createTextNode(text + " "));
  return pair;
}

function budget(seconds, life) {
  const total = Math.max(life || 0, ACTIVITIES.reduce((sum, name) => sum + (seconds[name] || 0), 0));
  const words = ACTIVITIES.filter((name) => total && seconds[name] / total >= 0.005)
    .map((name) => `${NAMES[name]} ${(100 * seconds[name] / total).toFixed(0)} %`);
  return { total, text: words.join(", ") || "not measured yet" };
}

function bar(node, seconds, life) {
  const { total, text } = budget(seconds, life);
  while (node.children.length < ACTIVITIES.length) {
    node.append(make("span", "", "a-" + ACTIVITIES[node.children.length]));
  }
  ACTIVITIES.forEach((name, index) => {
    node.children[index].style.width = total ? `${100 * (seconds[name] || 0) / total}%` : "0";
  });
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", text);
  node.title = text;
}

function islands(status) {
  const body = byId("islands").tBodies[0], present = new Set();
  for (const island of status.islands) {
    present.add(island.island);
    let row = rows.get(island.island);
    if (!row) {
      row = make("tr");
      const name = make("th", island.island);
      name.scope = "row";
      row.append(name, make("td"), make("td", "", "number"), make("td", "", "number"),
        make("td", "", "number"), make("td"), make("td"));
      row.children[5].append(make("div", "", "budget"));
      rows.set(island.island, row);
      body.append(row);
    }
    const state = row.children[1];
    put(state, island.state);
    state.className = island.state === "set aside" ? "aside" : island.state;
    put(row.children[2], String(island.steps));
    put(row.children[3], amount(island.tokens_per_s));
    put(row.children[4], number(island.loss, 3));
    bar(row.children[5].firstChild, island.time_s || {}, island.life_s);
    put(row.children[6], island.why);
  }
  for (const [name, row] of rows) {
    if (!present.has(name)) {
      row.remove();
      rows.delete(name);
    }
  }
}

function fragments(status) {
  const all = status.fragments, total = status.islands.length, place = byId("fragments");
  while (place.children.length > all.length) place.lastChild.remove();
  while (place.children.length < all.length) place.append(make("span"));
  all.forEach((fragment, index) => {
    const count = fragment.participants.length, cell = place.children[index];
    const part = count === 0 ? "" : count >= total ? "merged" : "some";
    cell.className = fragment.round ? `${part} open` : part;
    const round = fragment.round ? `, ${fragment.round.arrived} of ${fragment.round.asked} arrived` : "";
    cell.setAttribute("role", "img");
    cell.title = `fragment ${fragment.fragment}: version ${fragment.version}, ${count} of ${total} islands${round}`;
    cell.setAttribute("aria-label", cell.title);
  });
  const versions = all.map((fragment) => fragment.version), open = all.filter((fragment) => fragment.round);
  put(byId("versions"), all.length ? `${all.length} fragments, versions ${Math.min(...versions)} to ` +
    `${Math.max(...versions)}, ${open.length} rounds in flight` : "no fragments yet");
  const list = byId("rounds");
  list.replaceChildren(...open.slice(0, MOST_ROUNDS).map((fragment) => make("li",
    `fragment ${fragment.fragment}: ${fragment.round.arrived} of ${fragment.round.asked} arrived; ${fragment.round.why}`)));
  if (open.length > MOST_ROUNDS) list.append(make("li", `and ${open.length - MOST_ROUNDS} more`));
}

function ledger(status) {
  const figures = status.figures || {}, trained = status.tokens_trained;
  const tokens = {
    merged: figures.tokens_merged || 0, discarded: figures.tokens_discarded || 0, lost: figures.tokens_lost || 0,
  };
  tokens.outstanding = Math.max(0, trained - tokens.merged - tokens.discarded - tokens.lost);
  const whole = make("div", "", "budget"), legend = make("p", "", "legend");
  for (const [name, kind] of Object.entries(FATES)) {
    const part = make("span", "", kind), share = trained ? tokens[name] / trained : 0;
    part.style.width = `${100 * share}%`;
    whole.append(part);
    legend.append(keyed(kind, `${name} ${amount(tokens[name])} (${percent(share)})`));
  }
  whole.setAttribute("role", "img");
  whole.setAttribute("aria-label", legend.textContent);
  byId("ledger").replaceChildren(whole, legend);
}

function links(status) {
  const all = status.links || [];
  byId("links-section").hidden = all.length === 0;
  byId("links").tBodies[0].replaceChildren(...all.map((link) => {
    const row = make("tr"), limping = link.slow ? "slow" : link.lagging ? "late" : null;
    const state = link.down ? "down" : limping || "as usual";
    row.append(make("td", link.link), make("td", link.direction),
      make("td", rate(link.bits_s), "number"), make("td", rate(link.usual_bits_s), "number"),
      make("td", `${number(link.queue_s, 1)} s`, "number"), make("td", String(link.late), "number"),
      make("td", state, link.down ? "lost" : limping ? "waiting" : "live"));
    return row;
  }));
}

function events() {
  byId("events").replaceChildren(...content.events.map((event) => {
    const line = make("li");
    line.append(make("time", duration(event.elapsed_s)), make("strong", event.kind),
      document.createTextNode(` ${event.text}`));
    return line;
  }));
}

function alerts(status) {
  const figures = status.figures || {};
  const all = [...(status.alerts || [])];
  if (figures.not_durable) all.push(`not durable: ${figures.not_durable}`);
  if (figures.trouble) all.push(figures.trouble);
  if (status.expected && !status.expected.inside) all.push("the held-out loss " +
    `${number(status.expected.heldout_loss, 4)} is outside the band ${number(status.expected.low, 4)} ` +
    `to ${number(status.expected.high, 4)} that was expected`);
  const place = byId("alerts");
  if (place.textContent !== all.join("")) place.replaceChildren(...all.map((alert) => make("p", alert)));
}

// --- charts --------------------------------------------------------------------------------------

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axisStyle(values, size) {
  const lines = { stroke: color("--line"), width: 1 };
  const style = { stroke: color("--dim"), grid: lines, ticks: lines, values: (_, all) => all.map(values) };
  return size === undefined ? style : { ...style, size };
}

function draw(id, key, data, series, axes, scales, bands) {
  const place = byId(id), chart = charts[id];
  if (chart && chart.key === key) {
    chart.plot.setData(data);
    return;
  }
  if (chart) chart.plot.destroy();
  const options = {
    width: Math.max(200, place.clientWidth), height: CHART_PX, series, axes,
    scales: { x: { time: false }, ...scales }, bands: bands || [], cursor: { drag: { x: true, y: false } },
  };
  charts[id] = { key, plot: new uPlot(options, data, place) };
}

// Deletes the mark whose neighbors are the closest together, until few enough are left.
function thin(all) {
  while (all.length > MOST_MARKS) {
    let least = Infinity, inner = 1;
    for (let index = 1; index < all.length - 1; index++) {
      const span = all[index + 1][0] - all[index - 1][0];
      if (span < least) [least, inner] = [span, index];
    }
    all.splice(inner, 1);
  }
}

function curves() {
  const scheme = color("--paper"), points = content.loss.filter((point) => point[axis] !== null);
  const column = (index) => points.map((point) => point[index] ?? null);
  const expects = points.some((point) => typeof point[4] === "number");
  const loss = [column(axis), column(3), ...(expects ? [column(4), column(6), column(5)] : [])];
  const across = axis === 2 ? duration : amount;
  const edge = { stroke: color("--line"), width: 1, points: { show: false } };
  const expected = [
    { label: "expected", stroke: color("--dim"), width: 1.5, dash: [6, 4], points: { show: false } },
    { label: "band, high", ...edge }, { label: "band, low", ...edge }];
  draw("loss", `${axis}${scheme}${expects}`, loss,
    [{ label: AXES[axis], value: (_, each) => across(each) },
      { label: "loss", stroke: color("--accent"), width: 2, points: { show: points.length < 40 } },
      ...(expects ? expected : [])],
    [axisStyle(across), axisStyle((each) => each.toFixed(2), 55)], {},
    expects ? [{ series: [3, 4], fill: color("--band") }] : []);
  const last = points[points.length - 1];
  byId("loss").setAttribute("aria-label", last
    ? `Held-out loss over ${AXES[axis]}: ${number(points[0][3], 3)} at first, ${number(last[3], 3)} now`
    : "Held-out loss, no point yet");
  const rate = [marks.map((mark) => mark[0]), marks.map((mark) => mark[3]), marks.map((mark) => mark[5])];
  draw("rate", scheme, rate,
    [{ label: "time", value: (_, each) => duration(each) },
      { label: "tokens/s", stroke: color("--computing"), width: 2, points: { show: false } },
      { label: "goodput", scale: "share", stroke: color("--waiting"), width: 1.5, points: { show: false },
        value: (_, each) => percent(each) }],
    [axisStyle(duration), axisStyle(amount, 60),
      { ...axisStyle((each) => `${(100 * each).toFixed(0)} %`, 55), scale: "share", side: 1, grid: { show: false } }],
    { share: { range: [0, 1] } });
  byId("rate").setAttribute("aria-label", `Tokens per second: ${amount(content.status.tokens_per_s)} now`);
}

function show() {
  const status = content.status;
  if (!status) return;
  put(byId("run"), status.run);
  document.title = `${status.run} ${status.phase}`;
  put(byId("phase"), `${status.phase}, ${duration(status.elapsed_s)}`);
  alerts(status);
  tiles(status);
  islands(status);
  fragments(status);
  ledger(status);
  links(status);
  events();
  curves();
}

// --- start ---------------------------------------------------------------------------------------

const legend = byId("legend");
for (const name of ACTIVITIES) legend.append(keyed(`a-${name}`, NAMES[name]));

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    axis = Number(button.dataset.axis);
    for (const other of document.querySelectorAll("[data-axis]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    if (content) show();
  });
}

new ResizeObserver(() => {
  for (const [id, { plot }] of Object.entries(charts)) {
    plot.setSize({ width: Math.max(200, byId(id).clientWidth), height: CHART_PX });
  }
}).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => content && show());

const stream = new EventSource("/events");
stream.addEventListener("whole", (message) => {
  content = JSON.parse(message.data);
  marks = content.marks;
  show();
});
stream.addEventListener("update", (message) => {
  content = JSON.parse(message.data);
  marks.push(...content.marks);
  thin(marks);
  show();
});
stream.addEventListener("error", () => {
  const over = content && content.status && content.status.phase === "finished";
  put(byId("phase"), over ? "finished; the run's port is closed" : "no connection to the run; trying again");
});
