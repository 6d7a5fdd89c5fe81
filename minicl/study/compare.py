"""What `minicl study` answers: each mask beside ar and invicl, with its errors, its guarantees and its costs."""

from collections.abc import Sequence
from typing import Any

from minicl.auditing import CERTIFICATES, PROPERTIES, audit, in_words
from minicl.cost import mean_flops
from minicl.masks import get_strategy
from minicl.plugins import short
from minicl.stats import percent
from minicl.study.evidence import LENGTHS, Evidence, Missing, Untested, ratio
from minicl.study.figures import make_run
from minicl.study.numbers import Shelf
from minicl.study.plan import Run, config_of, is_control
from minicl.text import columns

REFERENCES = ("ar", "invicl")
AUDITED = (*CERTIFICATES, "interdependent_share", "pairs", "examples", "layers")
Record = dict[str, Any]


def compare(shelf: Shelf, runs: Sequence[Run]) -> list[Record]:
    """One record for each task and mask of these runs whose numbers are in; controls are no masks."""
    keys = dict.fromkeys((run.task, run.name) for run in runs if not is_control(run.name))
    known = [make_run(shelf.scale, task, name, seed) for task in {task for task, _ in keys} for name in REFERENCES
             for seed in range(shelf.seeds(task, name))]  # fmt: skip
    evidence, audited, records = Evidence(shelf, {*runs, *known}), {}, []
    for task, mask in (key for key in keys if key in evidence.runs):
        errors = evidence.last(mask, task)
        config, usual = (config_of(shelf.scale, task, name, 0) for name in (mask, "ar"))
        if mask not in audited:
            audited[mask] = audit(get_strategy(mask), layers=config.model.n_layer)
        curve = next(iter(evidence.curves(mask, task).values()))
        records.append(
            {
                "task": task,
                "mask": mask,
                "lengths": dict(zip(LENGTHS, (curve["trained_on"], curve["lengths"][-1]), strict=True)),
                "error": {where: error.record() for where, error in errors.items()},
                "ratio": {name: _ratios(evidence, errors, name, task) for name in REFERENCES},
                "audit": {what: audited[mask][what] for what in AUDITED},
                "flops": mean_flops(config),
                "flops_ratio": mean_flops(config) / mean_flops(usual),
            }
        )
    return records


def _ratios(evidence, errors, name, task):
    """The errors ÷ those of a reference; None if its numbers are not in, or no seed is shared."""
    try:
        others = evidence.last(name, task)
        return {where: ratio(error, others[where]).record() for where, error in errors.items()}
    except (Missing, Untested):
        return None


def tables(records: Sequence[Record]) -> str:
    """The same in words: for each task and length a table of errors, and one of guarantees; a row for each mask."""
    lines = []
    for task in dict.fromkeys(r["task"] for r in records):
        mine = [r for r in records if r["task"] == task]
        for where, what in zip(LENGTHS, ("as in training", "beyond the training length"), strict=True):
            lines += [f"{short(task)}, {mine[0]['lengths'][where]} examples, {what}", *_errors(mine, where), ""]
    masks = {r["mask"]: r for r in records}
    audited = records[0]["audit"]
    lines.append(f"guarantees, with {audited['examples']} examples and {audited['layers']} layers")
    rows = [[short(mask), *in_words(r["audit"]), f"{r['audit']['pairs']:g}"] for mask, r in masks.items()]
    lines += [*columns([["mask", *PROPERTIES, "token pairs"], *rows]), ""]
    return "\n".join(
        [
            *lines,
            "error: mean over seeds; 1 is that of answering 0. Ratios: geometric mean over the seeds that both have,",
            f"with {percent()} intervals over prompts; and, from two seeds on, over seeds.",
            "FLOPs: those of a training step.",
        ]
    )


def _errors(records, where):
    rows = [["mask", "seeds", "error", *(f"÷ {name}" for name in REFERENCES), "FLOPs ÷ ar"]]
    for r in records:
        error, ratios = r["error"][where], [_cell(r, name, where) for name in REFERENCES]
        seeds = str(len(error["seeds"]))
        rows.append([short(r["mask"]), seeds, _two(error["mean"]), *ratios, f"{r['flops_ratio']:.2f}"])
    return columns(rows)


def _cell(record, name, where):
    """A ratio with its intervals: 0.54 (0.5–0.58; 0.3–0.97)."""
    if record["mask"] == name:
        return "1"
    found = record["ratio"][name]
    if found is None:
        return "–"
    both = [found[where][over] for over in ("over_prompts", "over_seeds")]
    return f"{_two(found[where]['middle'])} ({'; '.join('–'.join(map(_two, ends)) for ends in both if ends)})"


def _two(value):
    """To two digits, and 150 instead of 1.5e+02."""
    return f"{float(f'{value:.2g}'):g}"
