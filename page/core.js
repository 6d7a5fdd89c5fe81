// minicl in a browser: layouts, forward pass, certificates. Plain functions on typed arrays; no page, no dependency.
// It must say the same as minicl/masks.py, model.py and graph.py: tests/test_play.py compares them.

// --- Masks. A predicate says whether token q sees token k; both are {copy, example, label, query}.
const isBefore = (q, k) => k.copy < q.copy || (k.copy === q.copy && k.example < q.example);
const MASKS = {
  ar: {positions: "absolute", copies: 1, sees: isBefore},
  prefix: {positions: "symmetric", copies: 1, sees: () => true},
  boe: {positions: "symmetric", copies: 1, sees: (q, k) => k.example === q.example && k.copy < q.copy},
  pfn: {positions: "symmetric", copies: 1, sees: (q, k) => q.label && k.label},
  prefix_others: {positions: "symmetric", copies: 1, sees: (q, k) => k.example !== q.example},
  invicl: {positions: "symmetric", copies: 2, sees: (q, k) => q.copy > 0 && k.copy === 0 && k.example !== q.example},
};

// Inside one example of one copy, y sees x and itself, and x sees itself: the first of the two rules of every mask.
const isOwn = (q, k) => !q.query && !k.query && q.copy === k.copy && q.example === k.example && k.label <= q.label;

// The tokens of n examples and m queries: whom each sees, where it stands, and where predictions are read.
function layout(mask, n, m, positions, copies) {
  const strategy = typeof mask === "string" ? MASKS[mask] : mask;
  positions = positions || strategy.positions;
  copies = copies || strategy.copies;
  const tokens = [];
  for (let copy = 0; copy < copies; copy++)
    for (let example = 0; example < n; example++)
      for (const label of [false, true]) tokens.push({copy, example, label, query: false});
  for (let j = 0; j < m; j++) tokens.push({copy: -1, example: -1, label: false, query: true});
  const sees = tokens.map((q, i) => {
    const row = [];
    tokens.forEach((k, j) => {
      const asked = q.query && (k.copy === copies - 1 || i === j); // the second rule: the last copy, and itself
      if (isOwn(q, k) || asked || (!q.query && !k.query && strategy.sees(q, k))) row.push(j);
    });
    return Int32Array.from(row);
  });
  const counting = positions === "absolute";
  const place = positions === "none" ? null
    : tokens.map(t => t.query ? (counting ? 2 * n : 2) : (counting ? 2 * t.example : 0) + t.label);
  const where = test => tokens.flatMap((t, i) => test(t) ? [i] : []);
  const context = where(t => t.copy === copies - 1 && !t.label && !t.query);
  return {n, m, copies, tokens, sees, place, context, query: where(t => t.query)};
}

// --- Weights: base64 of float16 numbers, in the order of `shapes` ([name, [rows, columns]]).
function decode(record) {
  const text = atob(record.data), half = new Uint16Array(text.length / 2), weights = {};
  for (let i = 0; i < half.length; i++) half[i] = text.charCodeAt(2 * i) | text.charCodeAt(2 * i + 1) << 8;
  const flat = Float32Array.from(half, fromHalf);
  let at = 0;
  for (const [name, shape] of record.shapes) {
    const size = shape.reduce((a, b) => a * b, 1);
    weights[name] = flat.subarray(at, at += size);
  }
  return {...record, weights};
}

function fromHalf(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}

// --- Forward pass: GPT-2's block, dense over features and sparse over the mask. T tokens, E width, H heads.

// x (T, I) → out (T, O). Two tokens and four outputs at a time, which is twice as fast; O must be a multiple of 4.
function linear(x, T, I, W, b, O, out) {
  for (let t = 0; t < T; t += 2) {
    const s = Math.min(t + 1, T - 1), x0 = t * I, x1 = s * I, y0 = t * O, y1 = s * O;
    for (let o = 0; o < O; o += 4) {
      let a0 = b[o], a1 = b[o + 1], a2 = b[o + 2], a3 = b[o + 3], c0 = a0, c1 = a1, c2 = a2, c3 = a3;
      const w0 = o * I, w1 = w0 + I, w2 = w1 + I, w3 = w2 + I;
      for (let i = 0; i < I; i++) {
        const u = x[x0 + i], v = x[x1 + i], p = W[w0 + i], q = W[w1 + i], r = W[w2 + i], z = W[w3 + i];
        a0 += u * p; a1 += u * q; a2 += u * r; a3 += u * z;
        c0 += v * p; c1 += v * q; c2 += v * r; c3 += v * z;
      }
      out[y0 + o] = a0; out[y0 + o + 1] = a1; out[y0 + o + 2] = a2; out[y0 + o + 3] = a3;
      out[y1 + o] = c0; out[y1 + o + 1] = c1; out[y1 + o + 2] = c2; out[y1 + o + 3] = c3;
    }
  }
}

