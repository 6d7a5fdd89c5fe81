// The state of the page, and its way into the link and back. Whatever a link says, the result is a valid state.

const STRATEGIES = { // in the order of the table; `dash` tells lines apart without colours
  ar: {mask: "ar", says: "causal: sees what came before", dash: ""},
  "ar-symmetric": {mask: "ar", positions: "symmetric", says: "causal, every example at the same position", dash: "6 4"},
  prefix: {mask: "prefix", says: "everybody sees everybody", dash: "12 3 2 3"},
  prefix_others: {mask: "prefix_others", says: "everybody but its own label", dash: "3 2"},
  boe: {mask: "boe", says: "bag of examples: each sees only itself", dash: "2 6"},
  pfn: {mask: "pfn", says: "labels see all labels", dash: "9 3 2 3 2 3"},
  invicl: {mask: "invicl", says: "two copies; the second sees the others", dash: "10 5"},
};
const LAYERS = 4;
const FLAGS = {fan: "other orders", rings: "rings", best: "optimum", updown: "only up and down"};

const DATA = typeof document === "undefined" ? {models: []} : JSON.parse(document.getElementById("data").textContent);
const settingsOf = family => DATA.families[family];
const modelsOf = family => DATA.models.filter(m => m.family === family);
const shownIn = family => Object.keys(STRATEGIES).filter(s => modelsOf(family).some(m => m.strategy === s));
const stepsOf = family => [...new Set(modelsOf(family).map(m => m.step))].sort((a, b) => a - b);
const finished = () => Math.max(...DATA.models.map(m => m.step));

// The model of a strategy after so many training steps; those without early checkpoints are always the finished ones.
const decoded = new Map();
function modelOf(family, strategy, step) {
  const mine = modelsOf(family).filter(m => m.strategy === strategy);
  const record = mine.find(m => m.step === step) || mine.find(m => m.step === finished());
  if (!decoded.has(record)) decoded.set(record, decode(record));
  return decoded.get(record);
}

// `own` is null while the points are of a function; else they are the user's, and it has those that are put aside.
// `picked` is the strategy whose mask is shown; `base`, if not null, is what is painted on instead (see mask.js).
const DEFAULT = {family: "smooth", seed: 5, show: ["ar", "invicl"], picked: "ar", layer: LAYERS, training: 0, tour: 0,
  fan: false, rings: false, best: false, updown: false};
const S = {...DEFAULT, points: [], own: null, base: null, painted: new Set(), blocks: 0};

function freshPoints(n) {
  return Array.from({length: n}, (_, i) => drawPoint(S.family, settingsOf(S.family), S.seed, i));
}

// Set part of the state; what does not fit the family is mended.
function setState(change) {
  Object.assign(S, change);
  const there = shownIn(S.family);
  S.show = there.filter(s => S.show.includes(s));
  if (!Object.hasOwn(STRATEGIES, S.picked)) S.picked = DEFAULT.picked;
  if (!stepsOf(S.family).includes(S.training)) S.training = finished();
}

const pointsToLink = points => points.map(p => p.join("_")).join("~");
function toLink() {
  const h = new URLSearchParams({f: S.family, seed: S.seed, s: S.show.join("."), m: S.picked, l: S.layer, k: S.training,
    t: S.tour, o: Object.keys(FLAGS).filter(k => S[k]).join("."), p: pointsToLink(S.points)});
  if (S.own) h.set("w", pointsToLink(S.own));
  if (S.base) h.set("b", S.base);
  if (S.painted.size) h.set("c", [...S.painted].join("~"));
  if (S.blocks) h.set("z", S.blocks);
  return "#" + h;
}

// → whether there was a state in the link. Each part is taken only if it is one that the page could have written.
function fromLink(hash) {
  const h = new URLSearchParams(hash.slice(1));
  if (!h.has("p") || !h.has("f")) return false;
  const whole = (key, least, most, other) => {
    const v = Number(h.get(key) ?? NaN);
    return Number.isInteger(v) && v >= least && v <= most ? v : other;
  };
  const words = key => (h.get(key) || "").split(".");
  const family = Object.hasOwn(DATA.families, h.get("f")) ? h.get("f") : DEFAULT.family;
  const numbers = text => text.split("_").map(v => v.trim() === "" ? NaN : Number(v));
  const pointsOf = (text, most) => text.split("~").map(numbers)
    .filter(p => p.length === 2 && p.every(Number.isFinite)).slice(0, most).map(p => point(...p));
  const points = pointsOf(h.get("p"), MOST), own = h.has("w") ? pointsOf(h.get("w"), MOST - points.length) : null;
  if (!points.length && h.get("p") !== "") return false; // not one point of it could be read
  const cells = (h.get("c") || "").split("~").filter(c => /^\d{1,2}-\d{1,2}$/.test(c)).slice(0, 200);
  const base = h.get("b");
  setState({...DEFAULT, family, points, own, show: words("s"), picked: h.get("m"), layer: whole("l", 0, LAYERS, LAYERS),
    seed: whole("seed", 1, 999999, DEFAULT.seed), training: whole("k", 0, 1e9, 0), tour: whole("t", 0, 99, 0),
    base: Object.hasOwn(EMPTY, base) ? base : null, painted: new Set(), blocks: whole("z", 0, 511, 0),
    ...Object.fromEntries(Object.keys(FLAGS).map(k => [k, words("o").includes(k)]))});
  S.painted = new Set(paintable(cells));
  return true;
}
