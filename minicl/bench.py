"""`minicl bench`: what strategies cost, as ratios measured in one run with the candidates taking turns."""

import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from minicl import checkpoint, children
from minicl.errors import InputError, check, check_int, check_number
from minicl.evaluate import Evaluation, but_for_the_seed, columns, over_seeds
from minicl.masks import STRATEGIES, get_strategy, layout, short
from minicl.model import ModelConfig, Transformer, auto_device
from minicl.timing import quartiles, race, ratio


def _model(mask, args):
    config = ModelConfig(
        n_dims=args["n_dims"], mask=mask, n_layer=args["n_layer"], n_head=args["n_head"], n_embd=args["n_embd"],
        max_examples=args["examples"],
    )  # fmt: skip
    return Transformer(config).to(args["device"]).eval()


def _prompt(args):
    shapes = ((args["batch_size"], args["examples"], args["n_dims"]), (args["batch_size"], args["examples"]))
    shapes += ((args["batch_size"], 1, args["n_dims"]),)
    return tuple(torch.randn(s, device=args["device"]) for s in shapes)


def inference(masks, args):
    """A record for each strategy: milliseconds a batch, its ratio to the first one's, peak memory, attention pairs."""
    prompt = _prompt(args)

    def call(model):
        def run():
            with torch.inference_mode():
                model(*prompt)
            if args["device"] == "cuda":
                torch.cuda.synchronize()

        return run

    seconds = race({mask: call(_model(mask, args)) for mask in masks}, args["repeats"], warmup=2)
    records = []
    for mask in masks:
        plan = layout(mask, args["examples"], 1)
        low, middle, high = quartiles(seconds[mask])
        records.append(
            {
                "mask": mask,
                **{name: args[name] for name in ("examples", "batch_size", "n_layer", "n_embd", "device")},
                "milliseconds": 1e3 * middle,
                "low": 1e3 * low,
                "high": 1e3 * high,
                "ratio": ratio(seconds[mask], seconds[masks[0]]),
                "memory_bytes": _memory(mask, args),
                "tokens": len(plan.mask),
                "pairs": int(plan.mask.sum()),
                "pairs_computed": plan.pairs_computed,
            }
        )
    return records


def _memory(mask, args):
    """Bytes that a forward pass takes beyond the loaded model, at its peak; on a CPU in a process of its own."""
    if args["device"] == "cuda":
        model, prompt = _model(mask, args), _prompt(args)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.inference_mode():
            model(*prompt)
        return torch.cuda.max_memory_allocated() - before
    code = (
        "import json, sys, torch\n"
        "from minicl.bench import _model, _prompt, _resident\n"
        "mask, args = json.loads(sys.argv[1])\n"
        "torch.set_num_threads(1)\n"
        "model, prompt = _model(mask, args), _prompt(args)\n"
        "with torch.inference_mode():\n"
        "    model(*(t[:1] for t in prompt))\n"
        "    before = _resident(reset=True)\n"
        "    model(*prompt)\n"
        "print(_resident() - before)\n"
    )
    asked = [sys.executable, "-c", code, json.dumps([mask, args])]
    answer = subprocess.run(asked, capture_output=True, text=True)
    return int(answer.stdout) if answer.returncode == 0 else None


def _resident(reset=False):
    """Bytes of memory that this process held at its peak since the last reset. Linux only: elsewhere it fails."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])


def _stepper(mask, args):
    """A call that does one training update: forward, backward and optimiser, on a fixed batch."""
    model = _model(mask, args).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    xs, ys, queries = _prompt(args)

    def step():
        out = model(xs, ys, queries)
        _descend(torch.cat([out.context, out.query], dim=1), optimizer, args)

    return step


def _descend(answers, optimizer, args):
    answers.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if args["device"] == "cuda":
        torch.cuda.synchronize()


def _hugging_face(args):
    """The same update of Hugging Face's GPT-2 between the read-in and read-out of the 2022 code; None without it."""
    try:
        from transformers import GPT2Config, GPT2Model
    except ImportError:
        return None
    E, d, n = args["n_embd"], args["n_dims"], args["examples"]
    config = GPT2Config(
        n_positions=2 * n + 1, n_embd=E, n_layer=args["n_layer"], n_head=args["n_head"],
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    parts = torch.nn.ModuleList([torch.nn.Linear(d, E), GPT2Model(config), torch.nn.Linear(E, 1)]).to(args["device"])
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-4, fused=True)
    xs, ys, queries = _prompt(args)

    def step():
        labels = torch.cat([ys[..., None], torch.zeros(*ys.shape, d - 1, device=ys.device)], dim=2)
        tokens = torch.cat([torch.stack([xs, labels], dim=2).flatten(1, 2), queries], dim=1)
        hidden = parts[1](inputs_embeds=parts[0](tokens)).last_hidden_state
        _descend(parts[2](hidden)[:, ::2, 0], optimizer, args)

    return step


