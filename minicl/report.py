"""An evaluation in words: a table for every kind of prompts, and which method has the least error."""

from collections import defaultdict
from collections.abc import Sequence

import numpy

from minicl import stats
from minicl.evaluation import Evaluation, Record
from minicl.shifts import get_shift
from minicl.text import columns


def table(evaluation: Evaluation, results: Sequence[tuple[Record, numpy.ndarray]], records: Sequence[Record]) -> str:
    """Errors at the training length, at the longest, and their mean over lengths, for prompts that are the same."""
    panels = defaultdict(list)
    for result, errors in results:
        panels[tuple(str(result[k]) for k in ("task", "n_dims", "shift", "prompts", "seed"))].append((result, errors))
    lines, compared = [], False
    for (task, n_dims, shift, *_), members in panels.items():
        models = [m for m in members if m[0]["run"] is not None]
        if not models:
            continue
        common = sorted(set.intersection(*(set(result["lengths"]) for result, _ in models)))
        at = dict.fromkeys(n for n in (min(r["trained_on"] for r, _ in models), common[-1]) if n in common)
        rows = [["", *(f"{n} examples" for n in at), f"mean over {common[0]}–{common[-1]}"]]
        for result, errors in members:
            mean = _over(result, errors, common)
            rows.append([_name(result), *_cells(result, at), _cell(mean.mean(), *stats.bootstrap(mean[:, None])[:, 0])])
        for group in (r for r in records if r.get("over") and r["shift"] == shift):
            if group["runs"][0] in {m["run"] for m, _ in models}:
                name = f"{group['method']}, step {group['step']}, range over {len(group['runs'])} seeds"
                rows.append([name, *_cells(group, at), ""])
        contenders = _by_method(evaluation, models)
        if len(contenders) > 1:
            compared = True
            rows.append(["least error", *(least(contenders, [n]) for n in at), least(contenders, common)])
        changed = "" if shift == "none" else f", shift {shift}: {get_shift(shift).summary}"
        lines += [f"{task} in {n_dims} dimensions{changed}", *columns(rows), ""]
    end = f"{stats.percent()} intervals over prompts in brackets; an error of 1 is that of answering 0"
    return "\n".join([*lines, end, *([stats.LEADS.format(stats.percent())] if compared else [])])


def _name(result):
    return result["method"] + ("" if result["run"] is None else f" ({result['run']}, step {result['step']})")


def _by_method(evaluation, models):
    """{name: [(record, errors) of each seed]} of what is compared: methods, and their checkpoints if several."""
    groups = defaultdict(list)
    for result, errors in models:
        groups[evaluation.kind(result["run"]), result["step"]].append((result, errors))
    plain = [members[0][0]["method"] for members in groups.values()]
    names = plain if len(set(plain)) == len(plain) else [_name(members[0][0]) for members in groups.values()]
    return dict(zip(names, groups.values(), strict=True))


def least(contenders: dict[str, list[tuple[Record, numpy.ndarray]]], lengths: Sequence[int]) -> str:
    """The method whose mean error over `lengths` surely is the least, by `stats.leads`; else "undecided"."""
    errors = {name: numpy.array([_over(*m, lengths) for m in members]) for name, members in contenders.items()}
    best, *others = sorted(errors, key=lambda name: errors[name].mean())
    return best if all(stats.leads(errors[best], errors[other]) for other in others) else "undecided"


def _over(result, errors, lengths):
    """(prompts,) mean error over some lengths."""
    return errors[:, [result["lengths"].index(n) for n in lengths if n in result["lengths"]]].mean(1)


def _cells(result, at):
    curve = {n: [result[k][i] for k in ("mean", "low", "high")] for i, n in enumerate(result["lengths"])}
    return [_cell(*curve[n]) if n in curve else "–" for n in at]


def _cell(mean, low, high):
    return f"{mean:.3g} ({low:.3g}–{high:.3g})" if not mean <= 1e-6 else "0"
