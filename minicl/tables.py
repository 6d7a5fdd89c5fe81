"""Task `tables`: prompts that look like real tables, for a model that is to work on tables nobody here made.

A table has 1 to d columns (those that it lacks are 0), some of them correlated, skewed, heavy-tailed or discrete. Its
function is linear with dense to sparse weights, or mildly bent. Its noise is between almost nothing and almost all.

A model meets real tables standardised by the few rows of their context. So the mean and the scale of every column and
of y are those that a table has after that: near 0 and 1, as uncertain as after some ten rows. No label is used for it,
so nothing leaks into the context predictions that some masks are trained on.
"""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from minicl.checks import check
from minicl.rng import Random
from minicl.settings import setting
from minicl.tasks import TASKS, DecisionTree, Quadratic, ReLU2NN, Task, dot

FACTORS = 3  # what columns share
PROBES = 128  # further points of each prompt, on which its function is standardised
DRIFT = 0.3  # standard deviation of the mean, and of the logarithm of the scale, of a standardised column


class Columns(NamedTuple):
    """How the columns of each prompt are distributed."""

    count: Tensor  # (B, 1) number of columns
    loadings: Tensor  # (B, factors, d) of the shared factors
    own: Tensor  # (B, 1, d) standard deviation of what a column does not share
    kind: Tensor  # (B, 1, d) a whole number: see `shapes`; 0 is normal
    strength: Tensor  # (B, 1, d) how skewed, heavy-tailed or coarse it is, from 0 to 1
    mean: Tensor  # (B, 1, d)
    scale: Tensor  # (B, 1, d), and 0 for columns that the table lacks


@TASKS("tables")
class Tables(Task):
    """Tables: correlated, skewed and discrete columns, dense to sparse weights, bent functions, any noise."""

    odd: float = setting(0.5, "share of the columns that are skewed, heavy-tailed or discrete", least=0)
    bent: float = setting(0.3, "share of the functions that are not linear", least=0)
    baselines: ClassVar = ("ridge_cv", "knn")

    def __post_init__(self):
        super().__post_init__()
        for name in ("odd", "bent"):
            check(getattr(self, name) <= 1, name, getattr(self, name), "a number from 0 to 1")

    @property
    def normaliser(self):
        return DRIFT**2 + 0.5  # of the mean, and of a signal whose share of the variance is uniform

    @property
    def label_size(self):
        return 1.0  # noise included

    def inputs(self, random, n, name="xs"):
        columns = self.columns(random)
        shared = random.normal(f"{name} shared", n, FACTORS) @ columns.loadings
        values = shaped(columns, shared + columns.own * random.normal(name, n, self.n_dims))
        return columns.mean + columns.scale * values

    def columns(self, random: Random) -> Columns:
        """Draw how the columns of each prompt are distributed."""
        d = self.n_dims
        count = 1 + random.integers("columns", random.dims or d, 2).amin(1, keepdim=True)  # more often few than many
        share = random.uniform("share", 1, 1).sqrt() * random.uniform("shares", 1, d).sqrt()
        weight = random.uniform("fall", 1, 1).expand(-1, FACTORS, 1).cumprod(1)
        directions = weight * random.normal("loadings", FACTORS, d)  # one factor that matters, or several
        kind = 1 + random.integers("kinds", len(shapes), 1, d)
        kind = kind * (random.uniform("odd", 1, d) < self.odd)
        lacks = (torch.arange(d, device=count.device) >= count).unsqueeze(1)
        return Columns(
            count,
            loadings=share.sqrt() * directions / directions.norm(dim=1, keepdim=True),
            own=(1 - share).sqrt(),
            kind=kind,
            strength=random.uniform("strength", 1, d),
            mean=(DRIFT * random.normal("means", 1, d)).masked_fill(lacks, 0),
            scale=_scales(random, "scales", 1, d).masked_fill(lacks, 0),
        )

    def function(self, random):
        signal, scale = self.signal(random), _scales(random, "scale", 1)
        mean, probes = DRIFT * random.normal("mean", 1), self.inputs(random, PROBES, "probes")
        line, curve = (standardised(f, probes) for f in (self.line(random), self.curve(random)))
        part = random.uniform("part", 1) * (random.uniform("bent", 1) < self.bent)
        f = standardised(lambda xs: (1 - part).sqrt() * line(xs) + part.sqrt() * curve(xs), probes)
        return lambda xs: mean + scale * signal.sqrt() * f(xs)

    def noise_scale(self, random):
        return _scales(random, "scale", 1) * (1 - self.signal(random)).sqrt()

    def signal(self, random: Random) -> Tensor:
        """(B, 1) the share of y's variance that is not noise."""
        return random.uniform("signal", 1)

    def line(self, random: Random) -> Callable[[Tensor], Tensor]:
        """Linear functions of some of the columns, which lean towards the shared factors: there y is like a column."""
        columns, d = self.columns(random), self.n_dims
        lean = random.normal("lean", 1) * (columns.loadings * random.normal("weights of factors", FACTORS, 1)).sum(1)
        w = random.normal("weights", d) + 2 * lean
        keep = random.uniform("keep", d) < random.uniform("density", 1)
        keep |= torch.arange(d, device=w.device) == (random.uniform("one", 1) * columns.count).long()  # at least one
        w = w * keep * (columns.scale > 0)[:, 0]
        w = w / w.norm(dim=1, keepdim=True).clamp_min(1e-3)
        return lambda xs: dot(w, xs)

    def curve(self, random: Random) -> Callable[[Tensor], Tensor]:
        """A small network, squares, or a tree, of columns that the table has: some of them several times."""
        d, count = self.n_dims, self.columns(random).count
        which = (random.uniform("which", d) * count).long().unsqueeze(1)
        parts = [ReLU2NN(d, hidden=8), Quadratic(d), DecisionTree(d, depth=3)]
        functions = [(part.function(random), math.sqrt(part.normaliser)) for part in parts]
        kind = random.integers("curve", len(parts), 1, 1)

        def evaluate(xs):
            u = xs.gather(2, which.expand_as(xs))
            values = torch.stack([f(u) / size for f, size in functions], dim=-1)
            return values.gather(2, kind.expand(-1, values.shape[1], 1))[..., 0]

        return evaluate


