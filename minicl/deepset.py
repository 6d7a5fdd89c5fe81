"""A set encoder as a rival of the transformers: the mean of φ(x, y) over the examples, then ρ of it and the query.

It is the simplest learner whose answers do not depend on the order of the examples. Context predictions leave their own
example out of the mean, so they do not leak.
"""

import torch
from torch import Tensor, nn

from minicl.checks import check, check_prompt
from minicl.model import MLP, ModelConfig, Output, Transformer, initialise


class DeepSet(nn.Module):
    """`model(xs, ys, queries)` as a Transformer: half of the layers are φ's, the other half ρ's."""

    positions, copies = "none", 1

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config, E = config, config.n_embd
        self.read_in = nn.Linear(config.n_dims + 1, E)
        self.read_query = nn.Linear(config.n_dims, E)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(E), MLP(config)) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(E)
        self.read_out = nn.Linear(E, 1)
        initialise(self, config)

    def forward(self, xs: Tensor, ys: Tensor, queries: Tensor, rows: None = None) -> Output:
        """xs (B, n, d), ys (B, n), queries (B, m, d) → predictions. It has no positions, so `rows` are none."""
        stalls = self.training and xs.device.type != "cpu"
        check_prompt(xs, ys, queries, self.config.n_dims, finite=not stalls)
        like = self.read_in.weight
        check(xs.dtype == like.dtype, "xs", f"dtype {xs.dtype}", f"the model's {like.dtype}")
        return self.propagate(xs, ys, queries)

    def propagate(self, xs: Tensor, ys: Tensor, queries: Tensor) -> Output:
        n, half = xs.shape[1], len(self.blocks) // 2
        each = self._through(self.read_in(torch.cat([xs, ys.unsqueeze(-1)], dim=-1)), self.blocks[:half])  # (B, n, E)
        total = each.sum(1, keepdim=True)
        told = torch.cat([(total - each) / max(1, n - 1), (total / max(1, n)).expand(-1, queries.shape[1], -1)], dim=1)
        asked = self.read_query(torch.cat([xs, queries], dim=1))
        answers = self.read_out(self.ln_f(self._through(asked + told, self.blocks[half:])))[..., 0]
        return Output(answers[:, :n], answers[:, n:], {})

    @staticmethod
    def _through(h, blocks):
        for block in blocks:
            h = h + block(h)
        return h


def make_model(config: ModelConfig) -> nn.Module:
    """The model that a config describes."""
    return DeepSet(config) if config.architecture == "deepset" else Transformer(config)