function layerNorm(x, T, E, gain, bias, out) {
  for (let t = 0; t < T; t++) {
    let mean = 0, square = 0;
    for (let e = 0; e < E; e++) mean += x[t * E + e] / E;
    for (let e = 0; e < E; e++) square += (x[t * E + e] - mean) ** 2 / E;
    const scale = 1 / Math.sqrt(square + 1e-5);
    for (let e = 0; e < E; e++) out[t * E + e] = (x[t * E + e] - mean) * scale * gain[e] + bias[e];
  }
}

// Exact, not GPT-2's tanh: erf by Abramowitz and Stegun 7.1.26, within 1.5e-7.
function gelu(x, size) {
  for (let i = 0; i < size; i++) {
    const v = x[i], a = Math.abs(v) * Math.SQRT1_2, t = 1 / (1 + 0.3275911 * a);
    const series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)));
    const tail = t * series * Math.exp(-a * a);
    x[i] = v > 0 ? v * (1 - tail / 2) : v * tail / 2;
  }
}

// What the tokens in `rows` take from those they see, one row of `out` for each. Four sums at a time, so that they do
// not wait for each other; E / H must be a multiple of 4.
function attend(qkv, sees, rows, E, H, out) {
  const D = E / H, scale = 1 / Math.sqrt(D), score = new Float64Array(sees.length);
  for (let h = 0; h < H; h++) for (let r = 0; r < rows.length; r++) {
    const row = sees[rows[r]], count = row.length, q = rows[r] * 3 * E + h * D;
    let top = -Infinity, sum = 0;
    for (let j = 0; j < count; j++) {
      const k = row[j] * 3 * E + E + h * D;
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
      for (let d = 0; d < D; d += 4) {
        a0 += qkv[q + d] * qkv[k + d];
        a1 += qkv[q + d + 1] * qkv[k + d + 1];
        a2 += qkv[q + d + 2] * qkv[k + d + 2];
        a3 += qkv[q + d + 3] * qkv[k + d + 3];
      }
      const s = (a0 + a1 + a2 + a3) * scale;
      score[j] = s;
      if (s > top) top = s;
    }
    for (let j = 0; j < count; j++) sum += score[j] = Math.exp(score[j] - top);
    for (let d = 0; d < D; d += 4) {
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
      for (let j = 0; j < count; j++) {
        const p = score[j], v = row[j] * 3 * E + 2 * E + h * D + d;
        a0 += p * qkv[v];
        a1 += p * qkv[v + 1];
        a2 += p * qkv[v + 2];
        a3 += p * qkv[v + 3];
      }
      const y = r * E + h * D + d;
      out[y] = a0 / sum; out[y + 1] = a1 / sum; out[y + 2] = a2 / sum; out[y + 3] = a3 / sum;
    }
  }
}

// The answers at these tokens: final layer norm, then one number.
function readOut(model, h, rows) {
  const {weights: w, width: E} = model, x = new Float32Array(E);
  return Float32Array.from(rows, t => {
    layerNorm(h.subarray(t * E, t * E + E), 1, E, w["ln_f.weight"], w["ln_f.bias"], x);
    return x.reduce((sum, v, e) => sum + v * w["read_out.weight"][e], w["read_out.bias"][0]);
  });
}

// xs, ys (n) and queries (m) of one dimension → {query (m), context (n)} as read after `depth` layers (all, if not said).
function forward(model, xs, ys, queries, plan, depth = model.layers) {
  const {weights: w, width: E, heads: H} = model, {tokens, place, sees} = plan, T = tokens.length;
  const start = T - plan.m;
  const input = Float32Array.from(tokens, (t, i) => t.query ? queries[i - start] : t.label ? ys[t.example] : xs[t.example]);
  const h = new Float32Array(T * E), x = new Float32Array(T * E), a = new Float32Array(T * E);
  const qkv = new Float32Array(T * 3 * E), wide = new Float32Array(T * 4 * E);
  const read = [...plan.context, ...plan.query]; // in the last layer only these tokens matter
  let rows = [...tokens.keys()], R = T;
  const add = () => { for (let i = 0; i < R * E; i++) h[i] += x[i]; };
  linear(input, T, 1, w["read_in.weight"], w["read_in.bias"], E, h);
  if (place) for (let t = 0; t < T; t++) for (let e = 0; e < E; e++) h[t * E + e] += w["wpe.weight"][place[t] * E + e];
  for (let layer = 0; layer < depth; layer++) {
    const p = name => w[`blocks.${layer}.${name}`];
    layerNorm(h, T, E, p("ln_1.weight"), p("ln_1.bias"), x);
    linear(x, T, E, p("attn.c_attn.weight"), p("attn.c_attn.bias"), 3 * E, qkv);
    if (layer === depth - 1) {
      read.forEach((t, r) => h.copyWithin(r * E, t * E, t * E + E)); // they are in order, so none is overwritten too soon
      [rows, R] = [read, read.length];
    }
    attend(qkv, sees, rows, E, H, a);
    linear(a, R, E, p("attn.c_proj.weight"), p("attn.c_proj.bias"), E, x);
    add();
    layerNorm(h, R, E, p("ln_2.weight"), p("ln_2.bias"), x);
    linear(x, R, E, p("mlp.c_fc.weight"), p("mlp.c_fc.bias"), 4 * E, wide);
    gelu(wide, R * 4 * E);
    linear(wide, R, 4 * E, p("mlp.c_proj.weight"), p("mlp.c_proj.bias"), E, x);
    add();
  }
  const answers = readOut(model, h, depth ? read.keys() : read), n = plan.context.length;
  return {context: answers.slice(0, n), query: answers.slice(n)};
}