def standardised(f: Callable[[Tensor], Tensor], probes: Tensor) -> Callable[[Tensor], Tensor]:
    """f with mean 0 and variance 1 on the probes; one that is almost constant there stays small."""
    values = f(probes)
    mean, size = values.mean(1, keepdim=True), values.std(1, keepdim=True).clamp_min(0.1)
    return lambda xs: (f(xs) - mean) / size


def shaped(columns: Columns, z: Tensor) -> Tensor:
    """Standard normal z (B, n, d) as columns of their kinds; every kind has mean 0 and variance 1.

    Done in float64: the last bits of exp and sinh depend on a number's place in the batch, and are lost in float32.
    """
    values, exact, strength = z, z.double(), columns.strength.double()
    for kind, shape in enumerate(shapes, start=1):
        values = torch.where(columns.kind == kind, shape(exact, strength).to(z.dtype), values)
    return values


def skewed(z: Tensor, strength: Tensor) -> Tensor:
    """Log-normal, to the right: prices, counts, durations."""
    a = 0.2 + 0.6 * strength
    square = a.square()
    return ((a * z).exp() - (square / 2).exp()) / (square.exp() * square.expm1()).sqrt()


def skewed_left(z: Tensor, strength: Tensor) -> Tensor:
    """Log-normal, to the left."""
    return -skewed(-z, strength)


def heavy_tailed(z: Tensor, strength: Tensor) -> Tensor:
    """The hyperbolic sine of a normal number: now and then far away, on either side."""
    a = 0.3 + 0.5 * strength
    return (a * z).sinh() / ((2 * a.square()).expm1() / 2).sqrt()


def binary(z: Tensor, strength: Tensor) -> Tensor:
    """One of two values, the rarer one in 7 to 50 % of the rows."""
    cut = 3 * strength - 1.5
    p = torch.special.ndtr(-cut)
    return ((z > cut).to(z.dtype) - p) / (p * (1 - p)).sqrt()


def stepped(z: Tensor, strength: Tensor) -> Tensor:
    """Whole numbers: 3 to 20 values."""
    step = 0.4 + 1.6 * strength
    return (z / step).round() * step / (1 + step.square() / 12).sqrt()  # Sheppard's correction


shapes = (skewed, skewed_left, heavy_tailed, binary, stepped)


def _scales(random, name, *shape):
    """Log-normal scales whose mean square is 1."""
    return (DRIFT * random.normal(name, *shape).double() - DRIFT**2).exp().float()  # float64: see `shaped`
