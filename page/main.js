// Controls, the table of strategies, the tour, the link: everything that joins the parts.

// --- The table of strategies
const certificates = {}; // of each strategy; they do not depend on points or weights
function certificate(s) {
  const {mask, positions} = STRATEGIES[s];
  return certificates[s] ||= audit(layout(mask, PAINTED, 1, positions), LAYERS);
}
function verdict(s, property) {
  const found = certificate(s), yes = found[property];
  const partly = property === "interdependent" && !yes && found.independent.length < PAINTED * (PAINTED - 1);
  const not = property === "noLeak" ? "leak" : `${partly ? "partly" : "not"} ${PROPERTIES[property]}`;
  return html("td", {class: yes ? "yes" : "no"}, `${mark(yes)} `, // a phone has no column heads, so there the cell says all
    html("span", {class: "short"}, yes ? "yes" : partly ? "partly" : "no"),
    html("span", {class: "full"}, yes ? PROPERTIES[property] : not));
}
function sample(kind, dash = "") {
  const picture = svg("svg", {class: "sample", viewBox: "0 0 34 10", "aria-hidden": true});
  picture.append(svg("path", {d: "M0,5L34,5", class: kind, "stroke-dasharray": dash}));
  return picture;
}
function buildTable() {
  $("strategies").replaceChildren(...shownIn(S.family).map(s => {
    const {dash, says} = STRATEGIES[s];
    const show = html("input", {type: "checkbox", "data-show": s, "aria-label": `show ${s}`});
    show.onchange = () => { setState({show: show.checked ? [...S.show, s] : S.show.filter(t => t !== s)}); redraw(); };
    return html("tr", {}, html("td", {"data-label": "show"}, show),
      html("th", {scope: "row"}, sample(`curve s-${s}`, dash), html("span", {}, s), html("small", {}, says)),
      html("td", {"data-far": s, "data-label": "from optimum"}),
      html("td", {"data-spread": s, "data-label": "by order"}), ...Object.keys(PROPERTIES).map(p => verdict(s, p)));
  }));
}
function fillTable() {
  for (const s of shownIn(S.family)) {
    const on = S.show.includes(s), find = attribute => document.querySelector(`[${attribute}="${s}"]`);
    find("data-show").checked = on;
    find("data-far").textContent = on ? size(distance(answers[s].query, answers.optimum)) : "–";
    find("data-spread").textContent = on && s in spread ? size(spread[s]) : "–";
  }
}
function drawLegend() {
  const entry = (text, kind, dash) => html("li", {}, sample(kind, dash), text);
  $("legend").replaceChildren(...S.show.map(s => entry(s, `curve s-${s}`, STRATEGIES[s].dash)),
    ...(S.best ? [entry("optimum", "optimum")] : []), ...(S.own ? [] : [entry("hidden function", "hidden")]));
}

// --- Everything anew
let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; redraw(); });
}
let milliseconds = 0; // that the last redraw took
function redraw() {
  const start = performance.now();
  drawPlot();
  drawFan(fillTable);
  fillTable();
  drawLegend();
  fillControls();
  const pulled = pullReport();
  if (pulled) say(pulled);
  saveLink();
  milliseconds = performance.now() - start;
}
function refreshMask() { drawMask(); saveLink(); }
function refreshAll() { buildTable(); fit(); redraw(); drawMask(); drawPuzzle(); }
function say(text) { $("status").textContent = text; }
function allow(id, yes) { $(id).setAttribute("aria-disabled", !yes); } // not `disabled`, which would lose the focus

function fillControls() {
  const n = S.points.length;
  $("n").value = n;
  $("n-out").textContent = n > TRAINED ? `${n}: ${n - TRAINED} more than in training` : n;
  $("n").setAttribute("aria-valuetext", `${n} examples, trained on ${TRAINED}`);
  $("layer").value = S.layer;
  $("layer-out").textContent = S.layer === LAYERS ? `${LAYERS} (last)` : S.layer;
  $("seed").value = S.seed;
  $("family").value = S.family;
  for (const key in FLAGS) $(key).checked = S[key];
  const steps = stepsOf(S.family);
  const choice = k => new Option(k === finished() ? "finished" : `after ${k} steps`, k);
  if ($("training").options.length !== steps.length) $("training").replaceChildren(...[...steps].reverse().map(choice));
  $("training").value = S.training;
  $("training").disabled = steps.length === 1;
  const late = S.show.filter(s => modelOf(S.family, s, S.training).step !== S.training);
  const mute = S.rings ? S.show.filter(s => !modelOf(S.family, s, S.training).rings) : [];
  $("note").textContent = [
    steps.length === 1 ? "Early checkpoints are here for noisy lines." : "",
    late.length ? `Without early checkpoints, and shown finished: ${list(late)}.` : "",
    mute.length ? `Not trained to answer at their own examples: ${list(mute)}. Watch whether their rings move, ` +
      "not where they are." : "",
  ].filter(Boolean).join(" ");
}

