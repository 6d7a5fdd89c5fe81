"""Everything that decides a training run: typed settings, presets, and their way to and from config.json."""

import dataclasses
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from minicl.audit import dependencies, leaked
from minicl.errors import InputError, check, check_int, choose
from minicl.masks import get_strategy, layout
from minicl.model import ModelConfig
from minicl.settings import add_flags, check_settings, setting
from minicl.tasks import TASKS, get_task


@dataclass(frozen=True)
class DataConfig:
    """Which prompts."""

    task: str = setting("linear", "function class", choices=tuple(TASKS))
    bias: bool | None = setting(None, "linear, noisy_linear: with an intercept")
    noise: float | None = setting(None, "noisy_linear: standard deviation of the labels' noise", least=0)
    sparsity: int | None = setting(None, "sparse_linear: how many coordinates matter", least=1)
    depth: int | None = setting(None, "decision_tree: depth", least=1)
    hidden: int | None = setting(None, "relu_2nn: hidden units", least=1)
    examples: int = setting(40, "examples in a full training prompt", least=1)
    queries: int = setting(1, "queries a prompt", least=1)
    lengths: str = setting(
        "auto",
        "examples in a step's prompts: all, any number from 0 on, the larger of two such numbers, or growing with the "
        "dimensions as in 2022; auto: fixed if context predictions train all shorter lengths anyway (a causal mask), "
        "else long",
        choices=("auto", "fixed", "uniform", "long", "curriculum"),
    )
    curriculum_steps: int | None = setting(None, "curriculum: steps until prompts are full (15 % of all)", least=1)


@dataclass(frozen=True)
class TrainConfig:
    """How it is trained."""

    steps: int = setting(200_000, "updates", least=1)
    batch_size: int = setting(64, "prompts an update, over all devices", least=1)
    loss: str = setting(
        "auto",
        "what is trained on: context and query predictions, or queries alone; auto: query if the mask leaks",
        choices=("auto", "all", "query"),
    )
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


@dataclass(frozen=True)
class MachineConfig:
    """Where it runs. Results depend on it by rounding alone, so a run may be resumed with other choices."""

    device: str = setting("auto", "auto, cpu, cuda, cuda:1, …")
    threads: int | None = setting(None, "CPU threads (torch's own choice)", least=1)
    compile: bool = setting(False, "torch.compile the model")


GROUPS = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig, "machine": MachineConfig}

