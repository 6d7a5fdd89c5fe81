// What the page's JavaScript says, for tests/test_play.py: a JSON request on standard input, the answers on standard output.
const fs = require("fs"), path = require("path"), page = path.join(__dirname, "..", "..", "page");
const core = require(path.join(page, "core.js"));
const data = require(path.join(page, "data.js"));

const request = JSON.parse(fs.readFileSync(0, "utf-8"));
const models = JSON.parse(fs.readFileSync(request.models)).models.map(core.decode);
const forward = ({model, xs, ys, queries, depth}) => {
  const plan = core.layout(models[model].mask, xs.length, queries.length, models[model].positions);
  const {query, context} = core.forward(models[model], xs, ys, queries, plan, depth);
  return {query: [...query], context: [...context]};
};
const audit = ({mask, n, positions, copies, table, layers}) => {
  const plan = core.layout(mask || {positions, copies, sees: () => false}, n, 1, positions, copies);
  if (table) plan.sees = table.map(row => Int32Array.from(row));
  const found = core.audit(plan, layers), lengths = found.leaks.map(i => core.leakPath(plan, layers, i).length - 1);
  return {...found, sees: plan.sees.map(row => [...row]), place: plan.place, lengths};
};
const blocks = bits => {
  const plan = core.layout({positions: "symmetric", copies: 1, sees: (q, k) => bits >> (3 * q.example + k.example) & 1}, 3, 1);
  return core.audit(plan, 4).invariant;
};
process.stdout.write(JSON.stringify({
  forward: request.forward.map(forward),
  audits: request.audits.map(audit),
  optima: request.optima.map(({family, settings, points, grid}) => [...data.optimum(family, settings, points, grid)]),
  tables: request.tables.map(data.parseTable),
  invariant: [...Array(512).keys()].filter(blocks),
  points: [1, 2, 3].map(seed => Array.from({length: 40}, (_, i) => data.drawPoint("line", {noise: 0.3}, seed, i))),
}));