// --- Certificates: the symbolic half of `minicl audit`, for a layout with one query. Examples are counted from 0.
function audit(plan, depth) {
  const {n, tokens, sees} = plan;
  const source = tokens.map(t => t.query ? 2 * n : 2 * t.example + t.label); // which input a token is made of
  const depends = [...plan.context, ...plan.query].map(t => {
    const row = Array(2 * n + 1).fill(false);
    for (const k of heardBy(sees, depth, t)) row[source[k]] = true;
    return row;
  });
  const both = (i, j, steps) => new Map(steps.flatMap(s => [[2 * i + s, 2 * j + s], [2 * j + s, 2 * i + s]]));
  const shows = exchange => shownAfter(plan, source, depth, exchange);
  const swaps = [], unpaired = [], leaks = [], independent = [];
  for (let i = 0; i < n; i++) {
    if (i < n - 1 && shows(both(i, i + 1, [0, 1]))) swaps.push(i);
    if (depends[i][2 * i + 1]) leaks.push(i);
    for (let j = 0; j < n; j++) {
      if (j !== i && !depends[i][2 * j] && !depends[i][2 * j + 1]) independent.push([i, j]);
      if (j > i && !shows(both(i, j, [1]))) unpaired.push([i, j]);
    }
  }
  return {depends, swaps, unpaired, leaks, independent, invariant: !swaps.length, noLeak: !leaks.length,
    interdependent: !independent.length, paired: !unpaired.length};
}

// The tokens that token t can have heard of after so many layers: a search along the mask, backwards.
function heardBy(sees, depth, t) {
  const heard = new Set([t]);
  let edge = [t];
  for (let layer = 0; layer < depth && edge.length; layer++) {
    const next = [];
    for (const q of edge) for (const k of sees[q]) if (!heard.has(k)) { heard.add(k); next.push(k); }
    edge = next;
  }
  return heard;
}

// Whether the last token can tell, after some layer, that inputs were exchanged. Colours are refined as in graph.py: a
// token's new colour is its old one and the proportions of the colours that it sees, for that is all attention can tell.
function shownAfter({sees, place}, source, depth, exchange) {
  const names = new Map();
  const name = key => { if (!names.has(key)) names.set(key, names.size); return names.get(key); };
  const colours = swapped => source.map((s, i) => name(`${swapped ? exchange.get(s) ?? s : s} at ${place ? place[i] : 0}`));
  const refine = old => old.map((own, i) => {
    const count = new Map();
    for (const k of sees[i]) count.set(old[k], (count.get(old[k]) || 0) + 1);
    const common = [...count.values()].reduce(gcd, 0);
    return name(`${own}|` + [...count].sort((a, b) => a[0] - b[0]).map(([c, times]) => `${c}:${times / common}`).join());
  });
  let before = colours(false), after = colours(true), kinds = 0;
  for (let layer = 0; layer < depth; layer++) {
    before = refine(before);
    after = refine(after);
    if (before.at(-1) !== after.at(-1)) return true;
    const now = new Set([...before, ...after]).size;
    if (now === kinds) return false; // colours that are no finer than before stay as they are
    kinds = now;
  }
  return false;
}

const gcd = (a, b) => b ? gcd(b, a % b) : a;

// The tokens on the shortest way of label i to its own prediction, from y_i to x_i; null if it does not get there.
function leakPath(plan, depth, i) {
  const goal = plan.context[i], cameFrom = new Map();
  plan.tokens.forEach((t, k) => { if (t.example === i && t.label) cameFrom.set(k, null); });
  for (let layer = 0; layer < depth && !cameFrom.has(goal); layer++) {
    const reached = [];
    plan.sees.forEach((row, q) => {
      const from = row.find(k => cameFrom.has(k));
      if (!cameFrom.has(q) && from !== undefined) reached.push([q, from]);
    });
    for (const [q, k] of reached) cameFrom.set(q, k);
  }
  if (!cameFrom.has(goal)) return null;
  const path = [goal];
  while (cameFrom.get(path[0]) !== null) path.unshift(cameFrom.get(path[0]));
  return path;
}

if (typeof module !== "undefined") module.exports = {MASKS, layout, isOwn, decode, forward, audit, leakPath};
