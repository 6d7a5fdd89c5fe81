"""`minicl bench`: what strategies cost, as ratios measured in one run with the candidates taking turns."""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from minicl import batchicl, children
from minicl.checks import InputError, check, check_int, check_number
from minicl.config import Config
from minicl.cost import flops
from minicl.devices import auto_device, use_threads
from minicl.linear import use_onednn
from minicl.masks import PER_EXAMPLE, STRATEGIES, get_strategy
from minicl.model import ModelConfig, Transformer
from minicl.plugins import short
from minicl.text import columns, names
from minicl.timing import quartiles, ratio, take_turns

Records = list[dict[str, Any]]
SIZES = {
    "paper": {"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    "small": {"examples": 10, "batch_size": 128, "n_dims": 5, "n_layer": 12, "n_head": 4, "n_embd": 64},
}
STATED = ("examples", "batch_size", "n_layer", "n_embd", "device")  # sizes that every record names


def _model(mask, sizes):
    shape = {name: sizes[name] for name in ("n_dims", "n_layer", "n_head", "n_embd")}
    return Transformer(ModelConfig(mask=mask, max_examples=sizes["examples"], **shape)).to(sizes["device"]).eval()


def _prompt(sizes):
    B, n, d = (sizes[name] for name in ("batch_size", "examples", "n_dims"))
    return tuple(torch.randn(shape, device=sizes["device"]) for shape in ((B, n, d), (B, n), (B, 1, d)))


def _wait(sizes):
    """A GPU works on after a call has returned."""
    if sizes["device"] == "cuda":
        torch.cuda.synchronize()


def inference(masks: Sequence[str], sizes: dict[str, Any]) -> Records:
    """One record per strategy: milliseconds per batch, their ratio to the first one's, peak memory, attention pairs."""
    prompt, models = _prompt(sizes), {mask: _model(mask, sizes) for mask in masks}

    def call(model):
        with torch.inference_mode():
            model(*prompt)
        _wait(sizes)

    calls = {mask: lambda model=model: call(model) for mask, model in models.items()}
    seconds = take_turns(calls, sizes["repeats"], warmup=2)
    records = []
    for mask in masks:
        config, layout = models[mask].config, models[mask].layout(sizes["examples"], 1)
        average = models[mask].strategy.average
        low, middle, high = quartiles(seconds[mask])
        records.append(
            {
                "mask": mask,
                **{name: sizes[name] for name in STATED},
                "milliseconds": 1e3 * middle,
                "low": 1e3 * low,
                "high": 1e3 * high,
                "ratio": ratio(seconds[mask], seconds[masks[0]]),
                "ratios": {other: ratio(seconds[mask], seconds[other]) for other in masks},
                "memory_bytes": _memory(mask, sizes),
                "tokens": batchicl.tokens(config, sizes["examples"], 1) if average else len(layout.tokens.copy),
                "pairs": batchicl.pairs(config, sizes["examples"]) if average else layout.pairs,
                "pairs_computed": batchicl.pairs(config, sizes["examples"]) if average else layout.pairs_computed,
            }
        )
    return records


def _memory(mask, sizes):
    """Bytes that a forward pass takes beyond the loaded model, at its peak; on a CPU in a process of its own."""
    if sizes["device"] == "cuda":
        model, prompt = _model(mask, sizes), _prompt(sizes)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.inference_mode():
            model(*prompt)
        return torch.cuda.max_memory_allocated() - before
    code = children.INSTALLED + "from minicl.bench import print_memory; print_memory(sys.argv[1])"
    asked = [sys.executable, "-c", code, json.dumps([mask, sizes])]
    answer = subprocess.run(asked, capture_output=True, text=True)
    return int(answer.stdout) if answer.returncode == 0 else None


def print_memory(request: str) -> None:
    """What `_memory` asks of a process of its own: Linux counts the bytes that a process held at its peak."""
    mask, sizes = json.loads(request)
    torch.set_num_threads(1)
    model, prompt = _model(mask, sizes), _prompt(sizes)
    with torch.inference_mode():
        model(*(t[:1] for t in prompt))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = _peak_bytes()
        model(*prompt)
    print(_peak_bytes() - before)


def _peak_bytes():
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])


