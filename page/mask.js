// The mask beside the plot: one can paint on it; its certificates, the way of a leak, and two puzzles.

const PAINTED = 3; // examples in the picture of a mask
const EMPTY = { // what one can start from, besides the strategies
  one: {title: "empty, one copy", positions: "symmetric", copies: 1, sees: () => false},
  two: {title: "empty, two copies", positions: "symmetric", copies: 2, sees: () => false},
};
const PROPERTIES = {invariant: "invariant", noLeak: "no leak", interdependent: "interdependent", paired: "paired"};

const tokenName = t => t.query ? "x?" : `${t.label ? "y" : "x"}${t.example + 1}${"'".repeat(t.copy)}`;
const canPaint = (q, k) => !q.query && !k.query && !isOwn(q, k); // the two rules of every mask stay

function basePlan() {
  const {mask, positions} = STRATEGIES[S.picked];
  return S.base ? layout(EMPTY[S.base], PAINTED, 1) : layout(mask, PAINTED, 1, positions);
}
function paintable(cells) { // those of the cells, each "row-column", that there are under this mask
  const {tokens} = basePlan(), is = ([i, j]) => tokens[i] && tokens[j] && canPaint(tokens[i], tokens[j]);
  return cells.map(c => c.split("-").map(Number)).filter(is).map(c => c.join("-"));
}
function paintedPlan() {
  const plan = basePlan(), sees = plan.sees.map(row => new Set(row));
  for (const cell of S.painted) {
    const [i, j] = cell.split("-").map(Number);
    if (!sees[i].delete(j)) sees[i].add(j);
  }
  plan.sees = sees.map(row => Int32Array.from(row).sort());
  return plan;
}

// --- Certificates in words
function shortestLeak(plan, found) {
  return found.leaks.map(i => leakPath(plan, LAYERS, i)).sort((a, b) => a.length - b.length)[0] || null;
}
function hearsLabels(plan, found) { // whether some context prediction hears another example's label
  return found.depends.slice(0, plan.n).some((row, i) => row.some((heard, k) => heard && k % 2 && k >> 1 !== i));
}
function inWords(plan, found) {
  const path = shortestLeak(plan, found), [apart] = found.independent, [pair] = found.unpaired, [i] = found.swaps;
  return [
    found.invariant ? [true, "Invariant: no order of the examples changes the answer at the query."]
      : [false, `Not invariant: swapping examples ${i + 1} and ${i + 2} can change the answer at the query.`],
    found.noLeak ? [true, "No leak: no label reaches the answer at its own x."]
      : [false, `Leak: a label can reach the answer at its own x: ${path.map(t => tokenName(plan.tokens[t])).join(" → ")}.`],
    found.interdependent ? [true, "Interdependent: the answer at each example can depend on all others."]
      : [false, `Not interdependent: answer ${apart[0] + 1} does not depend on example ${apart[1] + 1}.`],
    found.paired ? [true, "Paired: the answer at the query can depend on which label belongs to which x."]
      : [false, `Not paired: labels ${pair[0] + 1} and ${pair[1] + 1} can be swapped, and the answer at the query does not change.`],
  ];
}
const mark = yes => yes ? "✓" : "✗";
const verdicts = rows => rows.map(([yes, text]) => html("li", {class: yes ? "yes" : "no"}, `${mark(yes)} ${text}`));

// --- The picture
function drawMask() {
  const plan = paintedPlan(), {tokens} = plan, found = audit(plan, LAYERS), path = shortestLeak(plan, found);
  const own = S.base || S.painted.size;
  const from = S.base ? EMPTY[S.base].title : S.picked;
  $("mask-title").textContent = own ? `Your mask (from ${from})` : `Mask of ${S.picked}`;
  $("mask").className = `s-${own ? "own" : S.picked}`;
  const had = document.activeElement?.dataset?.cell;
  const heads = tokens.map(t => html("th", {scope: "col"}, tokenName(t)));
  const row = (q, i) => html("tr", {}, html("th", {scope: "row"}, tokenName(q)), ...tokens.map((_, j) => maskCell(plan, i, j, path)));
  $("mask").replaceChildren(html("thead", {}, html("tr", {}, html("td"), ...heads)), html("tbody", {}, ...tokens.map(row)));
  const cells = $("mask").querySelectorAll("button");
  (cell(had) || cells[0]).tabIndex = 0;
  if (had) cell(had)?.focus();
  $("certificates").replaceChildren(...verdicts(inWords(plan, found)));
  const hears = hearsLabels(plan, found);
  $("informed").textContent = hears ? "The context predictions can hear labels of other examples: there is something to learn from."
    : "The context predictions hear no label of another example: they have nothing to learn from.";
  $("why-not").hidden = !own;
  allow("undo", S.painted.size > 0);
  $("base").value = S.base || S.picked;
  drawLeak(plan, path);
  const all = Object.keys(PROPERTIES).every(p => found[p]);
  $("puzzle-2").textContent = !own || !all ? ""
    : hears ? "✓ Your mask has all four properties, and its context predictions can hear other labels. Solved."
    : "✓ Your mask has all four properties. But its context predictions hear no labels. Can you mend that too?";
}
const cell = name => name && $("mask").querySelector(`[data-cell="${name}"]`);

