"""The study's matrix: which runs there are, at which scale, and which figure shows which of them.

This file is the whole plan. figures.py carries it out, claims.py judges what came out.
"""

from dataclasses import dataclass, field

from minicl.config import Config

SHIFTS = ("noise", "scale", "half_subspace")
PAPER_MASKS = ("ar", "nope", "prefix", "boe", "invicl")
SHOWN = ("ar", "invicl")  # whose trained models stay with the numbers, for demonstrations


@dataclass(frozen=True)
class Scale:
    """How large everything is: a preset, changes to it for all runs and for a task's, seeds, and what is measured."""

    preset: str
    seeds: int  # of figures 1 to 6
    fewer: int  # seeds of the other runs
    prompts: int  # that every curve is measured on
    probed: int  # prompts that a linear probe is fitted on
    queries: str = "1 query"  # the other number of queries a prompt that is tried
    settings: dict = field(default_factory=dict)
    tasks: dict = field(default_factory=dict)
    inference: dict = field(default_factory=dict)  # the sizes that a forward pass is timed at


SCALES = {
    "smoke": Scale(
        "study", seeds=2, fewer=1, prompts=32, probed=32,
        settings={
            "n_dims": 2, "examples": 4, "max_examples": 10, "n_layer": 4, "n_head": 1, "n_embd": 8, "batch_size": 8,
            "steps": 16, "warmup": 2, "keep": (2, 4, 8, 12), "log_every": 4, "save_every": 4, "validate": 16,
        },
        tasks={
            "sparse_linear": {"n_dims": 3, "sparsity": 1, "examples": 6, "max_examples": 15},
            "decision_tree": {"n_dims": 3, "depth": 1, "examples": 6, "max_examples": 15},
        },
        inference={"examples": 4, "batch_size": 2, "n_dims": 2, "n_layer": 2, "n_head": 1, "n_embd": 8, "repeats": 3},
    ),
    "study": Scale(
        "study", seeds=3, fewer=2, prompts=512, probed=1024,
        tasks={
            "sparse_linear": {"n_dims": 8, "sparsity": 2, "examples": 16, "max_examples": 40},
            "decision_tree": {"n_dims": 8, "depth": 3, "examples": 16, "max_examples": 40},
        },
        inference={"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    ),
    "paper": Scale(
        "paper", seeds=3, fewer=2, prompts=1280, probed=2048, queries="4 queries",
        tasks={"sparse_linear": {"sparsity": 3}, "decision_tree": {"depth": 4}},
        inference={"examples": 40, "batch_size": 64, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    ),
}  # fmt: skip

# Controls: runs beyond "a mask on linear prompts", by the name that figures and claims use.
CONTROLS = {
    "ar+symmetric": {"mask": "ar", "positions": "symmetric"},
    "invicl+absolute": {"mask": "invicl", "positions": "absolute"},
    "prefix+absolute": {"mask": "prefix", "positions": "absolute"},  # else it cannot tell whose label is whose
    "ar+×2": {"mask": "ar", "copies": 2},
    "boe+×2": {"mask": "boe", "copies": 2},
    "prefix+×2": {"mask": "prefix", "copies": 2},
    "invicl, queries only": {"mask": "invicl", "loss": "query"},  # as doubled inputs must be trained: they leak
    "prefix, all tokens": {"mask": "prefix", "loss": "all"},
    "ar+blind": {"mask": "ar", "blind_query": True},
    "invicl+blind": {"mask": "invicl", "blind_query": True},
    "ar, 1 query": {"mask": "ar", "queries": 1},
    "ar, 4 queries": {"mask": "ar", "queries": 4},
    "invicl, 1 query": {"mask": "invicl", "queries": 1},
    "invicl, 4 queries": {"mask": "invicl", "queries": 4},
}


@dataclass(frozen=True)
class Figure:
    """One figure: what it shows, of which runs, and what has to be measured on them for it."""

    title: str
    runs: tuple[tuple[str, str], ...] = ()  # (task, name)
    measures: tuple[str, ...] = ()  # beside the curve of the last checkpoint: steps, shifts, probes, order
    few: bool = False  # the smaller number of seeds is enough


def figures(scale, masks=PAPER_MASKS):
    """The figures by number. Masks of one's own stand beside the paper's where masks are compared."""
    pair = [mask for mask in ("ar", "invicl") if mask in masks] + [m for m in masks if m not in PAPER_MASKS]
    grid = ("ar", "ar+symmetric", "invicl+absolute", "invicl")
    doubled = ("boe", "prefix", "prefix+absolute", "ar+×2", "boe+×2", "prefix+×2", "invicl, queries only")
    asked = [f"{m}{what}" for m in ("ar", "invicl") for what in ("", f", {scale.queries}", "+blind")]
    return {
        1: Figure("error against examples, early and late", _on("linear", masks), ("steps",)),
        2: Figure(
            "sparse linear functions and decision trees", _on("sparse_linear", pair) + _on("decision_tree", pair)
        ),
        3: Figure("three shifts, early and late", _on("linear", masks), ("shifts",)),
        4: Figure("error against examples, checkpoint by checkpoint", _on("linear", pair), ("steps",)),
        5: Figure("error at 2.5 times the training length, against training step", _on("linear", pair), ("steps",)),
        6: Figure("linear probes of four layers", _on("linear", pair), ("probes",)),
        7: Figure("mask × positions, and doubled inputs", _on("linear", (*grid, *doubled)), ("order",), few=True),
        8: Figure(
            "losses, queries, and queries that do not see themselves",
            _on("linear", ("prefix", "prefix, all tokens", *asked)),
            few=True,
        ),
        9: Figure("what a forward pass costs"),
        10: Figure("weights set by hand: the distance to w after each layer"),
    }


def _on(task, names):
    return tuple((task, name) for name in names)


@dataclass(frozen=True)
class Run:
    """One training run of the study."""

    task: str
    name: str
    seed: int
    config: Config
    measures: frozenset

    @property
    def early(self):
        """A quarter of the way, as the paper's 50k of 200k steps."""
        return self.config.train.steps // 4

    @property
    def late(self):
        return self.config.train.steps

    def __str__(self):
        return f"{self.task}, {self.name}, seed {self.seed}"


def make_run(scale, task, name, seed):
    """The run that figures mean by (task, name) at a scale; a name that is no control is a mask."""
    masks = PAPER_MASKS if name in PAPER_MASKS or name in CONTROLS else (*PAPER_MASKS, name)
    every = [figure for figure in figures(scale, masks).values() if (task, name) in figure.runs]
    settings = scale.settings | scale.tasks.get(task, {}) | CONTROLS.get(name, {"mask": name})
    config = Config.make(scale.preset, **settings, task=task, seed=seed, threads=1)
    return Run(task, name, seed, config, frozenset(m for figure in every for m in figure.measures))


def make_runs(scale, numbers, masks=PAPER_MASKS, seeds=None):
    """The runs that the figures of these numbers need: the first seed of all, then the second, …

    `seeds(task, name)`, if given, says how many there should be instead.
    """
    wanted = {}
    for number in numbers:
        figure = figures(scale, masks)[number]
        for key in figure.runs:
            count = seeds(*key) if seeds else scale.fewer if figure.few else scale.seeds
            wanted[key] = max(wanted.get(key, 0), count)
    each = [(seed, *key) for key, count in wanted.items() for seed in range(count)]
    return [make_run(scale, task, name, seed) for seed, task, name in sorted(each, key=lambda run: run[0])]
