"""The study's plan: how large everything is at each scale, and what each run is."""

import re
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from minicl.config import Config

SHIFTS = ("noise", "scale", "half_subspace")
PAPER_MASKS = ("ar", "nope", "prefix", "boe", "invicl")
COMPARED = ("ar", "nope", "prefix", "boe", "pfn", "invicl")  # in the main figures
LEARN = ("ar", "nope", "boe", "pfn", "invicl")  # those that learn: they have the most seeds
ALL = (*COMPARED, "prefix_others", "saicl", "batchicl", "deepset")
SHOWN = ("ar", "invicl", "pfn")  # whose trained models stay with the numbers, for demonstrations
AR_BEYOND = "ar+random"  # ar with the positions that extrapolate best in figure 15 of scale study
AS_MANY = ("pfn, 4 queries", "invicl, 16 queries")  # controls that a claim compares: as many seeds as other comparisons
ON_QUERIES = 16  # queries in each prompt where only queries are trained on: about as many terms as the others' losses

Batch = tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]  # tasks, names and seeds: seed by seed, all of them


@dataclass(frozen=True)
class Scale:
    """How large everything is: a preset, changes to it for all runs and for a task's, seeds, and what is measured."""

    preset: str
    most: int  # seeds of the masks that learn, on linear functions
    seeds: int  # of the other comparisons
    fewer: int  # of the controls
    prompts: int  # that every curve is measured on
    probed: int  # that a linear probe is fitted on
    queries: str = "1 query"  # the other number of queries in each prompt that is tried
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    inference: dict[str, int] = field(default_factory=dict)  # the sizes that a forward pass is timed at
    names: dict[str, dict[str, Any]] = field(default_factory=dict)  # changes for the runs of a name
    lengths: tuple[int, ...] = ()  # numbers of examples that curves are measured at; none: all
    measures: dict[str, tuple[str, ...]] = field(default_factory=dict)  # on all runs of a task, whatever figures need
    figures: tuple[int, ...] = ()  # the figures that are drawn; none: all
    order: tuple[Batch, ...] = ()  # the only runs, in the order in which they are made; none: all, first seeds first
    extra: tuple[str, ...] = ()  # masks that stand beside the usual ones, such as the best of `minicl search`
    beside: str = ""  # the scale whose verdicts stand beside this one's
    judged: bool = True  # whether its models are good enough to judge claims by

    def planned(self) -> dict[tuple[str, str, int], int]:
        """{(task, name, seed): its place in the order}. A batch of `order` without names is that of the extra masks."""
        runs = ((task, name, seed) for tasks, names, seeds in self.order
                for seed, task, name in product(seeds, tasks, names or self.extra))  # fmt: skip
        return {run: place for place, run in enumerate(runs)}

    def has(self, task: str, name: str) -> bool:
        """Whether runs of this name belong to the scale."""
        return not self.order or (task, name, 0) in self.planned()