function maskCell(plan, i, j, path) {
  const q = plan.tokens[i], k = plan.tokens[j], on = plan.sees[i].includes(j);
  const step = path ? path.findIndex((t, s) => t === j && path[s + 1] === i) + 1 : 0, text = step ? `${step}` : "";
  const look = `${on ? "on" : ""} ${step ? "path" : ""}`;
  const says = `${tokenName(q)} ${on ? "sees" : "does not see"} ${tokenName(k)}${step ? `, step ${step} of the leak` : ""}`;
  if (!canPaint(q, k)) return html("td", {class: `fixed ${look}`}, html("span", {class: "unseen"}, `${says}, fixed`), text);
  const names = {"data-cell": `${i}-${j}`, "aria-pressed": on, "aria-label": says};
  const button = html("button", {type: "button", class: look, tabindex: -1, ...names}, text);
  button.onclick = () => {
    const name = `${i}-${j}`;
    if (!S.painted.delete(name)) S.painted.add(name);
    button.focus();
    refreshMask();
  };
  button.onkeydown = e => {
    const way = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[e.key];
    if (!way) return;
    e.preventDefault();
    for (let r = i + way[0], c = j + way[1]; plan.tokens[r] && plan.tokens[c]; r += way[0], c += way[1]) {
      const next = cell(`${r}-${c}`);
      if (next) { button.tabIndex = -1; next.tabIndex = 0; return next.focus(); }
    }
  };
  return html("td", {}, button);
}

// The way of a label to its own prediction: tokens from left to right, layers from top to bottom.
function drawLeak(plan, path) {
  $("leak").hidden = !path;
  if (!path) return;
  const T = plan.tokens.length, wide = 330, high = 34 * path.length + 22, rows = path.length;
  const x = t => 48 + (t + 0.5) * (wide - 52) / T, y = layer => 30 + 34 * layer;
  const parts = plan.tokens.map((t, i) => svg("text", {x: x(i), y: 12, "text-anchor": "middle"}, tokenName(t)));
  for (let layer = 0; layer < rows; layer++) {
    parts.push(svg("text", {x: 0, y: y(layer) + 4}, layer ? `layer ${layer}` : "input"));
    for (let t = 0; t < T; t++) {
      const on = path[layer] === t;
      parts.push(svg("circle", {cx: x(t), cy: y(layer), r: on ? 6 : 2.5, class: on ? "on" : ""}));
    }
    if (layer) parts.push(svg("line", {x1: x(path[layer - 1]), y1: y(layer - 1), x2: x(path[layer]), y2: y(layer)}));
  }
  const words = path.map(t => tokenName(plan.tokens[t])).join(" → ");
  $("leak-picture").setAttribute("viewBox", `0 0 ${wide} ${high}`);
  $("leak-picture").setAttribute("aria-label", `The way of the leak: ${words}`);
  $("leak-picture").replaceChildren(...parts);
}

// --- Puzzle 1: which examples see which, as 9 bits. On the diagonal: an x sees its own label too.
function blockAudit(bits) {
  const sees = (q, k) => bits >> (PAINTED * q.example + k.example) & 1;
  const plan = layout({positions: "symmetric", copies: 1, sees}, PAINTED, 1);
  return [plan, audit(plan, LAYERS)];
}
const INVARIANT = {0: "nobody sees another (boe)", 273: "x sees its own label", 238: "all others (prefix_others)",
  511: "everybody (prefix)"};
const foundMasks = new Set();

function buildPuzzle() {
  const each = [...Array(PAINTED).keys()];
  const block = bit => {
    const button = html("button", {type: "button", "data-bit": bit});
    button.onclick = () => { S.blocks ^= 1 << bit; drawPuzzle(true); saveLink(); };
    return html("td", {}, button);
  };
  const row = i => html("tr", {}, html("th", {scope: "row"}, `example ${i + 1} sees`), ...each.map(j => block(PAINTED * i + j)));
  const heads = each.map(j => html("th", {scope: "col"}, `${j + 1}`));
  $("blocks").replaceChildren(html("thead", {}, html("tr", {}, html("td"), ...heads)), html("tbody", {}, ...each.map(row)));
}
function drawPuzzle(touched = S.blocks > 0) { // a mask that nobody has touched is not found
  for (const button of $("blocks").querySelectorAll("button")) {
    const bit = Number(button.dataset.bit), on = Boolean(S.blocks >> bit & 1);
    const [i, j] = [Math.floor(bit / PAINTED), bit % PAINTED];
    button.setAttribute("aria-pressed", on);
    button.setAttribute("aria-label", `example ${i + 1} ${on ? "sees" : "does not see"} example ${j + 1}`);
    button.className = on ? "on" : "";
  }
  const [plan, found] = blockAudit(S.blocks);
  if (found.invariant && touched) foundMasks.add(S.blocks);
  $("puzzle-1").replaceChildren(...verdicts(inWords(plan, found)));
  const names = [...foundMasks].map(bits => INVARIANT[bits]);
  $("puzzle-count").textContent = `Invariant masks found: ${foundMasks.size} of 4${names.length ? `: ${names.join("; ")}` : ""}.`;
}
function countAll() {
  const invariant = [...Array(512).keys()].filter(bits => blockAudit(bits)[1].invariant);
  for (const bits of invariant) foundMasks.add(bits);
  drawPuzzle();
  const names = invariant.map(bits => INVARIANT[bits]);
  $("puzzle-count").textContent = `Counted: ${names.length} of 512 are invariant: ${names.join("; ")}.`;
}
