"""Function classes: where prompts come from. Tasks know no model.

A task draws one function for each prompt and evaluates it at inputs: x ~ N(0, I), unless it says otherwise. Everything
is batched over prompts (B), made on the device that is asked for, and a pure function of the task's settings and the
seed.

A class of one's own is a few lines in a file, named as `path/to/file.py:name` wherever a task is:

    class cubic(Task):
        \"\"\"y = w·x³ / √15\"\"\"

        degree = 3  # inputs c times as large have labels c³ times as large

        def function(self, random):
            w = random.normal("w", self.n_dims)
            return lambda xs: dot(w, xs**3) / 15**0.5
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from minicl import plugins
from minicl.checks import InputError, check, check_int, check_number, choose
from minicl.registry import Registry, build
from minicl.rng import Random
from minicl.settings import check_settings, field_kinds, setting
from minicl.shifts import Shift, get_shift
from minicl.text import one_line


class Prompt(NamedTuple):
    """n points of one function in each prompt, and what to ask after the first i of them, for every i < n.

    Without a shift that says otherwise, the query after i points is simply the next point.
    """

    xs: Tensor  # (B, n, d)
    ys: Tensor  # (B, n) as observed: with noise where there is any
    queries: Tensor  # (B, n, d)
    targets: Tensor  # (B, n) the function at the queries, without noise


@dataclass(frozen=True)
class Task:
    """A function class. Subclasses say how a function is drawn, and what its values' mean square is."""

    n_dims: int = setting(20, "dimensions of x", least=1)
    name: ClassVar[str]
    degree: ClassVar[int] = 1  # f(c·x) = c^degree · f(x) for c > 0
    noise: ClassVar[float] = 0.0  # standard deviation of what is observed around the function's value
    baselines: ClassVar[tuple[str, ...]] = ("knn",)  # what its curves are read against when nobody says

    def __post_init__(self):
        check_settings(self)

    @property
    def normaliser(self) -> float:
        """The mean square of y, which makes every curve start near 1."""
        return float(self.n_dims)

    @property
    def label_size(self) -> float:
        """The root mean square of the labels: to this size real labels are brought before they enter a prompt."""
        return math.sqrt(self.normaliser)

    def scaled_normaliser(self, factor: float) -> float:
        """The same for inputs that are `factor` times as large."""
        return self.normaliser * factor ** (2 * self.degree)

    def usual_baselines(self, shift: str = "none") -> tuple[str, ...]:
        return self.baselines

    def function(self, random: Random) -> Callable[[Tensor], Tensor]:
        """Draw a function for every prompt: a callable from (B, n, d) to (B, n)."""
        raise TypeError(f"{type(self).__name__} does not say how to draw a function")

    def inputs(self, random: Random, n: int) -> Tensor:
        """(B, n, d) inputs for every prompt."""
        return random.normal("xs", n, self.n_dims)

    def noise_scale(self, random: Random) -> float | Tensor:
        """The standard deviation of the labels' noise: one for all prompts, or (B, 1)."""
        return self.noise

    def sample(
        self,
        batch_size: int = 64,
        n_points: int = 41,
        seed: int | tuple[int, ...] = 0,
        shift: str | Shift | None = None,
        start: int = 0,
        device: str | torch.device = "cpu",
        dims: int | None = None,
    ) -> Prompt:
        """Prompts start … start + batch_size − 1 of a seed; a larger batch begins with the smaller one's prompts.

        With `dims`, only the first `dims` coordinates of the inputs are not zero (a curriculum's easier prompts).
        """
        check_int("n_points", n_points, least=0)
        shift = get_shift(shift)
        most = shift.most_points(self)
        check(n_points <= most, f"n_points under shift {shift.name}", n_points, f"at most {most}")
        random = Random(seed, batch_size, start, device, dims)
        f = shift.function(self.function(random), random)
        xs = self.inputs(random, n_points)
        if dims is not None:
            xs[..., dims:] = 0
        xs, queries = shift.inputs(xs, random)
        clean = f(xs)
        ys, noise = clean, self.noise_scale(random)
        if isinstance(noise, Tensor):
            noise = (noise.square() + shift.label_noise**2).sqrt()
        else:
            noise = math.hypot(noise, shift.label_noise)
        if isinstance(noise, Tensor) or noise:
            ys = clean + noise * random.normal("noise", n_points)
        return Prompt(xs, ys, queries, clean if queries is xs else f(queries))

    def settings(self) -> dict:
        """Its own settings by name: those that are not every task's."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "n_dims"}


TASKS = Registry("task")
RESERVED = (
    "name",
    "cls",
    "out",
    "json",
    "preset",
    "config",
    "trust",
    "dry_run",
    "help",
)  # flags of `minicl train`, and Python's own


def get_task(name: str, **settings) -> Task:
    """A function class by name, with its settings: `get_task("sparse_linear", n_dims=20, sparsity=3)`."""
    task = build("task", task_class(name), settings)
    if plugins.is_own(name):
        _try(task)
    return task


def task_class(name: str) -> type[Task]:
    """The class that `name` means: a built-in name, or `path/to/file.py:name`."""
    if plugins.is_own(name):
        return _from_file(name, plugins.load("task", name)[0])
    return TASKS[choose("task", name, tuple(TASKS), also=", or one of your own as path/to/file.py:name")]


@lru_cache(maxsize=64)
def _from_file(name, cls):
    ok = isinstance(cls, type) and issubclass(cls, Task)
    check(ok, f"task {name}", getattr(cls, "__name__", type(cls).__name__), "a subclass of minicl.tasks.Task")
    try:
        if "__dataclass_fields__" not in vars(cls):  # its author may have made it one; so may another path to the file
            cls = dataclass(frozen=True)(cls)
    except (TypeError, ValueError) as error:
        raise InputError(f"task {name}: its settings cannot be read: {one_line(error)}") from error
    _check_fields(name, cls)

    def sample(self, *args, **settings):
        with plugins.aside():
            return cls.sample(self, *args, **settings)

    own = {"__doc__": cls.__doc__, "__module__": cls.__module__, "name": name, "sample": sample}
    return dataclass(frozen=True)(type(cls.__name__, (cls,), own))


def _check_fields(name, cls):
    """Settings become flags and go through JSON: some names and types cannot."""
    kinds = field_kinds(cls)
    for f in dataclasses.fields(cls):
        check(f.name not in RESERVED, f"setting of task {name}", f.name, f"other names than {', '.join(RESERVED)}")
        plain = kinds[f.name] in (int, float, str, bool, tuple)
        check(plain, f"setting {f.name} of task {name}", f.type, "int, float, str, bool, tuple[int, ...]")


def _try(task):
    """A task of one's own that cannot work is refused here, before anything uses it."""
    what = f"task {task.name}"
    try:
        prompt, again, second = task.sample(2, 3), task.sample(2, 3), task.sample(1, 3, start=1)
        normaliser = task.normaliser
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: it failed: {one_line(error)}") from error
    check_number(f"{what}: its normaliser", normaliser, above=True)
    ys, given = prompt.ys, f"{what}: its function's values"
    check(isinstance(ys, Tensor), given, type(ys).__name__, "a tensor")
    check(ys.shape == (2, 3), given, f"shape {tuple(ys.shape)} for xs of shape {tuple(prompt.xs.shape)}", "(B, n)")
    check(ys.dtype == prompt.xs.dtype, given, ys.dtype, f"{prompt.xs.dtype}, as xs")
    check(ys.isfinite().all(), given, "NaN or infinity", "finite numbers")
    check(torch.equal(ys, again.ys), given, "others each time", "the same ones for the same seed: draw from `random`")
    alone = torch.allclose(ys[1:], second.ys, rtol=1e-3, atol=1e-4)
    check(alone, given, "others when a prompt is alone in its batch", "values that depend on their own prompt only")