SCALES = {
    "smoke": Scale(
        "small", most=1, seeds=1, fewer=1, prompts=32, probed=32,
        settings={
            "n_dims": 2, "examples": 4, "max_examples": 10, "n_layer": 4, "n_head": 1, "n_embd": 8, "batch_size": 8,
            "steps": 16, "warmup": 2, "keep": (2, 4, 8, 12), "log_every": 4, "save_every": 4, "validate": 16,
        },
        tasks={
            "sparse_linear": {"n_dims": 3, "sparsity": 1, "examples": 6, "max_examples": 15},
            "decision_tree": {"n_dims": 3, "depth": 1, "examples": 6, "max_examples": 15},
            "noisy_linear": {"noise": 0.5},
        },
        inference={"examples": 4, "batch_size": 2, "n_dims": 2, "n_layer": 2, "n_head": 1, "n_embd": 8, "repeats": 3},
        judged=False,
    ),
    # About a quarter of an hour of two cores.
    "class": Scale(
        "tiny", most=2, seeds=2, fewer=2, prompts=512, probed=1024,
        settings={"log_every": 50, "keep": (100, 300, 600, 900)},
        inference={"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 4, "n_head": 4, "n_embd": 64},
        lengths=(0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15),
        figures=(1, 3, 4, 5, 6, 7, 9, 11, 12, 17),
        order=((("linear",), (*COMPARED, "ar+symmetric", "invicl+absolute"), (0, 1)),),
        beside="study",
    ),
    "study": Scale(
        "small", most=5, seeds=3, fewer=2, prompts=512, probed=1024,
        tasks={
            "sparse_linear": {"n_dims": 8, "sparsity": 2, "examples": 16, "max_examples": 40},
            "decision_tree": {"n_dims": 4, "depth": 2, "examples": 20, "max_examples": 50},
            "noisy_linear": {"noise": 0.5},
        },
        inference={"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    ),
    # A run is at most about one hour of one core. The pilot in results/recipe.md fixed width, heads and steps.
    "d20": Scale(
        "paper-fast", most=3, seeds=3, fewer=2, prompts=384, probed=1024,
        settings={
            "n_embd": 64, "n_head": 2, "init_std": 0.12, "batch_size": 32, "steps": 9000, "log_every": 250,
            "save_every": 250, "keep": (450, 900, 2250, 4500, 6750), "curriculum_steps": 3000,
        },
        tasks={"sparse_linear": {"sparsity": 3}, "decision_tree": {"depth": 4}, "noisy_linear": {"noise": 1.0}},
        names={"saicl": {"queries": 2}, "batchicl": {"queries": 8}},  # more would cost more than any other mask does
        inference={"examples": 40, "batch_size": 16, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
        lengths=(0, 5, 10, 15, 18, 20, 22, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100),
        measures={
            "linear": ("steps", "shifts", "order", "normed_probes"), "noisy_linear": ("steps", "order"),
            "sparse_linear": ("steps", "order"), "decision_tree": ("steps", "order"),
        },
        figures=(1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 15, 17),
        order=(
            (("linear",), ("ar", "invicl", "pfn", "nope", "boe"), (0, 1, 2)),
            (("linear",), (), (0, 1, 2)),
            (("linear",), ("prefix", "saicl", "batchicl", AR_BEYOND), (0, 1)),
            (("sparse_linear", "decision_tree"), SHOWN, (0, 1, 2)),
            (("noisy_linear",), SHOWN, (0, 1)),
        ),
        beside="study",
    ),
    "paper": Scale(
        "paper", most=3, seeds=3, fewer=2, prompts=1280, probed=2048, queries="4 queries",
        tasks={"sparse_linear": {"sparsity": 3}, "decision_tree": {"depth": 4}, "noisy_linear": {"noise": 1.0}},
        inference={"examples": 40, "batch_size": 64, "n_dims": 20, "n_layer": 12, "n_head": 8, "n_embd": 256},
    ),
}  # fmt: skip


def as_published(mask: str) -> str:
    """The name of the run of a mask with the paper's objective, under a constant rate."""
    return f"{mask}, paper's objective"


PUBLISHED = {"lengths": "curriculum", "queries": 1, "loss": "all", "schedule": "constant"}
# Runs that are not just a mask, by the name that figures and claims use; also MASK, N queries.
CONTROLS = {
    "deepset": {"architecture": "deepset"},
    "ar+symmetric": {"mask": "ar", "positions": "symmetric"},
    "ar+random": {"mask": "ar", "positions": "random"},
    "ar+rotary": {"mask": "ar", "positions": "rotary"},
    "invicl+absolute": {"mask": "invicl", "positions": "absolute"},
    "invicl+rotary": {"mask": "invicl", "positions": "rotary_symmetric"},
    "prefix+absolute": {"mask": "prefix", "positions": "absolute"},  # else it cannot tell whose label is whose
    "ar+×2": {"mask": "ar", "copies": 2, "reads": 0},  # at copy 0 its predictions do not leak
    "nope+×2": {"mask": "nope", "copies": 2, "reads": 0},
    "boe+×2": {"mask": "boe", "copies": 2},
    "invicl, queries only": {"mask": "invicl", "loss": "query"},
    "prefix, all tokens": {"mask": "prefix", "loss": "all"},
    "ar+blind": {"mask": "ar", "blind_query": True},
    "invicl+blind": {"mask": "invicl", "blind_query": True},
    **{as_published(mask): {"mask": mask, **PUBLISHED} for mask in PAPER_MASKS},
}


ASKING = re.compile(r"(.+), (\d+) quer(?:y|ies)")  # any mask with another number of queries in each prompt


def is_control(name: str) -> bool:
    """Whether a run's name is more than a mask."""
    return name in CONTROLS or ASKING.fullmatch(name) is not None


def _of_name(name):
    """The settings that a run's name stands for."""
    asking = ASKING.fullmatch(name)
    if asking:
        return {"mask": asking[1], "queries": int(asking[2])}
    return CONTROLS.get(name, {"mask": name})


@dataclass(frozen=True)
class Run:
    """One training run of the study."""

    task: str
    name: str  # of a control, or a mask
    seed: int
    config: Config
    measures: frozenset[str]  # beside the curve of the last checkpoint: steps, shifts, normed_probes, order, window

    @property
    def early(self) -> int:
        """A quarter of the way, as the paper's 50k of 200k steps."""
        return self.config.train.steps // 4

    @property
    def late(self) -> int:
        return self.config.train.steps

    def __str__(self):
        return f"{self.task}, {self.name}, seed {self.seed}"


def config_of(scale: Scale, task: str, name: str, seed: int) -> Config:
    """The settings of the run that figures mean by (task, name); a name that is no control is a mask."""
    settings = scale.settings | scale.tasks.get(task, {}) | _of_name(name) | scale.names.get(name, {})
    settings |= {"task": task, "seed": seed, "threads": 1}
    config = Config.make(scale.preset, **settings)
    # Where the context sees the query, each query needs a pass of its own: there more would cost as much more.
    if config.on_context or "queries" in settings or config.model.strategy.sees_query or scale.preset == "paper":
        return config
    return Config.make(scale.preset, **settings, queries=ON_QUERIES)


def seeds_of(scale: Scale, task: str, name: str, few: bool) -> int:
    """The number of seeds of a run that a figure shows."""
    if scale.order and scale.has(task, name):
        return sum((task, name) == key[:2] for key in scale.planned())
    if name in LEARN and task in ("linear", "noisy_linear"):
        return scale.most
    return scale.fewer if few and name not in AS_MANY else scale.seeds
