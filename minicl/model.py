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

from minicl import masks
from minicl.checks import check, check_int, check_prompt
from minicl.masks import PER_EXAMPLE, POSITIONS, Layout, Strategy, get_strategy
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
    max_examples: int = setting(100, "most examples with absolute positions; others know no limit", least=1)

    def __post_init__(self):
        strategy = get_strategy(self.mask)
        check_settings(self)
        check(self.n_embd % self.n_head == 0, "n_embd", self.n_embd, f"a multiple of n_head = {self.n_head}")
        if self.copies is not None:
            check_int(f"copies with mask {strategy.name}", self.copies, least=strategy.copies)

    @property
    def strategy(self) -> Strategy:
        own = get_strategy(self.mask)
        return dataclasses.replace(own, blind_query=True) if self.blind_query else own

    # The strategy's own choices, where no others were made.
    @property
    def resolved_positions(self) -> str:
        return self.positions or get_strategy(self.mask).positions

    @property
    def resolved_copies(self) -> int:
        return self.copies or get_strategy(self.mask).copies

    def layout(self, n: int, m: int, device: str | torch.device = "cpu") -> Layout:
        """The tokens of a prompt and what each sees, under this model."""
        return masks.layout(self.strategy, n, m, self.positions, self.copies, self.n_layer, device)


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

    def forward(self, h: Tensor, bias: Tensor | None) -> Tensor:
        """`bias` (T, T) is added to the scores; None means that each token sees those before it and itself."""
        return self.attend(*self.heads(h), bias)

    def heads(self, h: Tensor) -> list[Tensor]:
        """Queries, keys and values of the tokens, each (B, H, T, E/H)."""
        parts = self.c_attn(h).chunk(3, dim=-1)
        return [t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in parts]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """What the tokens of q take from those of k and v."""
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
        return self.c_proj(a.transpose(1, 2).flatten(2))


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

    def forward(self, h: Tensor, bias: Tensor | None) -> Tensor:
        h = h + self.attn(self.ln_1(h), bias)
        return h + self.mlp(self.ln_2(h))


class Transformer(nn.Module):
    """`model(xs, ys, queries)` predicts y at every query, and at every x of the context."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        # Resolved once: a mask file that changes later does not change a model that exists.
        self.strategy = config.strategy
        self.positions, self.copies = config.resolved_positions, config.resolved_copies
        n_positions = masks.position_count(self.positions, config.max_examples)
        self.read_in = nn.Linear(config.n_dims, config.n_embd)
        self.wpe = nn.Embedding(n_positions, config.n_embd) if n_positions else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.read_out = nn.Linear(config.n_embd, 1)
        self._initialise()

    def _initialise(self):
        """GPT-2's: normal, and smaller where 2·n_layer branches add up in the residual stream."""
        for name, module in self.named_modules():
            if name.startswith("read_") and self.config.read_start == "torch":
                module.reset_parameters()  # uniform, with a standard deviation of 1/√(3 × inputs), and biases too
            elif isinstance(module, nn.Linear):
                scale = math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj") else 1
                nn.init.normal_(module.weight, std=self.config.init_std / scale)
                nn.init.zeros_(module.bias)
        if self.wpe is not None:
            # Absolute positions that training never reaches keep their start, so it is small whatever the matrices are.
            symmetric = self.config.symmetric_std or self.config.init_std
            nn.init.normal_(self.wpe.weight, std=0.02 if self.positions == "absolute" else symmetric)

    def forward(self, xs: Tensor, ys: Tensor, queries: Tensor, hidden: Iterable[int] = ()) -> Output:
        """xs (B, n, d), ys (B, n), queries (B, m, d) → predictions, and hidden states of the layers in `hidden`."""
        hidden = frozenset(hidden)
        self._check(xs, ys, queries, hidden)
        if self.strategy.sees_query and queries.shape[1] > 1:
            return self._one_query_at_a_time(xs, ys, queries, hidden)
        layout = self.layout(xs.shape[1], queries.shape[1], xs.device)
        layout.causal  # noqa: B018  (looked up here, so that `propagate` is tensors only)
        return self.propagate(xs, ys, queries, layout, hidden)

    def layout(self, n: int, m: int, device: str | torch.device = "cpu") -> Layout:
        """The tokens of a prompt of n examples and m queries, and what each sees."""
        return masks.layout(self.strategy, n, m, self.positions, self.copies, len(self.blocks), device)

    def propagate(
        self, xs: Tensor, ys: Tensor, queries: Tensor, layout: Layout, hidden: Collection[int] = ()
    ) -> Output:
        """The forward pass under a layout: embed, block after block, read out."""
        h = self.embed(xs, ys, queries, layout)
        kind = h.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
        depth = len(self.blocks)
        biases = [None] * depth if layout.causal else layout.bias(dtype).expand(depth, -1, -1)
        seen = {0: h} if 0 in hidden else {}
        for layer, (block, bias) in enumerate(zip(self.blocks, biases, strict=True), start=1):
            h = block(h, bias)
            if layer in hidden:
                seen[layer] = h
        answers = self.read_out(self.ln_f(h))[..., 0]  # (B, T)
        n = xs.shape[1]
        readings = {layer: self._where_predicted(h, n) for layer, h in seen.items()}
        return Output(*self._where_predicted(answers, n), readings)

    def _where_predicted(self, t, n):
        """A Reading of t (B, T, …): at x of the last copy, and at the queries."""
        end = PER_EXAMPLE * self.copies * n
        return Reading(t[:, end - PER_EXAMPLE * n : end : PER_EXAMPLE], t[:, end:])

    def embed(self, xs: Tensor, ys: Tensor, queries: Tensor, layout: Layout) -> Tensor:
        """(B, T, E): x and y as (y, 0, …, 0) in turn, once for each copy of the context, then the queries."""
        labels = F.pad(ys.unsqueeze(-1), (0, self.config.n_dims - 1))
        context = torch.stack([xs, labels], dim=2).flatten(1, 2)  # (B, 2n, d)
        h = self.read_in(torch.cat([context] * self.copies + [queries], dim=1))
        h = h.to(self.read_in.weight.dtype)  # autocast or not, positions or not, the residual stream is float32
        return h if self.wpe is None else h + self.wpe(layout.positions)

    def _one_query_at_a_time(self, xs, ys, queries, hidden):
        """Where the context sees the query, each query needs a context of its own, or would see the others through it.

        Context predictions then depend on the query: returned are those beside the first.
        """
        B, m, d = queries.shape
        alone = self(*(t.repeat_interleave(m, dim=0) for t in (xs, ys)), queries.reshape(B * m, 1, d), hidden)

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
        if self.positions == "absolute":
            most = self.config.max_examples
            check(n <= most, "xs", f"{n} examples", f"at most {most} with absolute positions (max_examples = {most})")
        layers = range(len(self.blocks) + 1)
        check(all(layer in layers for layer in hidden), "hidden", sorted(hidden), f"layers 0 to {layers[-1]}")