def dot(w: Tensor, xs: Tensor) -> Tensor:
    """w·x for every point. A sum over products, so that a prompt's values do not depend on the batch around it."""
    return (xs * w[:, None, :]).sum(-1)


@TASKS("linear")
class Linear(Task):
    """y = w·x with w ~ N(0, I), and + b with b ~ N(0, 1) if there is a bias."""

    bias: bool = setting(False, "with an intercept")

    @property
    def normaliser(self):
        return float(self.n_dims + self.bias)

    def scaled_normaliser(self, factor):
        return self.n_dims * factor**2 + self.bias

    def usual_baselines(self, shift="none"):
        """Without noise, intercept or moved labels, least squares is the optimum."""
        exact = not (self.noise or self.bias or get_shift(shift).offset or get_shift(shift).label_noise)
        return ("least_squares",) if exact else ("optimal", "least_squares")

    def function(self, random):
        w = random.normal("w", self.n_dims)
        b = random.normal("b", 1) if self.bias else 0
        return lambda xs: dot(w, xs) + b


@TASKS("noisy_linear")
class NoisyLinear(Linear):
    """y = w·x + noise on every observed label; targets are without it."""

    noise: float = setting(1.0, "standard deviation of the labels' noise", least=0)


@TASKS("sparse_linear")
class SparseLinear(Task):
    """y = w·x where only `sparsity` coordinates of w, chosen at random, are not zero (and ~ N(0, 1))."""

    sparsity: int = setting(3, "number of coordinates that matter", least=1)
    baselines: ClassVar = ("optimal", "lasso", "least_squares")

    def __post_init__(self):
        super().__post_init__()
        check(self.sparsity <= self.n_dims, "sparsity", self.sparsity, f"at most n_dims = {self.n_dims}")

    @property
    def normaliser(self):
        return float(self.sparsity)

    def function(self, random):
        active = random.dims or self.n_dims  # in a curriculum the support lies inside what is not zero, as in 2022
        support = random.choice("support", active, self.sparsity)
        values = random.normal("w", self.n_dims)
        w = torch.zeros_like(values).scatter(1, support, values.gather(1, support))
        return lambda xs: dot(w, xs)


