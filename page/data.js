// Where the points come from: hidden functions, their best answer, pasted tables. Needs no page.

const TRAINED = 10, MOST = 40; // examples in a training prompt, and on the page at most
const X_MOST = 2.5, Y_MOST = 3.3; // the plot shows −most … most
const clamp = (v, least, most) => Math.max(least, Math.min(most, v));
const round2 = v => Math.round(v * 100) / 100; // what is drawn or dragged needs no more, and makes a short link
const round4 = v => Math.round(v * 1e4) / 1e4 || 0; // no point has more, so that the link holds it whole (and no −0)
const point = (x, y) => [clamp(round4(x), -X_MOST, X_MOST), clamp(round4(y), -Y_MOST, Y_MOST)];

// mulberry32: numbers from 0 to 1 that a seed decides, so that the same link shows the same points.
function rng(seed) {
  return () => {
    seed = seed + 0x6D2B79F5 | 0;
    let t = Math.imul(seed ^ seed >>> 15, 1 | seed);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 4294967296;
  };
}
const normal = random => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

// The families of functions that the models were trained on. `settings` are those of their training (see models.json).
const FAMILIES = {
  line: {
    title: "noisy lines",
    hidden(random) {
      const w = normal(random), b = normal(random);
      return x => w * x + b;
    },
    kernel: () => (a, b) => 1 + a * b,
  },
  smooth: {
    title: "smooth curves",
    hidden(random, {length}) {
      const waves = Array.from({length: 128}, () => [normal(random) / length, 2 * Math.PI * random(), normal(random) / 8]);
      return x => waves.reduce((y, [frequency, phase, height]) => y + height * Math.cos(frequency * x + phase), 0);
    },
    kernel: ({length}) => (a, b) => Math.exp(-((a - b) ** 2) / (2 * length ** 2)),
  },
};

// Function number `seed` of a family: the first draw that stays inside the plot.
function hidden(family, settings, seed) {
  const random = rng(seed * 7919 + 1), places = Array.from({length: 21}, (_, i) => X_MOST * (i / 10 - 1));
  for (;;) {
    const f = FAMILIES[family].hidden(random, settings);
    if (places.every(x => Math.abs(f(x)) < 2.7)) return f;
  }
}

// Example i of a function. Its x is normal, as in training, but well spread: quantiles of a golden-ratio sequence.
function drawPoint(family, settings, seed, i) {
  const share = (0.31 + (i + seed % 97 / 97) * 0.6180339887) % 1;
  const tail = Math.max(Math.min(share, 1 - share), 1e-6), t = Math.sqrt(-2 * Math.log(tail));
  const z = t - (2.30753 + 0.27061 * t) / (1 + 0.99229 * t + 0.04481 * t * t);
  const x = clamp(share < 0.5 ? -z : z, -2.3, 2.3);
  const y = hidden(family, settings, seed)(x) + settings.noise * normal(rng(seed * 104729 + i * 31 + 7));
  return point(round2(x), round2(y));
}

// The posterior mean given these points: a Gaussian process, of which Bayesian linear regression is a case.
function optimum(family, settings, points, grid) {
  const k = FAMILIES[family].kernel(settings), n = points.length;
  const A = points.map((p, i) => [...points.map((q, j) => k(p[0], q[0]) + (i === j ? settings.noise ** 2 : 0)), p[1]]);
  for (let c = 0; c < n; c++) // no pivots are needed: the matrix is positive definite
    for (let r = 0; r < n; r++) {
      if (r === c) continue;
      const f = A[r][c] / A[c][c];
      for (let j = c; j <= n; j++) A[r][j] -= f * A[c][j];
    }
  return Float32Array.from(grid, x => points.reduce((y, p, i) => y + k(x, p[0]) * A[i][n] / A[i][i], 0));
}

// A table of one's own: two numbers in each line. → {points, notes}; points is empty if no line could be read.
function parseTable(text) {
  const rows = [], unread = [];
  text.replace(/−/g, "-").split(/\r?\n/).forEach((line, i) => {
    if (!line.trim()) return;
    // With ; or a tab between the columns, a comma is a decimal comma.
    const columns = /[;\t]/.test(line) ? line.replace(/,/g, ".").split(/[;\t]/) : line.split(/[\s,]+/);
    const cells = columns.map(c => c.trim()).filter(Boolean), values = cells.map(Number);
    const whole = values.length === 2 && values.every(v => Number.isFinite(v) && Math.abs(v) < 1e15);
    whole ? rows.push(values) : unread.push(i + 1);
  });
  const notes = [];
  if (unread.length) notes.push(`Not read, because they are not two numbers: line ${list(unread, 5)}.`);
  if (rows.length > MOST) notes.push(`Only the first ${MOST} of ${rows.length} points are used.`);
  const used = rows.slice(0, MOST);
  const scaled = ["x", "y"].map((name, axis) => {
    const values = used.map(row => row[axis]), most = axis ? 3 : 2.3;
    if (values.every(v => Math.abs(v) <= (axis ? Y_MOST : X_MOST))) return values;
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const spread = Math.sqrt(values.reduce((a, v) => a + (v - mean) ** 2, 0) / values.length);
    const scale = Math.max(spread, ...values.map(v => Math.abs(v - mean) / most)) || 1;
    const [centre, unit] = [mean, scale].map(v => v.toPrecision(4));
    notes.push(`${name} is shown as (${name} − ${centre}) ÷ ${unit}, the range of the training.`);
    return values.map(v => (v - mean) / scale);
  });
  return {points: used.map((_, i) => point(scaled[0][i], scaled[1][i])), notes};
}

function list(items, most = items.length) {
  return items.slice(0, most).join(", ") + (items.length > most ? ` and ${items.length - most} more` : "");
}

if (typeof module !== "undefined") module.exports = {parseTable, optimum, drawPoint, hidden, FAMILIES, TRAINED, MOST};
