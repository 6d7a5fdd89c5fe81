"""`minicl bench`: what strategies cost, as ratios measured in one run with the candidates taking turns."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from minicl.errors import InputError, check, check_int
from minicl.evaluate import _columns
from minicl.masks import STRATEGIES, get_strategy, layout
from minicl.model import ModelConfig, Transformer
from minicl.timing import race, ratio


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
        low, middle, high = statistics.quantiles(seconds[mask], n=4)
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
                "pairs_computed": len(plan.mask) ** 2
                if not plan.causal
                else len(plan.mask) * (len(plan.mask) + 1) // 2,
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


def add_arguments(parser):
    parser.add_argument("--inference", action="store_true", help="time and memory of a forward pass")
    parser.add_argument(
        "--mask", nargs="+", action="extend", metavar="M", help="strategies, compared with the first (all)"
    )
    for name, value, text in (
        ("examples", 40, "examples in a prompt"),
        ("batch-size", 16, "prompts at once"),
        ("n-dims", 20, "dimensions of x"),
        ("n-layer", 12, "layers"),
        ("n-head", 8, "attention heads"),
        ("n-embd", 256, "width"),
        ("repeats", 10, "turns"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} ({value})")
    parser.add_argument("--threads", type=int, help="CPU threads (torch's own choice)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")


def run(args):
    given = vars(args).copy()
    as_json, masks, threads = given.pop("json"), given.pop("mask") or list(STRATEGIES), given.pop("threads")
    if not given.pop("inference"):
        raise InputError("bench: got nothing to measure, allowed: --inference")
    for name, value in given.items():
        check_int(name, value, least=2 if name == "repeats" else 1)
    check(len(set(masks)) == len(masks), "mask", masks, "each strategy once")
    for mask in masks:
        get_strategy(mask)
    if threads is not None:
        check_int("threads", threads, least=1)
        torch.set_num_threads(threads)
    records = inference(masks, given | {"device": "cuda" if torch.cuda.is_available() else "cpu"})
    print(json.dumps(records) if as_json else table(records))
    return 0


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
    return "\n".join([head, *_columns(rows)])