def _multiply(args, repeats=20):
    """A call that only multiplies matrices as large as a layer's, and the FLOPs that it takes."""
    rows, E = args["batch_size"] * (2 * args["examples"] + 1), args["n_embd"]
    a, b = torch.randn(rows, E, device=args["device"]), torch.randn(E, 4 * E, device=args["device"])

    def call():
        for _ in range(repeats):
            a @ b
        if args["device"] == "cuda":
            torch.cuda.synchronize()

    return call, repeats * 2 * rows * E * 4 * E


def training(args):
    """Records of the throughput rows: ratios of training steps, and shares of the machine's own multiply rate."""
    from minicl.config import Config
    from minicl.cost import flops

    steps = {mask: _stepper(mask, args) for mask in ("ar", "invicl")}
    rival = _hugging_face(args)
    if rival is not None:
        steps["Hugging Face GPT-2"] = rival
    multiply, work = _multiply(args)
    seconds = race({**steps, "multiply": multiply}, args["repeats"], warmup=1)
    same = {name: args[name] for name in ("examples", "batch_size", "n_layer", "n_embd", "device")}
    records = [{"row": "invicl step ÷ ar step", **same, **ratio(seconds["invicl"], seconds["ar"])}]
    if rival is not None:
        name = "Hugging Face GPT-2 step ÷ ar step"
        records.append({"row": name, **same, **ratio(seconds["Hugging Face GPT-2"], seconds["ar"])})
    for mask in steps:
        if mask in ("ar", "invicl"):
            shape = {k: args[k] for k in ("examples", "n_dims", "n_layer", "n_head", "n_embd", "batch_size")}
            config = Config.make(
                **shape, max_examples=args["examples"], mask=mask, loss="all", lengths="fixed", queries=1
            )
            share = flops(config, args["examples"]) / work
            # The rate of the step over that of plain multiplication, turn by turn.
            found = ratio([share * s for s in seconds["multiply"]], seconds[mask])
            found["milliseconds"] = 1e3 * statistics.median(seconds[mask])
            records.append({"row": f"{mask} step, share of the multiply rate", **same, **found})
    return records


# The recipe of 2022 on the same model: Adam at a constant 1e-4, batch 64, GPT-2's initial scale, and its curriculum at
# a quarter, as everything else here: from a quarter of the dimensions, one more every 500 steps instead of every 2,000.
REFERENCE = {
    "optimizer": "adam", "batch_size": 64, "lr": 1e-4, "warmup": 0, "schedule": "constant", "clip": 0,
    "beta2": 0.999, "init_std": 0.02, "symmetric_std": 0.02, "queries": 1,
    "lengths": "curriculum", "steps": 500_000, "curriculum_steps": 2_000, "keep": "",
}  # fmt: skip