// --- Changes that report how far each curve moved
let count = 0; // of shuffles and swaps: the next one is another
function change(text, act) {
  const before = Object.fromEntries(S.show.map(s => [s, answers[s].query]));
  pull = null;
  act(rng(S.seed * 977 + ++count));
  redraw();
  const moved = S.show.map(s => `${s} moved by up to ${size(largest(answers[s].query, before[s]))}`);
  say(text() + (moved.length ? ` ${moved.join(", ")}.` : ""));
}
function shuffleOrder() {
  if (S.points.length < 2) return say("The order can change when there are two examples.");
  change(() => "The order has changed; the points have not.", random => {
    const before = S.points;
    while (S.points.every((p, i) => p === before[i])) S.points = shuffled(before, random);
  });
}
function swapLabels() {
  const n = S.points.length;
  if (n < 2) return say("Two labels can be swapped when there are two examples.");
  let i, j;
  change(() => `Labels ${i + 1} and ${j + 1} have changed places.`, random => {
    [i, j] = shuffled([...Array(n).keys()], random).slice(0, 2).sort((a, b) => a - b);
    const [a, b] = [S.points[i], S.points[j]];
    [S.points[i], S.points[j]] = [[a[0], b[1]], [b[0], a[1]]];
  });
}
function newFunction(seed) {
  pull = null;
  setState({own: null, seed: clamp(Math.round(seed) || DEFAULT.seed, 1, 999999)});
  S.points = freshPoints(S.points.length);
  say(`Function ${S.seed}, with new points.`);
  redraw();
}
function setCount(n) {
  pull = null;
  say("");
  const all = [...S.points, ...(S.own || [])];
  if (!S.own) for (let i = all.length; i < n; i++) all.push(drawPoint(S.family, settingsOf(S.family), S.seed, i));
  else if (n > all.length) say(`Your own points are ${all.length}: no others are added to them.`);
  S.points = all.slice(0, n);
  if (S.own) S.own = all.slice(n);
  redraw();
}
function usePasted() {
  const {points, notes} = parseTable($("paste").value);
  pull = null;
  if (points.length) { setState({points, own: []}); say(""); redraw(); }
  const used = points.length > 1 ? `${points.length} points are in use.` : points.length ? "1 point is in use."
    : "No line has two numbers, so the points are as before.";
  $("paste-notes").textContent = [used, ...notes].join(" ");
}

// --- Tour and link
function showStep(step) {
  S.tour = clamp(step, 0, TOUR.length - 1);
  const {title, text, ask, answer} = TOUR[S.tour];
  $("tour-title").textContent = `${S.tour + 1}. ${title}`;
  $("tour-text").textContent = text;
  $("tour-ask").textContent = ask;
  $("tour-answer").textContent = answer;
  $("tour-count").textContent = `step ${S.tour + 1} of ${TOUR.length}`;
  allow("back", S.tour > 0);
  allow("next", S.tour < TOUR.length - 1);
}
function goTo(step) {
  showStep(step);
  const {n, puzzles, ...state} = TOUR[S.tour].state;
  setState({...DEFAULT, picked: state.show[0], ...state, tour: S.tour, own: null, base: null, painted: new Set(), blocks: 0});
  S.points = freshPoints(n);
  pull = null;
  count = 0;
  foundMasks.clear();
  $("tour-more").open = false;
  $("puzzles").open = Boolean(puzzles);
  say("");
  refreshAll();
}
let saving;
function saveLink() {
  clearTimeout(saving);
  saving = setTimeout(() => { lastLink = toLink(); history.replaceState(null, "", lastLink); }, 150);
}
let lastLink = null;
function openLink() {
  if (location.hash && location.hash === lastLink) return;
  pull = null;
  if (!fromLink(location.hash)) return goTo(0);
  say("");
  showStep(S.tour);
  refreshAll();
}

function wire() {
  for (const f in DATA.families) $("family").append(new Option(FAMILIES[f].title, f));
  for (const s in STRATEGIES) $("base").append(new Option(s, s));
  for (const k in EMPTY) $("base").append(new Option(EMPTY[k].title, k));
  buildPuzzle();
  const allowed = e => e.currentTarget.getAttribute("aria-disabled") !== "true";
  const on = (id, event, act) => $(id).addEventListener(event, e => { if (allowed(e)) act(e); });
  on("shuffle", "click", shuffleOrder);
  on("swap", "click", swapLabels);
  on("fresh", "click", () => newFunction(S.seed + 1));
  on("reset", "click", () => newFunction(S.seed));
  on("seed", "change", e => newFunction(Number(e.target.value)));
  on("n", "input", e => setCount(Number(e.target.value)));
  on("layer", "input", e => { S.layer = Number(e.target.value); pull = null; say(""); redraw(); });
  on("training", "change", e => { S.training = Number(e.target.value); pull = null; say(""); redraw(); });
  on("family", "change", e => {
    setState({family: e.target.value});
    if (!S.own) S.points = freshPoints(S.points.length);
    pull = null;
    say("");
    refreshAll();
  });
  for (const key in FLAGS) on(key, "change", e => { S[key] = e.target.checked; redraw(); });
  on("base", "change", e => {
    const name = e.target.value;
    setState({...(name in EMPTY ? {base: name} : {base: null, picked: name}), painted: new Set()});
    refreshMask();
  });
  on("undo", "click", () => { setState({painted: new Set()}); refreshMask(); });
  on("count", "click", countAll);
  on("own-data", "toggle", () => { if ($("own-data").open) $("paste").value = S.points.map(p => p.join(", ")).join("\n"); });
  on("use", "click", usePasted);
  on("back", "click", () => goTo(S.tour - 1));
  on("next", "click", () => goTo(S.tour + 1));
  on("again", "click", () => goTo(S.tour));
  window.addEventListener("hashchange", openLink);
  new ResizeObserver(() => { if (fit()) redraw(); }).observe(plot.parentElement);
}

wire();
openLink();
window.minicl = () => ({state: S, answers, spread, milliseconds}); // for tests, and for curious students at the console