SMALL = {"n_dims": 5, "examples": 10, "max_examples": 25, "n_head": 4, "n_embd": 64, "init_std": 0.12}
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
    "demo": {
        **SMALL, **QUICK, "n_dims": 3, "examples": 6, "max_examples": 15, "n_layer": 4, "steps": 1200,
        "batch_size": 128, "log_every": 200, "save_every": 200,
    },
    "study": {
        **SMALL, **QUICK, "steps": 1200, "batch_size": 128, "log_every": 25, "save_every": 100,
        "keep": (100, 200, 300, 600, 900),
    },
    "paper": {
        "lengths": "curriculum", "save_every": 1000,
        "keep": (10_000, 25_000, 50_000, 75_000, 100_000, 125_000, 150_000, 175_000),
    },
    "paper-fast": {
        **QUICK, "init_std": 0.06, "queries": 16, "steps": 20_000, "warmup": 200, "save_every": 250, "log_every": 250,
        "keep": (1000, 2500, 5000, 10_000, 15_000),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A whole run, made from flat settings: each has one name on the command line, in a preset and in a file."""

    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    machine: MachineConfig
    mask_sha256: str | None = None  # of the file that a mask of one's own comes from

    def __post_init__(self):
        for group in (self.data, self.train, self.machine):
            check_settings(group)
        self.task  # noqa: B018  (bad task settings are refused here)
        check(self.train.beta2 < 1, "beta2", self.train.beta2, "a number of at least 0 and below 1")
        check(self.train.decay <= 1, "decay", self.train.decay, "a number from 0 to 1")
        for step in self.train.keep:
            check_int("keep", step, least=1, most=self.train.steps)
        check_int("threads", self.machine.threads or 1, least=1, most=1024)
        if self.model.resolved_positions == "absolute":
            most = self.model.max_examples
            check(self.data.examples <= most, "examples", self.data.examples, f"at most max_examples = {most}")

    @property
    def task(self):
        given = {name: getattr(self.data, name) for name in ("bias", "noise", "sparsity", "depth", "hidden")}
        given = {name: value for name, value in given.items() if value is not None}
        return get_task(self.data.task, n_dims=self.model.n_dims, **given)

    @classmethod
    def make(cls, preset=None, **settings):
        """From a preset and flat settings that override it: `Config.make("demo", mask="invicl", lr=3e-4)`."""
        flat = {**(PRESETS[choose("preset", preset, tuple(PRESETS))] if preset else {}), **settings}
        names = {f.name: group for group, c in GROUPS.items() for f in dataclasses.fields(c)}
        for name in flat:
            choose("setting", name, tuple(names))
        if "keep" not in settings and "steps" in settings:  # of the preset's, those that a shorter run reaches
            flat["keep"] = tuple(step for step in flat.get("keep", ()) if step <= settings["steps"])
        mask, sha = _pin(flat.get("mask", "ar"))
        flat["mask"] = mask
        parts = {group: c(**{k: v for k, v in flat.items() if names[k] == group}) for group, c in GROUPS.items()}
        return cls(**parts, mask_sha256=sha)._resolve()

    def _resolve(self):
        """Replace each `auto` by what it means for this mask, depth and length, so that config.json says it."""
        depends = dependencies(self.layout(), self.model.n_layer)  # (n + 1, 2n + 1)
        on = self.on_context if self.train.loss != "auto" else not leaked(depends)
        needs = depends[:-1, :-1].unflatten(1, (-1, 2)).any(-1)  # (n, n): which example's prediction on which examples
        causal = torch.equal(needs, torch.ones_like(needs).tril())
        data, train = self.data, self.train
        if train.loss == "auto":
            train = dataclasses.replace(train, loss="all" if on else "query")
        if data.lengths == "auto":
            data = dataclasses.replace(data, lengths="fixed" if on and causal else "long")
        return dataclasses.replace(self, data=data, train=train)

    @property
    def on_context(self):
        """Whether context predictions are trained on."""
        return self.train.loss == "all"

    @property
    def leaks(self):
        """Whether labels reach their own predictions at this depth and length."""
        return bool(leaked(dependencies(self.layout(), self.model.n_layer)))

    def layout(self):
        return layout(self.model.strategy, self.data.examples, 1, self.model.positions, self.model.copies)

    def to_json(self):
        return {**{group: asdict(getattr(self, group)) for group in GROUPS}, "mask_sha256": self.mask_sha256}

    @classmethod
    def from_json(cls, record):
        """From what `to_json` gave; a mask file that has changed since is refused."""
        try:
            flat = {name: value for group in GROUPS for name, value in record[group].items()}
            flat["keep"] = tuple(flat["keep"])
            sha = record["mask_sha256"]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"config: got something that lacks {error}, allowed: what minicl wrote") from error
        if ".py:" in str(flat["mask"]) and (sha is None or _sha256(flat["mask"]) != sha):  # before any of it is run
            raise InputError(
                f"mask {flat['mask']}: its file is gone or has changed; the run's folder has a copy, mask.py"
            )
        return cls.make(**flat)

    def differences(self, other):
        """In words, where two configs would train different models; [] if nowhere."""
        mine, theirs = self.to_json(), other.to_json()
        rows = [
            f"{name} {theirs[group][name]} there, {value} here"
            for group in ("data", "model", "train")
            for name, value in mine[group].items()
            if theirs[group][name] != value
        ]
        return rows or ([] if mine["mask_sha256"] == theirs["mask_sha256"] else ["another content of the mask's file"])


def _pin(mask):
    """A mask file's full path and hash, so that a run finds it from any folder and notices when it has changed."""
    get_strategy(mask)
    if not isinstance(mask, str) or ".py:" not in mask:
        return mask, None
    path, _, name = mask.rpartition(":")
    return f"{Path(path).resolve()}:{name}", _sha256(mask)


def _sha256(mask):
    try:
        return hashlib.sha256(Path(mask.rpartition(":")[0]).read_bytes()).hexdigest()
    except OSError:
        return None


def add_config_flags(parser, preset):
    parser.add_argument("--preset", choices=PRESETS, default=preset, help=f"starting point for all settings ({preset})")
    for title, cls in GROUPS.items():
        add_flags(parser, title, cls, PRESETS[preset])
