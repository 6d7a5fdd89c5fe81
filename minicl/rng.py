"""Random numbers as a pure function of (seed, name, prompt, index): no state, so nothing to save or to replay.

A counter goes through SplitMix64's finaliser, twice: once to give each prompt a key, once for the numbers in it. So
prompt 37 is the same in a batch of 64 and in one of 1,024, on one device and on four, and on a CPU and (up to the last
bits of log and cos) on a GPU.
"""

import hashlib
import math

import torch
from torch import Tensor

from minicl.checks import check_int

# SplitMix64's constants as signed 64-bit numbers: torch multiplies those modulo 2^64.
GAMMA, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


class Random:
    """Draws for the prompts `start` … `start + batch_size − 1` of a seed, which may be a number or a tuple of them.

    Every draw has a name; the same name gives the same numbers, another name independent ones. `dims` is for functions
    that must know how many coordinates of the inputs are not zero (None: all).
    """

    def __init__(
        self,
        seed: int | tuple[int, ...],
        batch_size: int,
        start: int = 0,
        device: str | torch.device = "cpu",
        dims: int | None = None,
    ):
        for part in seed if isinstance(seed, tuple) else (seed,):
            check_int("seed", part, least=0)
        check_int("batch_size", batch_size, least=1)
        self.seed, self.batch_size, self.dims = seed, batch_size, dims
        self.prompts = torch.arange(start, start + batch_size, device=device)

    def bits(self, name: str, count: int) -> Tensor:
        """(B, count) random 64-bit numbers."""
        digest = hashlib.blake2b(repr((self.seed, name)).encode(), digest_size=8).digest()
        keys = _mix(self.prompts * GAMMA + int.from_bytes(digest, "little", signed=True))
        return _mix(torch.arange(1, count + 1, device=keys.device) * GAMMA + keys[:, None])

    def uniform(self, name: str, *shape: int) -> Tensor:
        """(B, *shape) numbers above 0 and below 1."""
        return _unit(self.bits(name, math.prod(shape)) >> 40).view(self.batch_size, *shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        """(B, *shape) standard normal numbers, by Box and Muller's method: two from each 64 bits."""
        count = math.prod(shape)
        bits = self.bits(name, (count + 1) // 2)
        radius = _unit(bits >> 40).log_().mul_(-2).sqrt_()
        angle = _unit(bits).mul_(2 * math.pi)
        pairs = torch.empty(*bits.shape, 2, device=bits.device)
        torch.mul(radius, angle.cos(), out=pairs[..., 0])
        torch.mul(radius, angle.sin_(), out=pairs[..., 1])
        return pairs.flatten(1)[:, :count].reshape(self.batch_size, *shape)

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        """(B, *shape) whole numbers below `high`."""
        return (self.bits(name, math.prod(shape)) >> 8 & (1 << 55) - 1).remainder_(high).view(self.batch_size, *shape)

    def choice(self, name: str, n: int, k: int) -> Tensor:
        """(B, k) distinct whole numbers below n."""
        return self.bits(name, n).argsort(dim=1)[:, :k]


def _mix(x):
    """SplitMix64's finaliser, in place. Shifts must not drag the sign along, hence the masks."""
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(MIX_1)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(MIX_2)
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


def _unit(bits):
    """The lowest 23 bits, cut in place, as a float32 above 0 and below 1: with the half, just what 24 bits hold."""
    return bits.bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
