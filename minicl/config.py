"""Everything that decides a training run: typed settings, presets, and their way to and from config.json."""

import dataclasses
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from minicl import plugins
from minicl.checks import InputError, check, check_int, choose
from minicl.graph import Dependencies, apart, dependencies, leave_one_out
from minicl.masks import MOST_TOKENS, PER_EXAMPLE, TABLES, get_strategy
from minicl.model import ModelConfig
from minicl.settings import add_flags, check_settings, setting
from minicl.tasks import TASKS, Task, get_task, task_class


@dataclass(frozen=True)
class DataConfig:
    """Which prompts. The task's own settings stand beside these."""

    task: str = setting("linear", f"function class: {', '.join(TASKS)}, or path/to/file.py:name")
    examples: int = setting(40, "examples in a full training prompt", least=1)
    queries: int = setting(1, "queries in each prompt", least=1)
    lengths: str = setting(
        "auto",
        "number of examples in a step's prompts. fixed: all. uniform: any number from `fewest` on. long: the larger of "
        "two such numbers. curriculum: growing with the dimensions, as in 2022. auto: fixed if context predictions "
        "train all shorter lengths anyway (a causal mask), else long",
        choices=("auto", "fixed", "uniform", "long", "curriculum"),
    )
    fewest: int = setting(0, "uniform and long: fewest examples in a prompt", least=0)
    curriculum_steps: int | None = setting(
        None,
        "steps in which the dimensions grow from a quarter to all, whatever the lengths (none: all at once; with "
        "lengths curriculum 15 % of all steps)",
        least=1,
    )


@dataclass(frozen=True)
class TrainConfig:
    """How it is trained."""

    steps: int = setting(200_000, "updates", least=1)
    batch_size: int = setting(64, "prompts in each update, over all devices", least=1)
    loss: str = setting(
        "auto",
        "what is trained on. all: context and query predictions. query: only queries. auto: all, if the context's "
        "predictions can depend on other labels and not on their own",
        choices=("auto", "all", "query"),
    )
    clean: bool = setting(False, "train on the function's values instead of the noisy labels: less noisy gradients")
    optimizer: str = setting(
        "adam", "optimiser; muon: for the matrices in the blocks, adam for the rest", choices=("adam", "adamw", "muon")
    )
    lr: float = setting(1e-4, "learning rate", above=0)
    matrix_lr: float = setting(0.02, "muon: learning rate of the matrices in the blocks", above=0)
    beta2: float = setting(0.999, "Adam's second decay rate", least=0)
    weight_decay: float = setting(0.0, "adamw: weight decay of matrices", least=0)
    warmup: int = setting(0, "steps of linear warm-up", least=0)
    schedule: str = setting(
        "constant",
        "after warm-up: constant, cosine to 0, or stable and then linear to 0",
        choices=("constant", "cosine", "stable"),
    )
    decay: float = setting(0.2, "stable: share of the steps that decay", least=0)
    clip: float = setting(0.0, "largest gradient norm; 0 does not clip", least=0)
    precision: str = setting("fp32", "arithmetic of the forward pass", choices=("fp32", "bf16"))
    seed: int = setting(0, "seed of the weights and the prompts", least=0)
    log_every: int = setting(1000, "steps between lines of metrics.jsonl", least=1)
    validate: int = setting(256, "prompts that the error in metrics.jsonl is measured on", least=1)
    save_every: int = setting(1000, "steps between checkpoints", least=1)
    keep: tuple[int, ...] = setting((), "steps whose checkpoints stay (the last always does)")
    extended: tuple[int, ...] = setting((), "steps at which the run was finished before it was extended")


@dataclass(frozen=True)
class MachineConfig:
    """Where it runs. Results depend on it by rounding only, so a run may be resumed with other choices."""

    device: str = setting("auto", "auto, cpu, cuda, cuda:1, …")
    threads: int | None = setting(None, "CPU threads (torch's own choice)", least=1, most=1024)
    compile: bool = setting(False, "torch.compile the model")
    cuda_graphs: bool = setting(False, "with --compile on a GPU: kernels as CUDA graphs, one for each length")
    matmul: str = setting("high", "GPU products of float32 in training; high: TF32", choices=("high", "highest"))
    linear: str = setting("auto", "library for CPU products; auto: the faster one", choices=("auto", "torch", "onednn"))
    tensorboard: bool = setting(False, "write the lines of metrics.jsonl to DIR/tensorboard too, as scalars")


