// The page in Chromium, as a class uses it. Prints what was seen as JSON; tests/test_browser.py judges it.
const {chromium} = require("playwright-core");
const fs = require("fs");
const [, , executablePath, file] = process.argv, address = `file://${file}`;
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");
const seen = {};
let browser;

async function open(hash = "", options = {}) {
  const context = await browser.newContext({viewport: {width: 1280, height: 900}, ...options});
  const page = await context.newPage();
  page.seen = {requests: [], errors: []};
  page.on("request", r => page.seen.requests.push(r.url()));
  page.on("console", m => { if (["error", "warning"].includes(m.type())) page.seen.errors.push(m.text()); });
  page.on("pageerror", e => page.seen.errors.push(String(e)));
  await page.goto(address + hash);
  await page.waitForFunction(() => window.minicl?.().state.points);
  page.answer = s => page.evaluate(s => [...minicl().answers[s].query], s);
  page.rings = s => page.evaluate(s => [...minicl().answers[s].context], s);
  page.points = () => page.evaluate(() => minicl().state.points);
  page.frame = () => page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  return page;
}
const most = (a, b) => Math.max(...a.map((v, i) => Math.abs(v - b[i])));
const link = state => "#" + new URLSearchParams({f: "line", seed: 12, k: 0, l: 4, t: 0, m: "ar", o: "", ...state});
const PROMPT = "-1.8_-1.2~-1.1_-0.4~-0.6_-0.9~-0.2_0.1~0.3_0.2~0.7_1.1~1.2_0.9~1.9_2.4"; // eight points near a line

async function load() {
  const page = await open();
  seen.requests = page.seen.requests.length;
  seen.loaded = await page.evaluate(() => performance.getEntriesByType("navigation")[0].loadEventEnd);
  await page.waitForTimeout(300);
  seen.title = await page.textContent("#tour-title");
  return page;
}

async function move(page) {
  const before = await page.answer("invicl"), [p] = await page.points();
  const box = await page.locator(".point").first().boundingBox();
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  await page.mouse.move(x, y);
  await page.mouse.down();
  await page.mouse.move(x + 40, y - 60, {steps: 4});
  await page.mouse.up();
  await page.frame();
  const after = await page.answer("invicl"), [q] = await page.points();
  seen.drag = {curve: most(before, after), dx: q[0] - p[0], dy: q[1] - p[1]};
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Shift+ArrowRight");
  await page.frame();
  const [r] = await page.points();
  seen.keys = {curve: most(after, await page.answer("invicl")), dx: r[0] - q[0], dy: r[1] - q[1]};
  await page.keyboard.press("PageDown");
  seen.nextPoint = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
}