def quality(masks, folder, target=0.05, minutes=15.0, seeds=1, **settings):
    """The race to an error at the training length: preset study, seed after seed, beside the recipe of 2022.

    The runs are ordinary run folders below `folder`: asked again with more minutes, they go on where they stopped.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"quality: got {folder}, allowed: a folder ({error.strerror})") from None
    for mask in masks:
        same = settings | {"mask": mask, "threads": 1, "log_every": 25}
        slow = _start(_folder(folder, mask, "reference"), same | REFERENCE | {"seed": 0})
        waiting, started = list(range(seeds)), []
        end = time.monotonic() + 60 * minutes
        try:
            while time.monotonic() < end:
                if waiting and (not started or _ended(started[-1])):
                    seed = waiting.pop(0)
                    started.append(_start(_folder(folder, mask, f"recipe-{seed}"), same | {"seed": seed}))
                recipe, rival = _ended(started[-1]), _ended(slow)
                reached = _reached(_progress_of(_folder(folder, mask, "reference")), target) is not None
                if recipe and not waiting and (rival or reached):
                    break
                time.sleep(0.5)
        finally:
            children.stop([slow[0], *(process for process, _ in started)])
    return [{"mask": mask, "target": target, **_outcome(folder, mask, target, seeds)} for mask in masks]


def _folder(folder, mask, name):
    return Path(folder, f"{short(mask)}-{name}")


def _start(out, settings):
    """(process, its log file) of one run."""
    given = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    log = out.with_suffix(".log")
    return children.start(train, "--preset", "study", *given, "--out", str(out), log=log), log


def train(*arguments):
    """`minicl train`, for a process of its own."""
    from minicl.cli import main

    return main(["train", *arguments])


def _ended(run):
    """Whether a run has ended; InputError if it could not go on."""
    process, log = run
    if process.poll():
        raise InputError(children.complaint(process, log))
    return process.returncode is not None


def _progress_of(out):
    """[(seconds, error at the training length)] of a run, as far as it is."""
    try:
        lines = [[json.loads(s) for s in (out / f).read_text().splitlines()] for f in ("timing.jsonl", "metrics.jsonl")]
    except (OSError, ValueError):  # not there yet, or just being written
        return []
    return [(t["seconds"], list(m["error"].values())[-1]) for t, m in zip(*lines, strict=False)]


def _reached(curve, target):
    """Seconds until the target, or None."""
    return next((seconds for seconds, error in curve if error <= target), None)


def _outcome(folder, mask, target, seeds):
    """Seconds until the target for both recipes (None: not reached), and the ratio, or what it is at least."""
    curves = [_progress_of(_folder(folder, mask, f"recipe-{seed}")) for seed in range(seeds)]
    reference = _progress_of(_folder(folder, mask, "reference"))
    recipe, rival = [_reached(curve, target) for curve in curves], _reached(reference, target)
    trained = reference[-1][0] if reference else 0.0
    slowest = None if None in recipe else max(recipe)
    return {
        "recipe_seconds": recipe,
        "recipe_trained": [curve[-1][0] if curve else 0.0 for curve in curves],
        "recipe_last": [curve[-1][1] if curve else None for curve in curves],
        "recipe_curves": curves,
        "reference_seconds": rival,
        "reference_trained": trained,
        "reference_best": min((error for _, error in reference), default=None),
        "reference_curve": reference,
        "at_least": rival is None,
        "ratio": (trained if rival is None else rival) / slowest if slowest else None,
    }


def quality_table(records):
    rows = [["mask", "recipe", "2022 recipe", "ratio", "last error of the recipe", "least of 2022"]]
    for r in records:
        own = ", ".join("–" if s is None else f"{s:.0f}" for s in r["recipe_seconds"])
        rival = r["reference_seconds"]
        rows.append(
            [
                r["mask"],
                f"{own} s",
                f"not in {r['reference_trained']:.0f} s" if rival is None else f"{rival:.0f} s",
                "–" if r["ratio"] is None else f"{'≥ ' * r['at_least']}{r['ratio']:.1f}×",
                ", ".join("–" if e is None else f"{e:.3g}" for e in r["recipe_last"]),
                "–" if r["reference_best"] is None else f"{r['reference_best']:.3g}",
            ]
        )
    head = (
        f"training time until error {records[0]['target']:g} at the training length; the ratio is to the slowest seed"
    )
    return "\n".join([head, *columns(rows)])


def quality_curves(masks, folder, seeds):
    """Records of error against examples, of the recipe's runs that are finished."""
    folders = [_folder(folder, mask, f"recipe-{seed}") for mask in masks for seed in range(seeds)]
    saved = {f: max(checkpoint.checkpoints(f), default=0) for f in folders}
    finished = [f for f, step in saved.items() if step and step == checkpoint.read_config(f).train.steps]
    check(finished, "plot", "no seed that has finished", "more --minutes: the same command goes on")
    evaluation = Evaluation(finished)
    results = [result for result, _ in evaluation.results()]
    return results + over_seeds(results, {run: but_for_the_seed(c) for run, c in evaluation.runs.items()})


SIZES = {
    "paper": {"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    "study": {"examples": 10, "batch_size": 128, "n_dims": 5, "n_layer": 12, "n_head": 4, "n_embd": 64},
}


def add_arguments(parser):
    parser.add_argument("--inference", action="store_true", help="a forward pass of each strategy, instead of training")
    parser.add_argument("--quality", metavar="DIR", help="the race to a low error, preset study against 2022, in DIR")
    parser.add_argument("--minutes", type=float, help="--quality: for each strategy (15)")
    parser.add_argument("--target", type=float, help="--quality: the error to reach (0.05)")
    parser.add_argument("--seeds", type=int, help="--quality: of preset study, one after the other (1)")
    parser.add_argument("--plot", metavar="FILE", help="--quality: draw the race, and the curves of what it trained")
    names = "--inference, --quality: strategies (all; ar and invicl)"
    parser.add_argument("--mask", nargs="+", action="extend", metavar="M", help=names)
    parser.add_argument("--size", choices=SIZES, help="starting point for the sizes (paper)")
    helps = ("examples in a prompt", "prompts at once", "dimensions of x", "layers", "attention heads", "width")
    for name, text in zip(SIZES["paper"], helps, strict=True):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=text)
    parser.add_argument("--repeats", type=int, help="turns (10)")
    parser.add_argument("--threads", type=int, help="CPU threads (torch's own choice)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")


