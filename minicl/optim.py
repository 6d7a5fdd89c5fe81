"""Optimisers: Adam, AdamW, and Muon in float32."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minicl.config import TrainConfig


def make_optimizer(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser that a TrainConfig asks for. Each group has a `scale`: its rate in units of the schedule's."""
    named = dict(model.named_parameters())
    hidden = {n for n, p in named.items() if train.optimizer == "muon" and n.startswith("blocks.") and p.ndim == 2}
    parts = {
        "hidden": [p for n, p in named.items() if n in hidden],
        "matrices": [p for n, p in named.items() if n not in hidden and p.ndim > 1],
        "others": [p for n, p in named.items() if p.ndim <= 1],
    }
    assert sum(len(part) for part in parts.values()) == len(named)
    decay = {"matrices": train.weight_decay if train.optimizer == "adamw" else 0.0, "others": 0.0}
    groups = [{"params": parts[name], "weight_decay": decay[name], "scale": 1.0} for name in decay]
    kind = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    adam = kind(groups, lr=train.lr, betas=(0.9, train.beta2), fused=True)
    return Muon(parts["hidden"], train.matrix_lr / train.lr, adam) if train.optimizer == "muon" else adam


class Muon(torch.optim.Optimizer):
    """Muon for the matrices inside the blocks, `adam` for the rest.

    A matrix moves along its momentum with all singular values set to about 1, so that no direction is left behind.
    Everything stays in float32: the matrices are small, and CPUs are slow in bfloat16.
    """

    def __init__(
        self, matrices: Sequence[nn.Parameter], scale: float, adam: torch.optim.Optimizer, momentum: float = 0.95
    ):
        super().__init__([{"params": matrices, "scale": scale}], {"lr": 0.0, "momentum": momentum})
        self.param_groups += adam.param_groups
        self.adam = adam
        self._share()
        self.by_shape = {}  # matrices of one shape go through one multiplication
        for p in matrices:
            self.by_shape.setdefault(p.shape, []).append(p)

    def _share(self):
        """Adam works on the groups and the state that are kept here, so that one set, saved or loaded is all of it."""
        self.adam.param_groups, self.adam.state = self.param_groups[1:], self.state

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._share()

    def _average(self, p):
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        return state["momentum"]

    @torch.no_grad()
    def step(self):
        rate, momentum = self.param_groups[0]["lr"], self.param_groups[0]["momentum"]
        for (rows, columns), matrices in self.by_shape.items():
            gradients, averages = [p.grad for p in matrices], [self._average(p) for p in matrices]
            torch._foreach_lerp_(averages, gradients, 1 - momentum)
            torch._foreach_lerp_(gradients, averages, momentum)  # Nesterov's
            moves = orthogonalise(torch.stack(gradients))
            torch._foreach_add_(matrices, list(moves), alpha=-rate * max(1, rows / columns) ** 0.5)
        self.adam.step()


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """(k, r, c): each matrix with its singular values, but for tiny ones, pushed to between 0.7 and 1.2."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x.mT if tall else x
