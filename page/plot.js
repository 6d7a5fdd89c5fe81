// The plot: points that can be dragged, the curves of the models, their fans over orders, and their rings.

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const svg = (name, attributes = {}, ...kids) => make(document.createElementNS(SVG, name), attributes, kids);
const html = (name, attributes = {}, ...kids) => make(document.createElement(name), attributes, kids);
function make(element, attributes, kids) {
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...kids);
  return element;
}

const GRID = Float32Array.from({length: 51}, (_, i) => X_MOST * (i / 25 - 1));
const ORDERS = 16;
let width = 700, height = 420;
const px = x => (x / X_MOST + 1) / 2 * width, py = y => (1 - y / Y_MOST) / 2 * height;
const trace = ys => "M" + Array.from(ys, (y, i) => `${px(GRID[i]).toFixed(1)},${py(clamp(y, -9, 9)).toFixed(1)}`).join("L");

const plot = $("plot"), group = {};
for (const name of ["frame", "fan", "curves", "rings", "points"]) plot.append(group[name] = svg("g"));

// The drawing has as many units as the page has pixels, so that text is as large on a phone as on a screen.
// → whether the width has changed.
function fit() {
  const before = width;
  width = Math.max(280, plot.parentElement.clientWidth - 24);
  height = clamp(Math.round(width * 0.6), 280, 440);
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  group.frame.replaceChildren();
  for (let v = -3; v <= 3; v++) {
    const kind = v ? "" : "zero", text = `${v}`.replace("-", "−");
    group.frame.append(svg("line", {y1: py(v), y2: py(v), x1: 0, x2: width, class: kind}), svg("text", {x: 3, y: py(v) - 3}, text));
    if (Math.abs(v) > X_MOST) continue;
    group.frame.append(svg("line", {x1: px(v), x2: px(v), y1: 0, y2: height, class: kind}), svg("text", {x: px(v) + 3, y: height - 5}, text));
  }
  group.frame.append(svg("text", {x: width - 12, y: py(0) - 4}, "x"), svg("text", {x: px(0) + 4, y: 12}, "y"));
  return width !== before;
}

// --- Answers
const plans = new Map(); // layouts do not depend on the points, only on their number
function planOf(model, n) {
  const key = `${model.mask} ${model.positions} ${n}`;
  if (plans.size > 200) plans.clear();
  if (!plans.has(key)) plans.set(key, layout(model.mask, n, GRID.length, model.positions));
  return plans.get(key);
}
function ask(strategy, points = S.points) {
  const model = modelOf(S.family, strategy, S.training);
  return forward(model, points.map(p => p[0]), points.map(p => p[1]), GRID, planOf(model, points.length), S.layer);
}
const answers = {}, spread = {}; // of each strategy: its last answer; its largest move over the orders

const largest = (a, b) => a.reduce((most, v, i) => Math.max(most, Math.abs(v - b[i])), 0);
function distance(a, b) { // root mean square where 95 % of the training inputs lie
  const inside = [...GRID.keys()].filter(i => Math.abs(GRID[i]) <= 2);
  return Math.sqrt(inside.reduce((sum, i) => sum + (a[i] - b[i]) ** 2, 0) / inside.length);
}
const size = v => v === 0 ? "0" : v < 0.001 ? v.toExponential(0) : v.toFixed(v < 0.01 ? 3 : 2);

// --- Drawing
function drawPlot() {
  const f = hidden(S.family, settingsOf(S.family), S.seed);
  group.curves.replaceChildren(...(S.own ? [] : [svg("path", {d: trace(GRID.map(f)), class: "hidden"})]));
  group.rings.replaceChildren();
  answers.optimum = optimum(S.family, settingsOf(S.family), S.points, GRID);
  if (S.best) group.curves.append(svg("path", {d: trace(answers.optimum), class: "optimum"}));
  for (const s of S.show) {
    answers[s] = ask(s);
    const shape = {"stroke-dasharray": STRATEGIES[s].dash, class: `curve s-${s}`, id: `curve-${s}`};
    group.curves.append(svg("path", {d: trace(answers[s].query), ...shape}));
    if (S.rings) S.points.forEach(([x, y], i) => {
      const at = clamp(answers[s].context[i], -Y_MOST, Y_MOST);
      group.rings.append(svg("line", {x1: px(x), x2: px(x), y1: py(y), y2: py(at), class: `s-${s}`}),
        svg("circle", {cx: px(x), cy: py(at), r: 14, class: `ring s-${s}`, "stroke-dasharray": STRATEGIES[s].dash}));
    });
  }
  drawPoints();
}

