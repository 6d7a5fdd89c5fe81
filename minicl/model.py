"""A GPT-2-shaped transformer that learns from the examples in its prompt, under any mask strategy.

Axes: B prompts, n examples, m queries, d dimensions, T tokens, E width, H heads.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minicl import batchicl, masks
from minicl.checks import check, check_int, check_prompt
from minicl.masks import PER_EXAMPLE, POSITIONS, ROTARY, TABLES, Layout, Strategy, get_strategy
from minicl.settings import check_settings, setting


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's shape and what it may look at."""

    n_dims: int = setting(20, "dimensions of x", least=1)
    mask: str | Strategy = setting("ar", "mask strategy: a built-in name, or path/to/file.py:name")
    positions: str | None = setting(None, "positions, instead of the strategy's own", choices=POSITIONS)
    copies: int | None = setting(None, "number of copies of the context, instead of the strategy's own", least=1)
    blind_query: bool = setting(False, "queries do not see themselves, only the context (if there is any)")
    n_layer: int = setting(12, "layers", least=1)
    n_head: int = setting(8, "attention heads", least=1)
    n_embd: int = setting(256, "width", least=1)
    init_std: float = setting(0.02, "standard deviation of the initial matrices; 0.02 is GPT-2's", above=0)
    symmetric_std: float | None = setting(None, "that of symmetric positions, instead of init_std", above=0)
    read_start: str = setting(
        "gpt2",
        "start of read-in and read-out. gpt2: as the other matrices. torch: torch's own, as in the code of 2022",
        choices=("gpt2", "torch"),
    )
    max_examples: int = setting(100, "most examples with absolute or random positions; others know no limit", least=1)
    reads: int | None = setting(
        None, "copy of the context that its predictions are read at, from 0 (the last)", least=0
    )
    average_at: int | None = setting(None, "batchicl: average after this layer (5 of 12)", least=0)
    architecture: str = setting(
        "transformer", "deepset: a set encoder, which knows no mask", choices=("transformer", "deepset")
    )

    def __post_init__(self):
        strategy = get_strategy(self.mask)
        check_settings(self)
        check(self.n_embd % self.n_head == 0, "n_embd", self.n_embd, f"a multiple of n_head = {self.n_head}")
        if self.architecture == "deepset":
            for name in ("positions", "copies", "blind_query", "reads", "average_at"):
                value = getattr(self, name)
                check(value is None or value is False, name, value, "no such setting with --architecture deepset")
        if self.copies is not None:
            check_int(f"copies with mask {strategy.name}", self.copies, least=strategy.copies)
        if self.reads is not None:
            check_int("reads", self.reads, least=0, most=self.resolved_copies - 1)
        if self.average_at is not None:
            check(strategy.average, "average_at", f"{self.average_at} with mask {strategy.name}", "with batchicl")
            check_int("average_at", self.average_at, least=0, most=self.n_layer)
        fixed = not strategy.average or self.resolved_positions != "random"
        check(fixed, "positions", f"random with mask {strategy.name}", "others: its passes have one example each")
        if self.resolved_positions in ROTARY:
            size = self.n_embd // self.n_head
            check(size % 2 == 0, "n_embd", f"{size} dimensions in each head", "an even number, with rotary positions")

    @property
    def strategy(self) -> Strategy:
        own = get_strategy(self.mask)
        return dataclasses.replace(own, blind_query=True) if self.blind_query else own

    # The strategy's own choices, where no others were made.
    @property
    def resolved_positions(self) -> str:
        own = get_strategy(self.mask).positions if self.architecture == "transformer" else "none"
        return self.positions or own

    @property
    def resolved_copies(self) -> int:
        return self.copies or get_strategy(self.mask).copies

    @property
    def averaged_at(self) -> int:
        """The layer after which a strategy with averages takes them: as the 15th of 36 in the paper."""
        return max(1, 5 * self.n_layer // 12) if self.average_at is None else self.average_at

    def layout(self, n: int, m: int, device: str | torch.device = "cpu") -> Layout:
        """The tokens of a prompt and what each sees, under this model."""
        return masks.layout(self.strategy, n, m, self.positions, self.copies, self.n_layer, device, self.reads)


class Reading(NamedTuple):
    """Something read where predictions are made: at x_i of every context example, and at every query."""

    context: Tensor  # (B, n, …)
    query: Tensor  # (B, m, …)


class Output(NamedTuple):
    context: Tensor  # (B, n) the answer at x_i of each context example
    query: Tensor  # (B, m) the answer at each query
    hidden: dict[int, Reading]  # the layers that were asked for: 0 is the embedding, ℓ comes after block ℓ


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, h: Tensor, bias: Tensor | None, turn: Tensor | None = None) -> Tensor:
        """`bias` (T, T) is added to the scores; None means that each token sees those before it and itself."""
        return self.attend(*self.heads(h, turn), bias)

    def heads(self, h: Tensor, turn: Tensor | None = None) -> list[Tensor]:
        """Queries, keys and values of the tokens, each (B, H, T, E/H). `turn` is by how much each token is turned."""
        parts = self.c_attn(h).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in parts)
        return [q, k, v] if turn is None else [turned(q, turn), turned(k, turn), v]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """What the tokens of q take from those of k and v."""
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
        return self.c_proj(a.transpose(1, 2).flatten(2))