GROUPS = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig, "machine": MachineConfig}
GROUP_OF = {f.name: group for group, cls in GROUPS.items() for f in fields(cls)}
CODE = {"mask": "mask.py", "task": "task.py"}  # what a run folder calls files of one's own

SHAPE = {"n_dims": 5, "examples": 10, "max_examples": 25, "n_head": 4, "n_embd": 64, "init_std": 0.12, "threads": 1}
QUICK = {  # what results/recipe.md found
    "queries": 4,
    "optimizer": "muon",
    "lr": 1e-3,
    "matrix_lr": 0.01,
    "beta2": 0.95,
    "symmetric_std": 0.5,
    "warmup": 100,
    "schedule": "cosine",
    "clip": 1.0,
}
PRESETS = {
    "tiny": {
        **SHAPE, **QUICK, "n_dims": 3, "examples": 6, "max_examples": 15, "n_layer": 4, "steps": 1200,
        "batch_size": 128, "log_every": 100, "save_every": 200, "keep": (100, 300, 600, 900),
    },
    "small": {
        **SHAPE, **QUICK, "steps": 1200, "batch_size": 128, "log_every": 25, "save_every": 100,
        "keep": (100, 200, 300, 600, 900),
    },
    "paper": {
        "lengths": "curriculum", "read_start": "torch", "save_every": 1000,
        "keep": (10_000, 25_000, 50_000, 75_000, 100_000, 125_000, 150_000, 175_000),
    },
    "paper-fast": {
        **QUICK, "init_std": 0.06, "queries": 16, "steps": 20_000, "warmup": 200, "save_every": 250, "log_every": 250,
        "keep": (1000, 2500, 5000, 10_000, 15_000),
    },
    "tables": {
        **SHAPE, **QUICK, "task": "tables", "n_dims": 20, "examples": 100, "fewest": 10, "lengths": "uniform",
        "max_examples": 100, "queries": 24, "clean": True, "n_layer": 6, "steps": 5000, "batch_size": 64,
        "log_every": 100, "save_every": 100,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A whole run, made from flat settings: each has one name on the command line, in a preset and in a file."""

    task: Task
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    machine: MachineConfig

    def __post_init__(self):
        for group in (self.data, self.train, self.machine):
            check_settings(group)
        check(
            self.data.fewest <= self.data.examples, "fewest", self.data.fewest, f"at most {self.data.examples} examples"
        )
        check(self.train.beta2 < 1, "beta2", self.train.beta2, "a number of at least 0 and below 1")
        check(self.train.decay <= 1, "decay", self.train.decay, "a number from 0 to 1")
        exact = self.train.precision == "fp32" or self.machine.linear != "onednn"
        check(exact, "linear", "onednn with bf16", "auto, torch; or onednn with --precision fp32")
        one_pass = not self.model.strategy.average
        check(one_pass or not self.machine.compile, "compile", "mask batchicl", "masks of one pass for a prompt")
        check(self.machine.compile or not self.machine.cuda_graphs, "cuda_graphs", "True", "only with --compile")
        for step in self.train.keep:
            check_int("keep", step, least=1, most=self.train.steps)
        if self.data.curriculum_steps is not None:  # else a run would end before its prompts have all dimensions
            check_int("curriculum_steps", self.data.curriculum_steps, least=1, most=self.train.steps)
        before = 0
        for step in self.train.extended:
            check_int("extended", step, least=before + 1, most=self.train.steps - 1)
            before = step
        tokens = PER_EXAMPLE * self.data.examples * self.model.resolved_copies + self.data.queries
        check(tokens <= MOST_TOKENS, "examples and queries", f"{tokens} tokens in a prompt", f"at most {MOST_TOKENS}")
        if self.model.resolved_positions in TABLES:
            most = self.model.max_examples
            check(self.data.examples <= most, "examples", self.data.examples, f"at most max_examples = {most}")

    @classmethod
    def make(cls, preset: str | None = None, **settings) -> "Config":
        """From a preset and flat settings that override it: `Config.make("tiny", mask="invicl", lr=3e-4)`."""
        return cls._make(PRESETS[choose("preset", preset, tuple(PRESETS))] if preset else {}, settings)

    def changed(self, **settings) -> "Config":
        """This config with other settings. What `auto` chose for it is chosen anew; another task has its defaults."""
        start = {name: value for group in GROUPS for name, value in asdict(getattr(self, group)).items()}
        own = self.task.settings()
        for name in ("loss", "lengths"):
            if self._make(start | own, {name: "auto"}) == self:
                start[name] = "auto"
        same_task = settings.get("task", self.data.task) == self.data.task
        return self._make(start | own if same_task else start, settings)

    @classmethod
    def _make(cls, start, settings):
        """From flat settings, which override those to start with."""
        flat = _tuples({**start, **settings})
        flat |= {k: plugins.resolve(flat[k]) for k in CODE if plugins.is_own(flat.get(k))}
        task = task_class(flat.get("task", DataConfig.task))
        for name in flat:
            _check_setting(name, task)
        if "keep" not in settings and "steps" in settings:  # of those to start with, what a shorter run reaches
            flat["keep"] = tuple(step for step in flat.get("keep", ()) if step <= settings["steps"])
        if "extended" not in settings and "steps" in settings:
            flat["extended"] = tuple(step for step in flat.get("extended", ()) if step < settings["steps"])
        parts = {group: c(**{k: v for k, v in flat.items() if GROUP_OF.get(k) == group}) for group, c in GROUPS.items()}
        own = {k: v for k, v in flat.items() if k not in GROUP_OF}
        built = get_task(parts["data"].task, n_dims=parts["model"].n_dims, **own)
        return cls(task=built, **parts)._resolve()

    def _resolve(self):
        """Replace each `auto` by what it means for this mask, depth and length, so that config.json says it."""
        depends = self.dependencies()
        on = self.on_context if self.train.loss != "auto" else depends.informed and not depends.leaks
        needs = depends.examples[:-1]  # which context prediction needs which examples
        causal = torch.equal(needs, torch.ones_like(needs).tril())
        data, train = self.data, self.train
        if train.loss == "auto":
            train = dataclasses.replace(train, loss="all" if on else "query")
        if data.lengths == "auto":
            data = dataclasses.replace(data, lengths="fixed" if on and causal else "long")
        return dataclasses.replace(self, data=data, train=train)

    @property
    def on_context(self) -> bool:
        """Whether context predictions are trained on."""
        return self.train.loss == "all"

    @property
    def leaks(self) -> bool:
        """Whether labels reach their own predictions at this depth and length."""
        return bool(self.dependencies().leaks)

    def dependencies(self) -> Dependencies:
        """Which prediction depends on which input, at the training length."""
        if self.model.architecture == "deepset":
            return leave_one_out(self.data.examples)
        if self.model.strategy.average:
            return apart(dependencies(self.model.layout(1, 1), self.model.n_layer), self.data.examples)
        return dependencies(self.model.layout(self.data.examples, 1), self.model.n_layer)

    @property
    def method(self) -> str:
        """The strategy's name in tables and legends, with whatever is not the strategy's own."""
        model, strategy = self.model, get_strategy(self.model.mask)
        if model.architecture == "deepset":
            return "deepset"
        parts = [plugins.short(strategy.name)]
        if model.resolved_positions != strategy.positions:
            parts.append(model.resolved_positions)
        if model.resolved_copies != strategy.copies:
            parts.append(f"×{model.resolved_copies}")
        if model.blind_query:
            parts.append("blind")
        if model.reads not in (None, model.resolved_copies - 1):
            parts.append(f"reads {model.reads}")
        if model.average_at is not None:
            parts.append(f"at {model.average_at}")
        return "+".join(parts)

    @property
    def code(self) -> dict[str, str]:
        """{kind: path} of files of one's own that this run depends on."""
        named = {"mask": self.model.mask, "task": self.data.task}
        return {kind: plugins.split(name)[0] for kind, name in named.items() if plugins.is_own(name)}

    def to_json(self) -> dict[str, Any]:
        """What config.json holds. Files of one's own are named as they are in the run's folder, with their hashes."""
        record = {group: asdict(getattr(self, group)) for group in GROUPS}
        record["data"] |= self.task.settings()
        record["code"] = {kind: plugins.digest(path) for kind, path in self.code.items()}
        for kind, group in (("mask", "model"), ("task", "data")):
            if kind in self.code:
                record[group][kind] = f"{CODE[kind]}:{plugins.short(record[group][kind])}"
        return record

    @classmethod
    def from_json(cls, record: Any, folder: str | Path | None = None, trust: bool = False) -> "Config":
        """From what `to_json` gave; settings that it lacks have today's defaults. Code is taken from `folder`."""
        flat, hashes = _flat(record), _hashes(record)
        for kind, file in CODE.items():
            if plugins.is_own(flat.get(kind)):
                flat[kind] = plugins.from_folder(folder, file, flat[kind], hashes.get(kind), trust)
        return cls.make(**flat)

    def continuing(self, record: Any) -> "Config":
        """This run as it goes on from a stored one: with more steps, extended from where that one ended."""
        stored, mine = _plan(record), self.train
        ends = (*stored.extended, stored.steps)
        if mine.steps < stored.steps or mine.extended != ends[: len(mine.extended)]:
            return self
        return self._with(extended=stored.extended if mine.steps == stored.steps else ends)

    def before_extension(self, record: Any) -> "Config":
        """This run as it was when it still had the number of steps of a stored config; itself if it never had."""
        stored, ends = _plan(record), (*self.train.extended, self.train.steps)
        if (*stored.extended, stored.steps) != ends[: len(stored.extended) + 1]:
            return self
        keep = tuple(step for step in self.train.keep if step <= stored.steps)
        return self._with(steps=stored.steps, extended=stored.extended, keep=keep)

    def _with(self, **settings):
        return dataclasses.replace(self, train=dataclasses.replace(self.train, **settings))

    def differences(self, record: Any) -> list[str]:
        """In words, where a stored config would train another model; [] if nowhere. No code is run for it."""
        mine, theirs = _flat(self.to_json()), _flat(record)
        defaults = {f.name: f.default for cls in (*GROUPS.values(), type(self.task)) for f in fields(cls)}
        machine = {f.name for f in fields(MachineConfig)}
        rows = []
        for name in sorted({*mine, *theirs} - machine):
            here, there = mine.get(name), theirs.get(name, defaults.get(name))
            if name in CODE and plugins.is_own(here) and plugins.is_own(there):
                here, there = plugins.short(here), plugins.short(there)
            if here != there:
                rows.append(f"{name} {there} there, {here} here")
        same_code = _hashes(self.to_json()) == _hashes(record)
        return rows or ([] if same_code else ["another content of the mask's or the task's file"])


def _check_setting(name, task):
    """A setting must be one of a run's, or of the task's own; and not both."""
    own = [f.name for f in fields(task) if f.name != "n_dims"]
    both = sorted(set(own) & set(GROUP_OF))
    check(not both, f"setting of task {task.name}", ", ".join(both), "names that are not settings of every run")
    others = {f.name for cls in TASKS.values() for f in fields(cls)} - {"n_dims", *own}
    known = ", ".join(own) or "none"
    check(name not in others, name, f"a setting that task {plugins.short(task.name)} does not have", known)
    choose("setting", name, (*GROUP_OF, *own))


def _flat(record):
    """The settings of a config.json by name. None where a task has no such setting is as good as nothing."""
    try:
        flat = {str(name): value for group in GROUPS for name, value in record[group].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"config: got something that lacks {error}, allowed: what minicl wrote") from error
    return _tuples({name: value for name, value in flat.items() if value is not None or name in GROUP_OF})


def _plan(record):
    """The steps of a stored config, and those at which it was extended."""
    stored = TrainConfig(**{name: value for name, value in _flat(record).items() if name in ("steps", "extended")})
    check_settings(stored)
    return stored


def _tuples(settings):
    """JSON knows no tuples, and people write lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def _hashes(record):
    """{kind: hash} of the code that a stored config depends on."""
    hashes = record.get("code") or {}
    check(isinstance(hashes, dict), "code of config", repr(hashes), "the hashes of mask.py and task.py")
    return hashes


def add_config_flags(parser, preset: str, task: str) -> None:
    """A flag for every setting, and for those of all built-in tasks and of `task`."""
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--preset", choices=PRESETS, help=f"starting point for all settings ({preset})")
    start.add_argument("--config", metavar="FILE", help="starting point: the config.json of a run")
    for title, cls in GROUPS.items():
        add_flags(parser, title, cls, PRESETS[preset])
    flags = set(GROUP_OF)
    for cls in (task_class(task), *TASKS.values()):  # the task's own first: another's may have the same name
        new = [f.name for f in fields(cls) if f.name not in flags]
        if new:
            add_flags(parser, f"settings of task {plugins.short(cls.name)}", cls, {}, skip=flags)
            flags.update(new)
