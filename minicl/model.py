"""A GPT-2-shaped transformer that learns from the examples in its prompt, under any mask strategy.

Axes: B prompts, n examples, m queries, d dimensions, T tokens, E width, H heads.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minicl.errors import check, check_int, check_prompt
from minicl.masks import POSITIONS, Strategy, get_strategy, layout
from minicl.settings import check_settings, setting


def auto_device():
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(model):
    """Where a model is; a method without parameters is on the CPU."""
    return next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's shape and what it may look at."""

    n_dims: int = setting(20, "dimensions of x", least=1)
    mask: str | Strategy = setting("ar", "mask strategy: a built-in name, or path/to/file.py:name")
    positions: str | None = setting(None, "positions, instead of the strategy's own", choices=POSITIONS)
    copies: int | None = setting(None, "how often the context is fed, instead of the strategy's own", least=1)
    blind_query: bool = setting(False, "queries do not see themselves, only the context (if there is any)")
    n_layer: int = setting(12, "layers", least=1)
    n_head: int = setting(8, "attention heads", least=1)
    n_embd: int = setting(256, "width", least=1)
    init_std: float = setting(0.02, "standard deviation of the initial matrices; 0.02 is GPT-2's", above=0)
    symmetric_std: float | None = setting(None, "that of symmetric positions, instead of init_std", above=0)
    max_examples: int = setting(100, "most examples with absolute positions; others know no limit", least=1)

    def __post_init__(self):
        strategy = get_strategy(self.mask)
        check_settings(self)
        check(self.n_embd % self.n_head == 0, "n_embd", self.n_embd, f"a multiple of n_head = {self.n_head}")
        if self.copies is not None:
            check_int(f"copies with mask {strategy.name}", self.copies, least=strategy.copies)

    @property
    def strategy(self):
        own = get_strategy(self.mask)
        return dataclasses.replace(own, blind_query=True) if self.blind_query else own

    # The strategy's own choices, where no others were made.
    @property
    def resolved_positions(self):
        return self.positions or get_strategy(self.mask).positions

    @property
    def resolved_copies(self):
        return self.copies or get_strategy(self.mask).copies


class Reading(NamedTuple):
    """Something read where predictions are made: at x_i of every context example, and at every query."""

    context: Tensor  # (B, n, …)
    query: Tensor  # (B, m, …)


class Output(NamedTuple):
    context: Tensor  # (B, n) the answer at x_i of each context example
    query: Tensor  # (B, m) the answer at each query
    hidden: dict[int, Reading]  # the layers that were asked for: 0 is the embedding, ℓ comes after block ℓ


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def project(self, h, rows=None):
        """Queries, keys and values, each (B, H, T, E/H); the queries of some rows alone, if they are given."""
        if rows is None:
            return [self._heads(t) for t in self.c_attn(h).chunk(3, dim=-1)]
        E, weight, bias = h.shape[-1], self.c_attn.weight, self.c_attn.bias
        k, v = F.linear(h, weight[E:], bias[E:]).chunk(2, dim=-1)
        return [self._heads(t) for t in (F.linear(h[:, rows], weight[:E], bias[:E]), k, v)]

    def _heads(self, t):
        return t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def forward(self, h, mask, past=None, rows=None, local=0):
        """`mask` None means causal. `past` are keys and values of tokens that stand before these and do not change.

        Only `rows` are computed, if given; the first `local` tokens see their own pair alone.
        """
        q, k, v = self.project(h, rows)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        front = []
        if local:
            first, q = q.split([local, q.shape[2] - local], dim=2)
            front, mask = [_pairs(first, k[:, :, :local], v[:, :, :local])], mask[local:]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        a = torch.cat([*front, a], dim=2) if front else a
        return self.c_proj(a.transpose(1, 2).flatten(2))


def _pairs(q, k, v):
    """Attention inside pairs (x, y): x sees itself, y sees both. A softmax of two is a sigmoid of their difference."""
    q, k, v = (t.unflatten(2, (-1, 2)) for t in (q, k, v))  # (B, H, n, 2, E/H)
    ask, differ = q[..., 1, :], k[..., 1, :] - k[..., 0, :]
    share = torch.sigmoid((ask * differ).sum(-1, keepdim=True) / math.sqrt(q.shape[-1]))
    x = v[..., 0, :]
    return torch.stack([x, x + share * (v[..., 1, :] - x)], dim=3).flatten(2, 3)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, h):
        return self.c_proj(F.gelu(self.c_fc(h)))  # GPT-2 approximates it by tanh: within 5e-4, and 3 times slower here


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, h, mask, past=None, rows=None, local=0):
        here = h if rows is None else h[:, rows]
        h = here + self.attn(self.ln_1(h), mask, past, rows, local)
        return h + self.mlp(self.ln_2(h))


