"""Function classes and shifts: where prompts come from. Tasks know no model.

A task draws one function a prompt and evaluates it at x ~ N(0, I). Everything is batched over prompts (B), made on the
device that is asked for, and a pure function of the task's settings and the seed. A shift changes a task's prompts for
evaluation: their inputs, their function, or what is observed of it, and nothing else.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from minicl.errors import check, check_int, check_number
from minicl.registry import Registry
from minicl.rng import Random


class Prompt(NamedTuple):
    """n points of one function a prompt, and what to ask after the first i of them, for every i < n.

    Without a shift that says otherwise, the query after i points is simply the next point.
    """

    xs: Tensor  # (B, n, d)
    ys: Tensor  # (B, n) as observed: with noise where there is any
    queries: Tensor  # (B, n, d)
    targets: Tensor  # (B, n) the function at the queries, without noise


@dataclass(frozen=True)
class Task:
    """A function class. Subclasses say how a function is drawn, and what its values' mean square is."""

    n_dims: int = 20
    name: ClassVar[str]
    degree: ClassVar[int] = 1  # f(c·x) = c^degree · f(x) for c > 0
    noise: ClassVar[float] = 0.0  # standard deviation of what is observed around the function's value

    def __post_init__(self):
        check_int("n_dims", self.n_dims, least=1)

    @property
    def normaliser(self):
        """The mean square of y, which makes every curve start near 1."""
        return float(self.n_dims)

    def scaled_normaliser(self, factor):
        """The same for inputs that are `factor` times as large."""
        return self.normaliser * factor ** (2 * self.degree)

    def function(self, random):
        """Draw a function for every prompt: a callable from (B, n, d) to (B, n)."""
        raise TypeError(f"{type(self).__name__} does not say how to draw a function")

    def sample(self, batch_size=64, n_points=41, seed=0, shift=None, first=0, device="cpu", dims=None):
        """Prompts first … first + batch_size − 1 of a seed; a larger batch begins with the smaller one's prompts.

        With `dims`, only the first so many coordinates of the inputs are not zero (a curriculum's easier prompts).
        """
        check_int("n_points", n_points, least=0)
        shift = get_shift(shift)
        most = shift.most_points(self)
        check(n_points <= most, f"n_points under shift {shift.name}", n_points, f"at most {most}")
        random = Random(seed, batch_size, first, device)
        f = shift.function(self.function(random), random)
        xs = random.normal("xs", n_points, self.n_dims)
        if dims is not None:
            xs[..., dims:] = 0
        xs, queries = shift.inputs(xs, random)
        clean = f(xs)
        ys, noise = clean, math.hypot(self.noise, shift.label_noise)
        if noise:
            ys = clean + noise * random.normal("noise", n_points)
        return Prompt(xs, ys, queries, clean if queries is xs else f(queries))


TASKS = Registry("task")


def get_task(name, **settings):
    """A function class by name, with its settings: `get_task("sparse_linear", n_dims=20, sparsity=3)`."""
    return TASKS.make(name, settings)


def dot(w, xs):
    """w·x for every point. A sum over products, so that a prompt's values do not depend on the batch around it."""
    return (xs * w[:, None, :]).sum(-1)


@TASKS("linear")
class Linear(Task):
    """y = w·x with w ~ N(0, I), and + b with b ~ N(0, 1) if there is a bias."""

    bias: bool = False

    @property
    def normaliser(self):
        return float(self.n_dims + self.bias)

    def scaled_normaliser(self, factor):
        return self.n_dims * factor**2 + self.bias

    def function(self, random):
        w = random.normal("w", self.n_dims)
        b = random.normal("b", 1) if self.bias else 0
        return lambda xs: dot(w, xs) + b


@TASKS("noisy_linear")
class NoisyLinear(Linear):
    """y = w·x + noise on every observed label; targets are without it."""

    noise: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_number("noise", self.noise)


@TASKS("sparse_linear")
class SparseLinear(Task):
    """y = w·x where only `sparsity` coordinates of w, chosen at random, are not zero (and ~ N(0, 1))."""

    sparsity: int = 3

    def __post_init__(self):
        super().__post_init__()
        check_int("sparsity", self.sparsity, least=1)
        check(self.sparsity <= self.n_dims, "sparsity", self.sparsity, f"at most n_dims = {self.n_dims}")

    @property
    def normaliser(self):
        return float(self.sparsity)

    def function(self, random):
        support = random.choice("support", self.n_dims, self.sparsity)
        values = random.normal("w", self.n_dims)
        w = torch.zeros_like(values).scatter(1, support, values.gather(1, support))
        return lambda xs: dot(w, xs)


@TASKS("decision_tree")
class DecisionTree(Task):
    """A full binary tree: each inner node asks whether one random coordinate is positive; leaves ~ N(0, 1)."""

    depth: int = 4
    degree: ClassVar[int] = 0

    def __post_init__(self):
        super().__post_init__()
        check_int("depth", self.depth, least=1)
        check(self.depth <= 16, "depth", self.depth, "at most 16 (a full tree has 2^depth leaves)")

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

    def function(self, random):
        w = random.normal("w", self.n_dims)
        return lambda xs: dot(w, xs.square()) / math.sqrt(3)