def turned(t: Tensor, turn: Tensor) -> Tensor:
    """(B, H, T, E/H) with each pair of coordinates i and i + E/2H turned by an angle (T, E/2H): rotary positions."""
    a, b = t.chunk(2, dim=-1)
    cos, sin = turn.cos().to(t.dtype), turn.sin().to(t.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, h: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(h)))  # GPT-2 approximates it by tanh: within 5e-4, and 3 times slower here


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, h: Tensor, bias: Tensor | None, turn: Tensor | None = None) -> Tensor:
        h = h + self.attn(self.ln_1(h), bias, turn)
        return h + self.mlp(self.ln_2(h))


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Linear layers as in GPT-2: normal, and smaller where 2·n_layer branches add up in the residual stream."""
    for name, module in model.named_modules():
        if name.startswith("read_") and config.read_start == "torch":
            module.reset_parameters()  # uniform, with a standard deviation of 1/√(3 × inputs), and biases too
        elif isinstance(module, nn.Linear):
            scale = math.sqrt(2 * config.n_layer) if name.endswith("c_proj") else 1
            nn.init.normal_(module.weight, std=config.init_std / scale)
            nn.init.zeros_(module.bias)


class Transformer(nn.Module):
    """`model(xs, ys, queries)` predicts y at every query, and at every x of the context."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        # Resolved once: a mask file that changes later does not change a model that exists.
        self.strategy = config.strategy
        self.positions, self.copies = config.resolved_positions, config.resolved_copies
        self.reads = self.copies - 1 if config.reads is None else config.reads
        n_positions = masks.position_count(self.positions, config.max_examples)
        self.read_in = nn.Linear(config.n_dims, config.n_embd)
        self.wpe = nn.Embedding(n_positions, config.n_embd) if n_positions else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.read_out = nn.Linear(config.n_embd, 1)
        initialise(self, config)
        if self.wpe is not None:
            # Absolute positions that training never reaches keep their start, so it is small whatever the matrices are.
            symmetric = config.symmetric_std or config.init_std
            nn.init.normal_(self.wpe.weight, std=0.02 if self.positions in TABLES else symmetric)

    def forward(
        self, xs: Tensor, ys: Tensor, queries: Tensor, hidden: Iterable[int] = (), rows: Tensor | None = None
    ) -> Output:
        """xs (B, n, d), ys (B, n), queries (B, m, d) → predictions, and hidden states of the layers in `hidden`.

        `rows` (2n + 1,) are the rows of the table that random positions take; None: evenly spaced ones.
        """
        hidden = frozenset(hidden)
        self._check(xs, ys, queries, hidden)
        if self.strategy.sees_query and queries.shape[1] > 1:
            return self._one_query_at_a_time(xs, ys, queries, hidden, rows)
        if self.strategy.average:
            answers, states = batchicl.average_passes(self, xs, ys, queries, hidden)
            return Output(*answers, {layer: Reading(*state) for layer, state in states.items()})
        return self.propagate(xs, ys, queries, self.layout(xs.shape[1], queries.shape[1], xs.device, rows), hidden)

    def layout(self, n: int, m: int, device: str | torch.device = "cpu", rows: Tensor | None = None) -> Layout:
        """The tokens of a prompt of n examples and m queries, and what each sees."""
        depth = len(self.blocks)
        built = masks.layout(self.strategy, n, m, self.positions, self.copies, depth, device, self.reads)
        if self.positions != "random":
            return built
        if rows is None:
            rows = torch.linspace(0, self.wpe.num_embeddings - 1, PER_EXAMPLE * n + 1, device=device).round().long()
        return dataclasses.replace(built, positions=rows[built.positions])

    def propagate(
        self, xs: Tensor, ys: Tensor, queries: Tensor, layout: Layout, hidden: Collection[int] = ()
    ) -> Output:
        """The forward pass under a layout: embed, block after block, read out."""
        h, seen = self.through(self.embed(xs, ys, queries, layout), layout, hidden)
        n, answers = xs.shape[1], self.answers(h)
        readings = {layer: self.where_predicted(h, n) for layer, h in seen.items()}
        return Output(*self.where_predicted(answers, n), readings)

    def through(
        self, h: Tensor, layout: Layout, hidden: Collection[int] = (), first: int = 0, last: int | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The tokens' states h (B, T, E) after the layers first + 1 … last, and those of the layers in `hidden`."""
        kind, depth = h.device.type, len(self.blocks)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
        biases = [None] * depth if layout.causal else layout.bias(dtype).expand(depth, -1, -1)
        turn = self.turn(layout)
        seen = {first: h} if first in hidden else {}
        for layer, (block, bias) in list(enumerate(zip(self.blocks, biases, strict=True), start=1))[first:last]:
            h = block(h, bias, turn)
            if layer in hidden:
                seen[layer] = h
        return h, seen

    def turn(self, layout: Layout) -> Tensor | None:
        """(T, E/2H) the angles of rotary positions: the slower the later the coordinate."""
        if self.positions not in ROTARY:
            return None
        half = self.config.n_embd // self.config.n_head // 2
        rates = 10_000 ** (-torch.arange(half, dtype=self.read_in.weight.dtype, device=layout.positions.device) / half)
        return layout.positions[:, None] * rates

    def answers(self, h: Tensor) -> Tensor:
        """(B, T): the read-out of the tokens' last states."""
        return self.read_out(self.ln_f(h))[..., 0]

    def where_predicted(self, t: Tensor, n: int) -> Reading:
        """A Reading of t (B, T, …): at x of a copy, and at the queries."""
        start, end = (PER_EXAMPLE * copy * n for copy in (self.reads, self.copies))
        return Reading(t[:, start : start + PER_EXAMPLE * n : PER_EXAMPLE], t[:, end:])

    def embed(self, xs: Tensor, ys: Tensor, queries: Tensor, layout: Layout) -> Tensor:
        """(B, T, E): x and y as (y, 0, …, 0) in turn, once for each copy of the context, then the queries."""
        labels = F.pad(ys.unsqueeze(-1), (0, self.config.n_dims - 1))
        context = torch.stack([xs, labels], dim=2).flatten(1, 2)  # (B, 2n, d)
        h = self.read_in(torch.cat([context] * self.copies + [queries], dim=1))
        h = h.to(self.read_in.weight.dtype)  # autocast or not, positions or not, the residual stream is float32
        return h if self.wpe is None else h + self.wpe(layout.positions)

    def _one_query_at_a_time(self, xs, ys, queries, hidden, rows):
        """Where the context sees the query, each query needs a context of its own, or would see the others through it.

        Context predictions then depend on the query: returned are those beside the first.
        """
        B, m, d = queries.shape
        alone = self(*(t.repeat_interleave(m, dim=0) for t in (xs, ys)), queries.reshape(B * m, 1, d), hidden, rows)

        def regroup(context, query):
            return Reading(context.unflatten(0, (B, m))[:, 0], query.unflatten(0, (B, m))[:, :, 0])

        readings = {layer: regroup(*reading) for layer, reading in alone.hidden.items()}
        return Output(*regroup(alone.context, alone.query), readings)

    def _check(self, xs, ys, queries, hidden):
        # Reading a value back would stall an accelerator at every training step; there the loss is watched instead.
        stalls = torch.compiler.is_compiling() or (self.training and self.read_in.weight.device.type != "cpu")
        check_prompt(xs, ys, queries, self.config.n_dims, finite=not stalls)
        like, n = self.read_in.weight, xs.shape[1]
        check(xs.dtype == like.dtype, "xs", f"dtype {xs.dtype}", f"the model's {like.dtype}")
        check(xs.device == like.device, "xs", f"device {xs.device}", f"the model's {like.device}")
        if self.positions in TABLES:
            most, kind = self.config.max_examples, self.positions
            check(n <= most, "xs", f"{n} examples", f"at most {most} with {kind} positions (max_examples = {most})")
        layers = range(len(self.blocks) + 1)
        check(all(layer in layers for layer in hidden), "hidden", sorted(hidden), f"layers 0 to {layers[-1]}")