class Transformer(nn.Module):
    """`model(xs, ys, queries)` predicts y at every query, and at every x of the context."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.strategy = config.strategy
        # Resolved once: a mask file that changes later does not change a model that exists.
        self.positions, self.copies = config.resolved_positions, config.resolved_copies
        n_positions = {"absolute": 2 * config.max_examples + 1, "symmetric": 3, "none": 0}[self.positions]
        self.read_in = nn.Linear(config.n_dims, config.n_embd)
        self.wpe = nn.Embedding(n_positions, config.n_embd) if n_positions else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.read_out = nn.Linear(config.n_embd, 1)
        self._initialise()

    def _initialise(self):
        """GPT-2's: normal, and smaller where 2·n_layer branches add up in the residual stream."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj") else 1
                nn.init.normal_(module.weight, std=self.config.init_std / scale)
                nn.init.zeros_(module.bias)
        if self.wpe is not None:
            # Absolute positions that training never reaches keep their start, so it is small whatever the matrices are.
            symmetric = self.config.symmetric_std or self.config.init_std
            nn.init.normal_(self.wpe.weight, std=0.02 if self.positions == "absolute" else symmetric)

    def forward(self, xs: Tensor, ys: Tensor, queries: Tensor, hidden: Iterable[int] = (), context=True) -> Output:
        """Without `context`, only the queries are answered, which takes less work; out.context is then None."""
        hidden = set(hidden)
        self._check(xs, ys, queries, hidden)
        n, m = xs.shape[1], queries.shape[1]
        if self.strategy.sees_query and m > 1:
            return self._one_query_at_a_time(xs, ys, queries, hidden, context)
        plan = layout(self.strategy, n, m, self.positions, self.copies, xs.device)
        if hidden:
            return self.trace(xs, ys, queries, plan, hidden)
        y = self.propagate(xs, ys, queries, plan, plan.tail(len(self.blocks), context))
        return Output(*y.split([n, m], dim=1), {}) if context else Output(None, y, {})

    def propagate(self, xs, ys, queries, plan, tail):
        """Answers at what is read, (B, n + m) or (B, m): rows that nobody needs any more are dropped on the way.

        Tensors only, so that torch.compile makes one graph of it.
        """
        h = self.embed(xs, ys, queries, plan)
        mask, local = None if plan.causal else plan.mask, 0 if plan.causal else plan.local
        for layer, block in enumerate(self.blocks, start=1):
            if layer in tail:
                rows, rows_mask = tail[layer]
                h = block(h, rows_mask, rows=rows)
            else:
                h = block(h, mask, local=local)
        return self.predict(h)

    def trace(self, xs, ys, queries, plan, hidden=()):
        """The plain forward pass, every row of every layer: the reference, and where hidden states are read."""
        h = self.embed(xs, ys, queries, plan)
        seen = {}
        for layer in range(len(self.blocks) + 1):
            if layer:
                h = self.blocks[layer - 1](h, plan.mask)
            if layer in hidden:
                seen[layer] = Reading(h[:, plan.context], h[:, plan.query])
        y = self.predict(h)
        return Output(y[:, plan.context], y[:, plan.query], seen)

    def embed(self, xs, ys, queries, plan):
        """(B, T, E): x and y as (y, 0, …, 0) in turn, the context as often as it is fed, then the queries."""
        labels = F.pad(ys.unsqueeze(-1), (0, self.config.n_dims - 1))
        context = torch.stack([xs, labels], dim=2).flatten(1, 2)  # (B, 2n, d)
        h = self.read_in(torch.cat([context] * self.copies + [queries], dim=1))
        h = h.to(self.read_in.weight.dtype)  # autocast or not, positions or not, the residual stream is float32
        return h if self.wpe is None else h + self.wpe(plan.positions)

    def predict(self, h):
        """(B, T): the answer at each token of the last layer."""
        return self.read_out(self.ln_f(h))[..., 0]

    def _one_query_at_a_time(self, xs, ys, queries, hidden, context):
        """Where the context sees the query, each query needs a context of its own, or would see the others through it.

        Context predictions then depend on the query: returned are those beside the first.
        """
        B, m, d = queries.shape
        alone = self(*(t.repeat_interleave(m, dim=0) for t in (xs, ys)), queries.reshape(B * m, 1, d), hidden, context)

        def regroup(context, query):
            context = None if context is None else context.unflatten(0, (B, m))[:, 0]
            return Reading(context, query.unflatten(0, (B, m))[:, :, 0])

        seen = {layer: regroup(*reading) for layer, reading in alone.hidden.items()}
        return Output(*regroup(alone.context, alone.query), seen)

    def _check(self, xs, ys, queries, hidden):
        # Reading a value back would stall an accelerator at every training step; there the loss is watched instead.
        stalls = torch.compiler.is_compiling() or (self.training and self.read_in.weight.is_cuda)
        check_prompt(xs, ys, queries, self.config.n_dims, finite=not stalls)
        like, n = self.read_in.weight, xs.shape[1]
        check(xs.dtype == like.dtype, "xs", f"dtype {xs.dtype}", f"the model's {like.dtype}")
        check(xs.device == like.device, "xs", f"device {xs.device}", f"the model's {like.device}")
        if self.positions == "absolute":
            most = self.config.max_examples
            check(n <= most, "xs", f"{n} examples", f"at most {most} with absolute positions (max_examples = {most})")
        layers = range(len(self.blocks) + 1)
        check(all(layer in layers for layer in hidden), "hidden", sorted(hidden), f"layers 0 to {layers[-1]}")