@TASKS("decision_tree")
class DecisionTree(Task):
    """A full binary tree: each inner node asks whether one random coordinate is positive; leaves ~ N(0, 1)."""

    depth: int = setting(4, "depth of the tree, which has 2^depth leaves", least=1, most=16)
    degree: ClassVar[int] = 0
    baselines: ClassVar = ("greedy_tree", "knn")

    @property
    def normaliser(self):
        return 1.0

    def tree(self, random):
        """The coordinate of every inner node (children of node k: 2k + 1, and 2k + 2 if positive), and the leaves."""
        inner = 2**self.depth - 1
        return random.integers("nodes", self.n_dims, inner), random.normal("leaves", inner + 1)

    def function(self, random):
        coordinates, leaves = self.tree(random)

        def evaluate(xs):
            node = torch.zeros(xs.shape[:2], dtype=torch.long, device=xs.device)
            for _ in range(self.depth):
                value = xs.gather(2, coordinates.gather(1, node).unsqueeze(2)).squeeze(2)
                node = 2 * node + 1 + (value > 0)
            return leaves.gather(1, node - coordinates.shape[1])

        return evaluate


@TASKS("quadratic")
class Quadratic(Task):
    """y = w·x² / √3 with w ~ N(0, I), squares coordinate by coordinate."""

    degree: ClassVar[int] = 2
    baselines: ClassVar = ("optimal", "knn")

    def function(self, random):
        w = random.normal("w", self.n_dims)
        return lambda xs: dot(w, xs.square()) / math.sqrt(3)


@TASKS("relu_2nn")
class ReLU2NN(Task):
    """y = v·relu(W x) · √(2/hidden) with W and v ~ N(0, 1): a network with one hidden layer."""

    hidden: int = setting(100, "hidden units", least=1)
    baselines: ClassVar = ("least_squares", "knn")

    def function(self, random):
        W = random.normal("W", self.n_dims, self.hidden)
        v = random.normal("v", self.hidden) * math.sqrt(2 / self.hidden)
        return lambda xs: dot(v, (xs @ W).relu())


@TASKS("smooth")
class Smooth(Task):
    """y = a sum of random waves, observed with noise; targets are without it.

    The covariance of f(x) and f(z) is exp(−‖x − z‖² / 2·length²). The limit of infinitely many waves is the Gaussian
    process with this kernel; 128 waves are close to it, and `optimal` takes the limit.
    """

    length: float = setting(1.0, "distance over which the function changes", above=0)
    noise: float = setting(0.2, "standard deviation of the labels' noise", least=0)
    degree: ClassVar[int] = 0  # values stay as large wherever the inputs are
    baselines: ClassVar = ("optimal", "knn")
    waves: ClassVar[int] = 128

    @property
    def normaliser(self):
        return 1.0

    def function(self, random):
        frequency = random.normal("frequency", self.n_dims, self.waves) / self.length
        phase = 2 * math.pi * random.uniform("phase", 1, self.waves)
        height = random.normal("height", self.waves) * math.sqrt(2 / self.waves)
        return lambda xs: dot(height, (xs @ frequency + phase).cos())


import minicl.tables  # noqa: E402, F401  (a task that is made of those above)
