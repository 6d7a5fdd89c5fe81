"""Shifts: how prompts for evaluation differ from those of training.

A shift changes a task's inputs, its function, or what is observed of it, and nothing else.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from minicl.checks import check, check_number
from minicl.registry import Registry

if TYPE_CHECKING:
    from minicl.rng import Random
    from minicl.tasks import Task


@dataclass(frozen=True)
class Shift:
    """Nothing changes."""

    name: ClassVar[str] = "none"
    gain: ClassVar[float] = 1.0  # the function is multiplied by this,
    offset: ClassVar[float] = 0.0  # and moved by a normal number of this standard deviation, one for each prompt
    label_noise: ClassVar[float] = 0.0  # and the context's labels are observed with this

    def __post_init__(self):
        check_number("gain", self.gain, above=True)
        check_number("offset", self.offset)
        check_number("label_noise", self.label_noise)

    def inputs(self, xs: Tensor, random: "Random") -> tuple[Tensor, Tensor]:
        """The context's inputs, and the query after the first i of them for every i."""
        return xs, xs

    def function(self, f, random):
        if self.gain == 1 and self.offset == 0:
            return f
        offset = self.offset * random.normal("offset", 1)
        return lambda xs: self.gain * f(xs) + offset

    def normaliser(self, task: "Task") -> float:
        """The mean square of y under this shift."""
        return self.gain**2 * task.normaliser + self.offset**2

    def most_points(self, task):
        return math.inf

    @property
    def summary(self):
        return self.__doc__.strip().splitlines()[0]


SHIFTS = Registry("shift")
SHIFTS["none"] = Shift


def get_shift(shift: str | Shift | None = None, **settings) -> Shift:
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