async function touch() {
  const page = await open(link({s: "ar", p: PROMPT}), {hasTouch: true, isMobile: true, viewport: {width: 390, height: 844}});
  const before = await page.points(), session = await page.context().newCDPSession(page);
  await page.locator(".point").nth(4).scrollIntoViewIfNeeded();
  const box = await page.locator(".point").nth(4).boundingBox(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  const send = (type, dy) => session.send("Input.dispatchTouchEvent", {type, touchPoints: type === "touchEnd" ? [] : [{x, y: y + dy}]});
  await send("touchStart", 0);
  for (const dy of [-10, -25, -40]) await send("touchMove", dy);
  await send("touchEnd", 0);
  await page.frame();
  seen.touch = (await page.points())[4][1] - before[4][1];
}

async function shuffleAndSwap() {
  const page = await open(link({s: "ar.invicl.prefix", p: PROMPT}));
  const all = async () => Object.fromEntries(await Promise.all(["ar", "invicl", "prefix"].map(async s => [s, await page.answer(s)])));
  const compare = (a, b) => Object.fromEntries(Object.keys(a).map(s => [s, most(a[s], b[s])]));
  const first = await all();
  await page.click("#shuffle");
  const second = await all();
  seen.shuffle = {...compare(first, second), says: await page.textContent("#status")};
  await page.click("#swap");
  seen.swap = {...compare(second, await all()), says: await page.textContent("#status")};
}

// Two points, one, and no model; whatever else is set, the old report goes.
async function smallShuffles() {
  const page = await open(link({s: "ar", p: "-1_-1~1_1"})), says = () => page.textContent("#status");
  seen.orders = "";
  for (let i = 0; i < 6; i++) {
    await page.click("#shuffle");
    seen.orders += (await page.points())[0][0] > 0 ? "+" : "-";
  }
  seen.stale = [];
  for (const act of [() => page.locator("#layer").fill("2"), () => page.selectOption("#training", "50"),
    () => page.selectOption("#family", "smooth"), () => page.locator("#n").fill("3")]) {
    await page.click("#shuffle");
    if (await says() === "") seen.stale.push("nothing was said");
    await act();
    seen.stale.push(await says());
  }
  await page.uncheck('[data-show="ar"]');
  await page.click("#shuffle");
  seen.noModel = await says();
  await page.locator("#n").fill("1");
  await page.click("#shuffle");
  seen.onePoint = await says();
}

// The focus stays on a button that has nothing more to do, and pressing it again does nothing.
async function focusStays() {
  const page = await open(), focused = () => page.evaluate(() => document.activeElement.id);
  seen.focus = [];
  const press = async (id, times) => {
    await page.locator(id).focus();
    for (let i = 0; i < times; i++) await page.keyboard.press("Enter");
    seen.focus.push(await focused(), await page.textContent("#tour-count"));
  };
  await press("#next", 7);
  await page.click("#swap");
  const before = JSON.stringify(await page.points());
  await press("#next", 1);
  seen.notRestarted = before === JSON.stringify(await page.points());
  await page.click('[data-cell="0-2"]');
  await press("#undo", 1);
  await press("#back", 8);
}

async function pullLabel(strategy) {
  const page = await open(link({s: strategy, o: "rings.updown", p: PROMPT}));
  const before = await page.rings(strategy);
  await page.locator(".point").nth(3).focus();
  for (let i = 0; i < 2; i++) await page.keyboard.press("Shift+ArrowUp");
  await page.frame();
  const moved = (await page.rings(strategy)).map((v, i) => Math.abs(v - before[i]));
  const ring = await page.locator("circle.ring").count();
  return {own: moved[3], earlier: Math.max(...moved.slice(0, 3)), later: Math.max(...moved.slice(4)), ring, says: await page.textContent("#status")};
}

async function longPrompt() {
  const page = await open();
  for (let step = 1; step < 4; step++) await page.click("#next");
  await page.frame();
  seen.long = await page.evaluate(() => Object.fromEntries(["ar", "invicl"].map(s => [s, Number(document.querySelector(`[data-far="${s}"]`).textContent)])));
  seen.longSays = await page.textContent("#n-out");
  seen.late = await page.locator(".point.late").count();
  await page.locator("#n").fill("40");
  const times = [];
  for (let i = 0; i < 15; i++) {
    await page.evaluate(() => redraw());
    times.push(await page.evaluate(() => minicl().milliseconds));
  }
  seen.redraw = times.sort((a, b) => a - b)[7];
  await page.locator("#n").fill("0");
  await page.frame();
  seen.empty = await page.evaluate(() => [minicl().state.points.length, ...minicl().answers.ar.query].every(Number.isFinite));
}

async function links() {
  const page = await open(link({s: "boe.pfn", m: "pfn", o: "rings.best", l: 3, p: PROMPT, b: "two", c: "6-1~8-3", z: 5, k: 0}));
  await page.click("#shuffle");
  await page.locator(".point").first().focus();
  await page.keyboard.press("ArrowUp");
  await page.waitForTimeout(400);
  const what = p => p.evaluate(() => JSON.stringify([{...minicl().state, painted: [...minicl().state.painted]}, [...minicl().answers.boe.query], document.getElementById("mask-title").textContent, document.getElementById("certificates").textContent]));
  const there = await page.evaluate(() => location.hash), again = await open(there);
  seen.restored = await what(page) === await what(again);
  seen.garbage = [];
  const values = ["%00", "NaN", "-1", "1e999", "__proto__", "constructor", "<img src=x onerror=alert(1)>", "9".repeat(400), "~_~_", "a_b~NaN_1~Infinity_2", ""];
  const keys = ["f", "seed", "s", "m", "l", "k", "t", "o", "p", "w", "b", "c", "z"];
  const hashes = ["#%E0%A4%A", "#p", "#f=line", "#p=&f=&s=&m=", "#" + "x".repeat(20000), link({p: "1_1~".repeat(500)}),
    ...values.map(v => link(Object.fromEntries(keys.map(k => [k, v])))),
    ...keys.flatMap((k, i) => [0, 4, 8].map(j => link({s: "ar.invicl", p: PROMPT, [k]: values[(i + j) % values.length]})))];
  for (const hash of hashes) {
    await again.evaluate(hash => { location.hash = "#reset"; location.hash = hash; }, hash);
    await again.waitForTimeout(5);
    const sane = await again.evaluate(() => {
      const {state, answers} = minicl(), shown = state.show.flatMap(s => [...answers[s].query, ...answers[s].context]);
      return [...state.points.flat(), ...shown, state.layer, state.seed, state.tour].every(Number.isFinite)
        && state.points.length <= 40 && !/NaN|undefined|null/.test(document.getElementById("plot").innerHTML + document.body.innerText);
    });
    if (!sane) seen.garbage.push(hash.slice(0, 200));
  }
  const fresh = await open("#f=%00&p=rubbish"), plain = await open();
  const points = p => p.evaluate(() => JSON.stringify([minicl().state.points, minicl().state.show]));
  seen.defaults = await points(fresh) === await points(plain);
  seen.garbageTried = hashes.length;
  seen.garbageErrors = again.seen.errors;
}

async function painting() {
  const page = await open(link({s: "invicl", m: "boe", p: PROMPT}));
  const marks = () => page.locator("#certificates li").evaluateAll(rows => rows.map(r => r.textContent[0]).join(""));
  seen.boe = await marks();
  await page.selectOption("#base", "invicl");
  seen.invicl = await marks();
  await page.selectOption("#base", "two");
  for (const [i, j] of [[6, 3], [6, 5], [8, 1], [8, 5], [10, 1]]) await page.click(`[data-cell="${i}-${j}"]`); // x' sees the others' y
  seen.almost = await marks();
  await page.locator('[data-cell="10-1"]').focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Space"); // the last of the six, by keyboard
  seen.solved = [await marks(), await page.textContent("#puzzle-2"), await page.isVisible("#why-not")];
  await page.click('[data-cell="6-1"]'); // x1' sees y1
  seen.leak = [await page.textContent("#certificates li:nth-child(2)"), await page.isVisible("#leak-picture"), await page.locator("#mask .path").count()];
  await page.click("#undo");
  seen.undone = await marks();
  await page.click("#puzzles summary");
  for (const bit of [1, 2, 3, 5, 6, 7]) await page.click(`[data-bit="${bit}"]`);
  seen.puzzle = await page.textContent("#puzzle-count");
  for (const bit of [1, 2, 3, 5, 6, 7]) await page.click(`[data-bit="${bit}"]`); // back to the empty mask
  seen.puzzleEmpty = await page.textContent("#puzzle-count");
  await page.click("#count");
  seen.counted = await page.textContent("#puzzle-count");
  await page.click("#again");
  seen.puzzleAgain = await page.textContent("#puzzle-count");
  const unknown = await open(link({s: "invicl", m: "invicl", p: PROMPT, c: "99-99~0-0~0-12"}));
  seen.unknownCells = [await unknown.textContent("#mask-title"), await unknown.textContent("#puzzle-2")];
}

async function ownData() {
  const page = await open(link({s: "ar.invicl", p: PROMPT}));
  await page.click("#own-data summary");
  await page.fill("#paste", "nothing, here\nNaN NaN");
  await page.click("#use");
  seen.rubbish = [(await page.points()).length, await page.textContent("#paste-notes")];
  await page.fill("#paste", "year; value\n2000; 1\n2001; 3\n2002; 2,5");
  await page.click("#use");
  seen.pasted = [(await page.points()).length, await page.textContent("#paste-notes")];
  const look = async p => [(await p.points()).length, await p.locator("path.hidden").count(), await p.textContent("#legend")];
  seen.own = [await look(page)];
  for (const n of ["2", "40"]) {
    await page.locator("#n").fill(n);
    seen.own.push(await look(page));
  }
  seen.ownSays = await page.textContent("#status");
  await page.locator("#n").fill("1");
  await page.waitForTimeout(250);
  const again = await open(await page.evaluate(() => location.hash));
  await again.locator("#n").fill("40");
  seen.own.push(await look(again));
  await again.click("#fresh");
  await again.locator("#n").fill("5");
  seen.notOwn = [(await again.points()).length, await again.locator("#plot path.hidden").count()];
  await page.fill("#paste", "1 1\n1 1\n1 1\n1 -1");
  await page.click("#use");
  seen.same = (await page.answer("invicl")).every(Number.isFinite);
}

// Each tour step in both colour schemes and on a phone: what axe finds, and what is wider than the screen.
async function looks() {
  seen.axe = [];
  seen.wide = [];
  for (const [colorScheme, width] of [["light", 1280], ["dark", 390]]) {
    const page = await open("", {colorScheme, viewport: {width, height: 844}});
    await page.evaluate(axe);
    for (let step = 1; step <= 8; step++) {
      await page.evaluate(() => { for (const d of document.querySelectorAll("details")) d.open = true; });
      const [scroll, inner] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      if (scroll > inner) seen.wide.push([step, width, scroll]);
      if ([1, 4, 6, 8].includes(step)) {
        const found = await page.evaluate(() => axe.run(document, {resultTypes: ["violations"]}));
        seen.axe.push(...found.violations.filter(v => ["serious", "critical"].includes(v.impact))
          .map(v => `${colorScheme} step ${step}: ${v.id}: ${v.nodes[0].html.slice(0, 160)} ${v.nodes[0].failureSummary}`));
      }
      if (step < 8) await page.click("#next");
      await page.frame();
    }
    seen.lastStep = await page.textContent("#tour-count");
    seen.errors = [...(seen.errors || []), ...page.seen.errors];
    await page.close();
  }
}

(async () => {
  browser = await chromium.launch({executablePath, args: FLAGS});
  try {
    const page = await load();
    await move(page);
    seen.errors = page.seen.errors;
    await touch();
    await shuffleAndSwap();
    await smallShuffles();
    await focusStays();
    seen.pull = {};
    for (const s of ["prefix_others", "invicl", "ar", "boe"]) seen.pull[s] = await pullLabel(s);
    await longPrompt();
    await links();
    await painting();
    await ownData();
    await looks();
  } finally {
    await browser.close();
  }
  console.log(JSON.stringify(seen));
})();