function drawPoints() {
  const there = group.points.children;
  while (there.length > S.points.length) there[there.length - 1].remove();
  while (there.length < S.points.length) group.points.append(makePoint(there.length));
  if (S.points.length && ![...there].some(g => g.tabIndex === 0)) there[0].setAttribute("tabindex", 0);
  S.points.forEach(([x, y], i) => {
    there[i].setAttribute("transform", `translate(${px(x).toFixed(1)},${py(y).toFixed(1)})`);
    there[i].setAttribute("aria-valuenow", y);
    there[i].setAttribute("aria-valuetext", `x ${x}, y ${y}`);
  });
}

function makePoint(i) {
  const late = i >= TRAINED; // beyond the training length: a square, not only another colour
  const shape = late ? svg("rect", {x: -10, y: -10, width: 20, height: 20, rx: 2}) : svg("circle", {r: 10.5});
  const g = svg("g", {class: late ? "point late" : "point", tabindex: -1, role: "slider", "aria-valuemin": -Y_MOST,
    "aria-valuemax": Y_MOST, "aria-label": `Example ${i + 1}${late ? ", beyond the training length" : ""}`},
  shape, svg("text", {"text-anchor": "middle", y: 4}, `${i + 1}`), svg("circle", {class: "hit", r: 20}));
  const moveTo = (x, y) => { S.points[i] = point(S.updown ? S.points[i][0] : x, y); say(""); drawSoon(); };
  const drag = e => {
    const box = plot.getBoundingClientRect();
    moveTo(...[((e.clientX - box.left) / box.width * 2 - 1) * X_MOST, (1 - (e.clientY - box.top) / box.height * 2) * Y_MOST].map(round2));
  };
  g.addEventListener("pointerdown", e => {
    g.setPointerCapture(e.pointerId);
    g.focus({preventScroll: true});
    e.preventDefault();
    startPull(i);
    g.onpointermove = drag;
  });
  for (const end of ["pointerup", "pointercancel"]) g.addEventListener(end, () => { g.onpointermove = null; });
  g.addEventListener("focus", () => {
    for (const other of group.points.children) other.setAttribute("tabindex", other === g ? 0 : -1);
    startPull(i);
  });
  g.addEventListener("keydown", e => {
    const step = e.shiftKey ? 0.5 : 0.1, [x, y] = S.points[i];
    const keys = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step]};
    const next = {PageUp: i - 1, PageDown: i + 1, Home: 0, End: S.points.length - 1}[e.key];
    if (keys[e.key]) moveTo(x + keys[e.key][0], y + keys[e.key][1]);
    else if (next !== undefined) group.points.children[clamp(next, 0, S.points.length - 1)].focus();
    else return;
    e.preventDefault();
  });
  return g;
}

// --- Pulling a label: which rings follow?
let pull = null;
function startPull(i) {
  const before = Object.fromEntries(S.show.map(s => [s, answers[s].context]));
  pull = {i, from: S.points[i], before};
}
function pullReport() {
  if (!pull || !S.rings || pull.i >= S.points.length) return "";
  const {i, from, before} = pull, [x, y] = S.points[i];
  if (x !== from[0]) return `Example ${i + 1} moved sideways. Move it only up or down to see which rings follow its label.`;
  if (y === from[1]) return "";
  const most = (s, test) => size(answers[s].context.reduce(
    (top, v, j) => test(j) && j < before[s].length ? Math.max(top, Math.abs(v - before[s][j])) : top, 0));
  const rows = S.show.filter(s => before[s]).map(s => `${s}: its own ring moved by ${most(s, j => j === i)}, ` +
    `earlier rings by up to ${most(s, j => j < i)}, later rings by up to ${most(s, j => j > i)}.`);
  return `Label ${i + 1} moved by ${size(Math.abs(y - from[1]))}. ${rows.join(" ")}`;
}

// --- The fan: the same points in other orders, a few at a time between two frames.
let fanJob = 0;
function drawFan(done) {
  const job = ++fanJob, seen = {};
  group.fan.replaceChildren();
  for (const s in spread) delete spread[s];
  if (!S.fan || S.points.length < 2) return;
  const random = rng(99), orders = Array.from({length: ORDERS}, () => shuffled(S.points, random));
  const work = S.show.flatMap(s => orders.map(points => [s, points]));
  (function slice() {
    if (job !== fanJob) return; // the points have changed meanwhile
    const start = performance.now();
    while (work.length && performance.now() - start < 12) {
      const [s, points] = work.shift(), {query} = ask(s, points);
      group.fan.append(svg("path", {d: trace(query), class: `s-${s}`}));
      seen[s] = Math.max(seen[s] || 0, largest(query, answers[s].query));
    }
    if (work.length) return void requestAnimationFrame(slice);
    Object.assign(spread, seen);
    done();
  })();
}

function shuffled(items, random) {
  const order = [...items];
  for (let i = order.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