def run(args):
    racing = args.quality is not None
    check(not (args.inference and racing), "bench", "--inference and --quality", "one of them")
    alien = ("size", *SIZES["paper"], "repeats", "threads") if racing else ("minutes", "target", "seeds", "plot")
    for name in alien:
        if getattr(args, name) is not None:
            raise InputError(f"{name}: goes {'without' if racing else 'with'} --quality")
    if args.mask and not (args.inference or racing):
        raise InputError("mask: goes with --inference or --quality")
    masks = args.mask or (["ar", "invicl"] if racing else list(STRATEGIES))
    check(len(set(masks)) == len(masks), "mask", masks, "each strategy once")
    for mask in masks:
        get_strategy(mask)
    return _run_race(masks, args) if racing else _run_steps(masks, args)


def _given(args, **defaults):
    """What was asked for on the command line, and the defaults of the rest."""
    return {name: getattr(args, name) if getattr(args, name) is not None else d for name, d in defaults.items()}


def _run_steps(masks, args):
    sizes = _given(args, **SIZES[args.size or "paper"], repeats=10)
    for name, value in sizes.items():
        check_int(name, value, least=2 if name == "repeats" else 1)
    if args.threads is not None:
        check_int("threads", args.threads, least=1, most=1024)
        torch.set_num_threads(args.threads)
    sizes["device"] = auto_device()
    records = inference(masks, sizes) if args.inference else training(sizes)
    print(json.dumps(records) if args.json else (table if args.inference else training_table)(records))
    return 0


def _run_race(masks, args):
    from minicl import draw

    check(args.quality, "quality", "an empty name", "a folder")
    names = [_folder("", mask, "") for mask in masks]
    check(len(set(names)) == len(names), "mask", masks, "masks with different names")
    settings = _given(args, minutes=15.0, target=0.05, seeds=1)
    check_number("minutes", settings["minutes"], above=True)
    check_number("target", settings["target"], above=True)
    check_int("seeds", settings["seeds"], least=1)
    if args.plot is not None:
        draw.check_ending(args.plot)
    records = quality(masks, args.quality, **settings)
    print(json.dumps(records) if args.json else quality_table(records))
    if args.plot is not None:
        draw.save(draw.race(records, quality_curves(masks, args.quality, settings["seeds"])), args.plot)
    return 0


def training_table(records):
    rows = [["", "median", "middle half"]]
    for r in records:
        form = "{:.0%}" if "share" in r["row"] else "{:.2f}×"
        rows.append([r["row"], form.format(r["ratio"]), f"{form.format(r['low'])}–{form.format(r['high'])}"])
    first = records[0]
    head = (
        f"training steps of {first['batch_size']} prompts with {first['examples']} examples, "
        f"{first['n_layer']} layers of width {first['n_embd']}, on {first['device']}"
    )
    return "\n".join([head, *columns(rows)])


def table(records):
    first = records[0]
    rows = [["mask", "ms", "middle half", f"time ÷ {first['mask']}", "memory", "tokens", "pairs seen (computed)"]]
    for r in records:
        rows.append(
            [
                r["mask"],
                f"{r['milliseconds']:.1f}",
                f"{r['low']:.1f}–{r['high']:.1f}",
                f"{r['ratio']['ratio']:.2f} ({r['ratio']['low']:.2f}–{r['ratio']['high']:.2f})",
                "–" if r["memory_bytes"] is None else f"{r['memory_bytes'] / 2**20:.0f} MiB",
                str(r["tokens"]),
                f"{r['pairs']} ({r['pairs_computed']})",
            ]
        )
    head = (
        f"a forward pass of {first['batch_size']} prompts with {first['examples']} examples, "
        f"{first['n_layer']} layers of width {first['n_embd']}, on {first['device']}"
    )
    return "\n".join([head, *columns(rows)])