@TASKS("relu_2nn")
class ReLU2NN(Task):
    """y = v·relu(W x) · √(2/hidden) with W and v ~ N(0, 1): a network with one hidden layer."""

    hidden: int = 100

    def __post_init__(self):
        super().__post_init__()
        check_int("hidden", self.hidden, least=1)

    def function(self, random):
        W = random.normal("W", self.n_dims, self.hidden)
        v = random.normal("v", self.hidden) * math.sqrt(2 / self.hidden)
        return lambda xs: dot(v, (xs @ W).relu())


@dataclass(frozen=True)
class Shift:
    """Nothing changes."""

    name: ClassVar[str] = "none"
    gain: ClassVar[float] = 1.0  # the function is multiplied by this,
    offset: ClassVar[float] = 0.0  # and moved by a normal number of this standard deviation, one a prompt
    label_noise: ClassVar[float] = 0.0  # and the context's labels are observed with this

    def __post_init__(self):
        check_number("gain", self.gain, above=True)
        check_number("offset", self.offset)
        check_number("label_noise", self.label_noise)

    def inputs(self, xs, random):
        """The context's inputs, and the query after the first i of them for every i."""
        return xs, xs

    def function(self, f, random):
        if self.gain == 1 and self.offset == 0:
            return f
        offset = self.offset * random.normal("offset", 1)
        return lambda xs: self.gain * f(xs) + offset

    def normaliser(self, task):
        """The mean square of y under this shift."""
        return self.gain**2 * task.normaliser + self.offset**2

    def most_points(self, task):
        return math.inf

    @property
    def summary(self):
        return self.__doc__.strip().splitlines()[0]


SHIFTS = Registry("shift")
SHIFTS["none"] = Shift


def get_shift(shift=None, **settings):
    """A shift by name, with its settings; None is the shift that changes nothing."""
    return shift if isinstance(shift, Shift) else SHIFTS.make(shift or "none", settings)


@SHIFTS("noise")
class Noise(Shift):
    """Every label of a prompt, the query's too, moves by the same b ~ N(0, offset²)."""

    offset: float = 1.0


@SHIFTS("scale")
class Scale(Shift):
    """Inputs are `factor` times as large: x ~ N(0, factor² I)."""

    factor: float = 3.0

    def __post_init__(self):
        check_number("factor", self.factor, above=True)

    def inputs(self, xs, random):
        scaled = self.factor * xs
        return scaled, scaled

    def normaliser(self, task):
        return task.scaled_normaliser(self.factor)


@SHIFTS("scale_y")
class ScaleY(Shift):
    """Labels are `gain` times as large."""

    gain: float = 3.0


@SHIFTS("half_subspace")
class HalfSubspace(Shift):
    """The inputs of a prompt lie in a random subspace of ⌊d/2⌋ dimensions; the mean square norm stays."""

    def inputs(self, xs, random):
        d = xs.shape[-1]
        check(d >= 2, "n_dims under shift half_subspace", d, "at least 2")
        basis = torch.linalg.qr(random.normal("shift", d, d // 2)).Q  # (B, d, d/2)
        inside = math.sqrt(d / (d // 2)) * (xs @ basis) @ basis.mT
        return inside, inside


@SHIFTS("skewed")
class Skewed(Shift):
    """The inputs' covariance has eigenvalues ∝ 1/i² in a random basis of each prompt; the mean square norm stays."""

    def inputs(self, xs, random):
        d = xs.shape[-1]
        basis = torch.linalg.qr(random.normal("shift", d, d)).Q
        scales = 1 / torch.arange(1, d + 1, device=xs.device)
        scales = scales * math.sqrt(d) / scales.norm()
        skewed = (xs @ basis * scales) @ basis.mT
        return skewed, skewed


@SHIFTS("random_quadrants")
class RandomQuadrants(Shift):
    """The context's inputs all lie in one random orthant; the query may lie in any."""

    def inputs(self, xs, random):
        signs = random.normal("shift", 1, xs.shape[-1]).sign()
        return xs.abs() * signs, xs


@SHIFTS("orthogonal_query")
class OrthogonalQuery(Shift):
    """The query is orthogonal to all inputs before it, with norm √d; so at most d points make sense."""

    def most_points(self, task):
        return task.n_dims

    def inputs(self, xs, random):
        n, d = xs.shape[1:]
        fresh = random.normal("shift", n, d).double()
        # Columns of Q are the context's directions in order: those before point i are its first i.
        directions = torch.linalg.qr(xs.mT.double()).Q.mT  # (B, n, d)
        along = (fresh @ directions.mT).tril(-1)  # (B, query, direction)
        rest = fresh - along @ directions
        return xs, (rest * math.sqrt(d) / rest.norm(dim=-1, keepdim=True)).to(xs.dtype)


@SHIFTS("repeated_query")
class RepeatedQuery(Shift):
    """The query is one of the inputs before it, chosen at random; the first query is a fresh one."""

    def inputs(self, xs, random):
        n = xs.shape[1]
        which = (random.uniform("shift", n) * torch.arange(n, device=xs.device)).long()  # below i, for query i
        queries = xs.gather(1, which.unsqueeze(-1).expand_as(xs))
        return xs, torch.cat([random.normal("fresh", 1, xs.shape[-1]), queries[:, 1:]], dim=1)[:, :n]


@SHIFTS("label_noise")
class LabelNoise(Shift):
    """The context's labels get noise ~ N(0, label_noise²); the query's target does not."""

    label_noise: float = 1.0