def _stepper(mask, sizes, onednn=False):
    """A call that does one training update: forward, backward and optimiser, on a fixed batch."""
    model = _model(mask, sizes).train()
    if onednn:
        use_onednn(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    xs, ys, queries = _prompt(sizes)

    def step():
        out = model(xs, ys, queries)
        _descend(torch.cat([out.context, out.query], dim=1), optimizer, sizes)

    return step


def _descend(answers, optimizer, sizes):
    answers.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    _wait(sizes)


def _hugging_face(sizes):
    """The same update of Hugging Face's GPT-2 between the read-in and read-out of the 2022 code; None without it."""
    try:
        from transformers import GPT2Config, GPT2Model
    except ImportError:
        return None
    E, d = sizes["n_embd"], sizes["n_dims"]
    config = GPT2Config(
        n_positions=_tokens(sizes), n_embd=E, n_layer=sizes["n_layer"], n_head=sizes["n_head"],
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    parts = torch.nn.ModuleList([torch.nn.Linear(d, E), GPT2Model(config), torch.nn.Linear(E, 1)]).to(sizes["device"])
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-4, fused=True)
    xs, ys, queries = _prompt(sizes)

    def step():
        labels = torch.cat([ys[..., None], torch.zeros(*ys.shape, d - 1, device=ys.device)], dim=2)
        tokens = torch.cat([torch.stack([xs, labels], dim=2).flatten(1, 2), queries], dim=1)
        hidden = parts[1](inputs_embeds=parts[0](tokens)).last_hidden_state
        _descend(parts[2](hidden)[:, ::PER_EXAMPLE, 0], optimizer, sizes)

    return step


def _tokens(sizes):
    """Tokens of a prompt with one query and one copy of the context."""
    return PER_EXAMPLE * sizes["examples"] + 1


def _multiply(sizes, repeats=20):
    """A call that only multiplies matrices as large as a layer's, and the FLOPs that it takes."""
    rows, E = sizes["batch_size"] * _tokens(sizes), sizes["n_embd"]
    a, b = torch.randn(rows, E, device=sizes["device"]), torch.randn(E, 4 * E, device=sizes["device"])

    def call():
        for _ in range(repeats):
            a @ b
        _wait(sizes)

    return call, repeats * 2 * rows * E * 4 * E


def training(sizes: dict[str, Any]) -> Records:
    """One record per row of the table: ratios of training steps, and shares of the machine's own multiply rate."""
    steps = {mask: _stepper(mask, sizes) for mask in ("ar", "invicl")}
    rivals, (multiply, work) = {"Hugging Face GPT-2": _hugging_face(sizes)}, _multiply(sizes)
    if sizes["device"] == "cpu":
        rivals["ar with oneDNN"] = _stepper("ar", sizes, onednn=True)
    rivals = {name: step for name, step in rivals.items() if step is not None}
    seconds = take_turns({**steps, "multiply": multiply, **rivals}, sizes["repeats"])
    same = {name: sizes[name] for name in STATED}
    rows = {f"{name} step ÷ ar step": ratio(seconds[name], seconds["ar"]) for name in ("invicl", *rivals)}
    for mask in steps:
        shape = {name: sizes[name] for name in SIZES["paper"]}
        config = Config.make(**shape, max_examples=sizes["examples"], mask=mask, loss="all", lengths="fixed", queries=1)
        share = flops(config, sizes["examples"]) / work
        # The rate of the step over that of plain multiplication, turn by turn.
        rate = ratio([share * s for s in seconds["multiply"]], seconds[mask])
        rows[f"{mask} step, share of the multiply rate"] = rate | {
            "milliseconds": 1e3 * statistics.median(seconds[mask])
        }
    return [{"row": row, **same, **numbers} for row, numbers in rows.items()]


def add_arguments(parser):
    parser.add_argument("--inference", action="store_true", help="a forward pass of each strategy, instead of training")
    parser.add_argument("--quality", metavar="DIR", help="the race to a low error, preset small against 2022, in DIR")
    parser.add_argument("--minutes", type=float, help="--quality: at most, for each run (15)")
    parser.add_argument("--target", type=float, help="--quality: the error to reach (0.05)")
    parser.add_argument("--seeds", type=int, help="--quality: of both recipes (1)")
    parser.add_argument("--plot", metavar="FILE", help="--quality: draw the race, and the curves of what it trained")
    text = "--inference, --quality: strategies (all; ar,invicl)"
    parser.add_argument("--masks", "--mask", type=names, metavar="M,M,…", help=text)
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
    if args.masks is not None and not (args.inference or racing):
        raise InputError("masks: goes with --inference or --quality")
    check(args.masks != (), "masks", "no name", "names with commas between them")
    masks = args.masks or (("ar", "invicl") if racing else tuple(STRATEGIES))
    for mask in masks:
        get_strategy(mask)
    return _run_race(masks, args) if racing else _run_turns(masks, args)


def _given(args, **defaults):
    """What was asked for on the command line, and the defaults of the rest."""
    return {name: getattr(args, name) if getattr(args, name) is not None else d for name, d in defaults.items()}


def _run_turns(masks, args):
    sizes = _given(args, **SIZES[args.size or "paper"], repeats=10)
    for name, value in sizes.items():
        check_int(name, value, least=2 if name == "repeats" else 1)
    if args.threads is not None:
        check_int("threads", args.threads, least=1, most=1024)
    sizes["device"] = auto_device()
    with use_threads(args.threads):
        records = inference(masks, sizes) if args.inference else training(sizes)
    print(json.dumps(records) if args.json else (inference_table if args.inference else training_table)(records))
    return 0


def _run_race(masks, args):
    from minicl import draw, quality

    check(args.quality, "quality", "an empty name", "a folder")
    settings = _given(args, minutes=15.0, target=0.05, seeds=1)
    check_number("minutes", settings["minutes"], above=True)
    check_number("target", settings["target"], above=True)
    check_int("seeds", settings["seeds"], least=1)
    if args.plot is not None:
        draw.check_ending(args.plot)
    records = quality.compare(masks, args.quality, **settings)
    print(json.dumps(records) if args.json else quality.table(records))
    if args.plot is not None:
        draw.save(draw.quality(records, quality.curves(masks, args.quality, settings["seeds"])), args.plot)
    return 0


def _conditions(record):
    """What was measured, under which sizes."""
    return (
        f"{record['batch_size']} prompts with {record['examples']} examples, "
        f"{record['n_layer']} layers of width {record['n_embd']}, on {record['device']}"
    )


def training_table(records: Records) -> str:
    """Training steps in words."""
    rows = [["", "median", "middle half"]]
    for r in records:
        form = "{:.0%}" if "share" in r["row"] else "{:.2f}×"
        rows.append([r["row"], form.format(r["ratio"]), f"{form.format(r['low'])}–{form.format(r['high'])}"])
    return "\n".join([f"training steps of {_conditions(records[0])}", *columns(rows)])


def inference_table(records: Records) -> str:
    """Forward passes in words."""
    first = short(records[0]["mask"])
    rows = [["mask", "ms", "middle half", f"time ÷ {first}", "memory", "tokens", "pairs seen (computed)"]]
    for r in records:
        rows.append(
            [
                short(r["mask"]),
                f"{r['milliseconds']:.1f}",
                f"{r['low']:.1f}–{r['high']:.1f}",
                f"{r['ratio']['ratio']:.2f} ({r['ratio']['low']:.2f}–{r['ratio']['high']:.2f})",
                "–" if r["memory_bytes"] is None else f"{r['memory_bytes'] / 2**20:.0f} MiB",
                str(r["tokens"]),
                f"{round(r['pairs'], 1)} ({r['pairs_computed']})",
            ]
        )
    return "\n".join([f"a forward pass of {_conditions(records[0])}", *columns(rows)])
