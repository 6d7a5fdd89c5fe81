"""Mask strategies: who may look at whom, as predicates on named token attributes.

A prompt of n examples and m queries becomes T tokens: for each copy of the context x_1 y_1 … x_n y_n, then the queries.
Two rules hold under every strategy and are written once, in `_build`:

- a query sees the last copy of the context, and itself (never another query; under `blind_query` not itself either);
- inside one example of one copy, y sees x and itself, and x sees itself.

A strategy adds who else the *context* sees. Its predicate gets `q`, the tokens that look, as a column, and `k`, the
tokens that are looked at, as a row; so `k.example < q.example` is a (T, T) table, true where k comes before q. It may
also ask for the layer, `def f(q, k, layer)`, counted from 1. A strategy may say with `query=` whom the query sees
instead of the last copy: one more predicate of the same form.
"""

import copyreg
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import torch
from torch import Tensor

from minicl import plugins
from minicl.checks import InputError, check, check_int, choose
from minicl.text import one_line

POSITIONS = ("absolute", "random", "rotary", "symmetric", "rotary_symmetric", "none")
COUNTING = (
    "absolute",
    "random",
    "rotary",
)  # number the tokens of a prompt; symmetric ones start anew with each example
TABLES = ("absolute", "random")  # have a row for each token, up to max_examples
ROTARY = ("rotary", "rotary_symmetric")  # turn queries and keys instead of adding to the tokens
PER_EXAMPLE = 2  # tokens of an example: x, then y
MOST_TOKENS = 20_000  # 400 MB of mask


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a predicate may ask of a token. A query belongs to no example and no copy: there both are −1."""

    copy: Tensor
    example: Tensor
    is_label: Tensor
    is_query: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> "Tokens":
        return Tokens(*(change(a) for a in (self.copy, self.example, self.is_label, self.is_query)))

    def view(self, *shape: int) -> "Tokens":
        return self.each(lambda a: a.view(shape))


Predicate = Callable[..., Tensor]  # of (q, k) or (q, k, layer)


@dataclass(frozen=True)
class Strategy:
    """Who sees whom, with the positions and the number of copies that go with it unless others are asked for."""

    name: str
    sees: Predicate
    positions: str = "symmetric"
    copies: int = 1
    sees_query: bool = False  # only then is the predicate asked about queries: context that sees them
    query: Predicate | None = None  # whom a query sees; None: the last copy
    blind_query: bool = False  # a control: queries see the context and not themselves
    average: bool = False  # a pass for each example; the query's states are averaged at a layer (see batchicl.py)

    def __post_init__(self):
        choose(f"positions of mask {self.name}", self.positions, POSITIONS)
        check_int(f"copies of mask {self.name}", self.copies, least=1)

    def __call__(self, q, k, *layer):
        return self.sees(q, k, *layer)

    def __reduce__(self):
        """Pickled by name, so that models can be; one that was made in Python by what it is made of."""
        built_in = STRATEGIES.get(self.name)
        by_name = plugins.is_own(self.name) or self.name.startswith(("one:", "two:"))
        if by_name or (built_in and built_in.sees is self.sees):
            return _named, (self.name, self.blind_query)
        return copyreg.__newobj__, (Strategy,), self.__dict__

    def __deepcopy__(self, memo):
        return self

    @property
    def layered(self) -> bool:
        """Whether the mask may differ from layer to layer."""
        return any(_asks_for_layer(f) for f in (self.sees, self.query) if f is not None)

    @property
    def summary(self) -> str:
        return next(iter((self.sees.__doc__ or "").strip().splitlines()), self.name)


def _asks_for_layer(predicate):
    if isinstance(predicate, Strategy):
        return predicate.layered
    parameters = inspect.signature(predicate).parameters
    third = [*parameters.values()][2:3]  # by any name, unless it has a default: then it is the user's own
    return "layer" in parameters or any(p.default is p.empty for p in third)


def strategy(sees: Predicate | None = None, **settings) -> Strategy | Callable[[Predicate], Strategy]:
    """Decorator that turns a predicate into a Strategy: `@strategy` or `@strategy(positions="none", copies=2)`."""
    for name in settings:
        choose("settings of a mask", name, [f.name for f in fields(Strategy)[2:]])  # the first two are the function's
    if sees is None:
        return lambda sees: Strategy(sees.__name__, sees, **settings)
    return Strategy(sees.__name__, sees, **settings)


@strategy(positions="absolute")
def ar(q, k):
    """Everything before it."""
    return (k.copy < q.copy) | (k.copy == q.copy) & (k.example < q.example)


@strategy(positions="none")
def nope(q, k):
    """Everything before it, as `ar`, but without positions."""
    return ar(q, k)


@strategy
def prefix(q, k):
    """All of the context, labels too."""
    return ~(q.is_query | k.is_query)


@strategy
def boe(q, k):
    """Only its own example (and that example's earlier copy, when the context is fed twice)."""
    return (k.example == q.example) & (k.copy < q.copy)


@strategy(sees_query=True)
def saicl(q, k):
    """Its own example, as `boe`, and the query."""
    return boe(q, k) | k.is_query & ~q.is_query


@strategy(copies=2)
def invicl(q, k):
    """Copy 0: its own example. Copy 1: copy 0 of every other example, and itself."""
    return (q.copy > 0) & (k.copy == 0) & (k.example != q.example)


@strategy
def pfn(q, k):
    """Only its own example; and labels see all labels."""
    return q.is_label & k.is_label


@strategy
def prefix_others(q, k):
    """All of the context but its own label."""
    return (k.example != q.example) & ~q.is_query


@strategy(average=True)
def batchicl(q, k):
    """Only its own example; the query sees one example at a time, and its states are averaged at a layer."""
    return boe(q, k)


STRATEGIES = {s.name: s for s in (ar, nope, prefix, boe, pfn, saicl, batchicl, invicl, prefix_others)}


def get_strategy(mask: str | Strategy) -> Strategy:
    """The strategy that `mask` means: a name (built-in or of kinds.py), path/to/file.py:name, or a Strategy itself."""
    if isinstance(mask, Strategy):
        return mask
    if plugins.is_own(mask):
        return _from_file(mask, plugins.load("mask", mask)[0])
    if isinstance(mask, str) and mask.startswith(("one:", "two:")):
        from minicl.kinds import strategy_of  # which needs what is here

        return strategy_of(mask)
    return STRATEGIES[choose("mask", mask, tuple(STRATEGIES), also=", or one of your own as path/to/file.py:name")]


def _named(mask, blind_query):
    return replace(get_strategy(mask), blind_query=blind_query)


@lru_cache(maxsize=64)
def _from_file(mask, value):
    if not isinstance(value, Strategy):
        check(callable(value), f"mask {mask}", type(value).__name__, "a function of (q, k) or (q, k, layer)")
        value = Strategy(plugins.short(mask), value)
    strategy = replace(value, name=mask)
    layout(strategy, n=3, m=2, layers=2)  # a predicate that cannot work is refused here, before anything uses it
    return strategy


@dataclass(frozen=True, eq=False)
class Layout:
    """The tokens of a prompt of n examples and m queries, what each sees, and where predictions are read."""

    tokens: Tokens
    mask: Tensor  # (T, T) bool, row sees column; (L, T, T) if the strategy's mask differs from layer to layer
    positions: Tensor | None  # (T,) where each token stands; None: no positions
    context: Tensor  # (n,) the tokens that context predictions are read from: x of a copy
    query: Tensor  # (m,)
    causal: bool  # the mask is exactly the lower triangle, so that attention may skip it

    def masks(self, layers: int) -> Tensor:
        """(layers, T, T): the mask of every layer."""
        return self.mask.expand(layers, *self.mask.shape[-2:])

    def bias(self, dtype: torch.dtype) -> Tensor:
        """The mask as attention adds it to its scores: 0 or −∞. Rows are as far apart as CUDA's kernels want them."""
        *shape, T = self.mask.shape
        padded = torch.zeros(*shape, T + 8 - T % 8, dtype=dtype, device=self.mask.device)
        return padded[..., :T].masked_fill_(~self.mask, -torch.inf)

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        parts = (self.mask, self.positions, self.context, self.query)
        moved = (part if part is None else part.to(device) for part in parts)
        return Layout(self.tokens.each(lambda a: a.to(device)), *moved, self.causal)

    @property
    def pairs(self) -> float:
        """Token pairs that see each other, per layer (the mean, where layers differ) and head."""
        pairs = int(self.mask.sum()) / (1 if self.mask.ndim == 2 else len(self.mask))
        return int(pairs) if pairs == int(pairs) else pairs

    @property
    def pairs_computed(self) -> int:
        """Token pairs that dense attention computes per layer and head: only a causal mask lets it skip half."""
        T = len(self.tokens.copy)
        return T * (T + 1) // 2 if self.causal else T * T


def layout(
    mask: str | Strategy,
    n: int,
    m: int,
    positions: str | None = None,
    copies: int | None = None,
    layers: int | None = None,
    device: str | torch.device = "cpu",
    reads: int | None = None,
) -> Layout:
    """The Layout of a strategy for n examples and m queries, built once. None means the strategy's own choice.

    `layers`, the model's depth, is needed if the strategy's mask differs from layer to layer. `reads` is the copy that
    context predictions are read at (None: the last).
    """
    strategy = get_strategy(mask)
    check_int("n", n, least=0)
    check_int("m", m, least=0)
    positions, copies = positions or strategy.positions, copies or strategy.copies
    choose("positions", positions, POSITIONS)
    check_int(f"copies with mask {strategy.name}", copies, least=strategy.copies)
    if reads is not None:
        check_int("reads", reads, least=0, most=copies - 1)
    depth = layers if strategy.layered else 0
    if strategy.layered:
        check_int(f"layers with mask {strategy.name}, which differs from layer to layer", layers, least=1)
    T = PER_EXAMPLE * n * copies + m
    most = int(MOST_TOKENS / max(1, depth) ** 0.5)
    check(most >= T, "prompt", f"{T} tokens", f"at most {most}, so that the mask fits in memory")
    build = _layout if T <= 1024 else _large_layout
    return build(strategy, n, m, positions, copies, depth, torch.device(device), copies - 1 if reads is None else reads)


@torch.inference_mode(False)  # what is built during an evaluation must also serve a later backward pass
def _build(strategy, n, m, positions, copies, depth, device, reads):
    if device.type != "cpu":
        return layout(strategy, n, m, positions, copies, depth or None, reads=reads).to(device)
    tokens = _tokens(n, m, copies)
    q, k = tokens.view(-1, 1), tokens.view(1, -1)
    T = len(tokens.copy)

    own = (q.copy == k.copy) & (q.example == k.example) & (k.is_label <= q.is_label) & ~q.is_query & ~k.is_query
    itself = q.is_query & torch.eye(T, dtype=torch.bool)
    if strategy.blind_query and n:  # without a context there is nothing else to see
        itself = torch.zeros_like(itself)

    def table(*layer):
        """The whole mask, of one layer or of all."""
        if strategy.query is None:
            asked = q.is_query & (k.copy == copies - 1)
        else:
            asked = q.is_query & ~k.is_query & _ask(strategy, strategy.query, q, k, *layer)
        others = _ask(strategy, strategy.sees, q, k, *layer)
        check(
            not (others & q.is_query).any(),
            f"mask {strategy.name}",
            "a predicate that is true where q is a query",
            "& ~q.is_query; whom a query sees is said by strategy(query=…), and is the last copy otherwise",
        )
        return own | itself | asked | (~q.is_query & (~k.is_query | strategy.sees_query) & others)

    mask = torch.stack([table(layer) for layer in range(1, depth + 1)]) if depth else table()
    read = ((tokens.copy == reads) & ~tokens.is_label).nonzero()[:, 0]
    query = tokens.is_query.nonzero()[:, 0]
    return Layout(tokens, mask, _positions(positions, tokens, n), read, query, is_causal(mask))


def is_causal(mask: Tensor) -> bool:
    """Whether a mask is the same in every layer, and exactly the lower triangle."""
    return mask.ndim == 2 and torch.equal(mask, torch.ones_like(mask).tril())


_layout = lru_cache(maxsize=256)(_build)  # more than a run has lengths
_large_layout = lru_cache(maxsize=4)(_build)


def _tokens(n, m, copies):
    """Copy by copy, example by example, x then y; then the queries."""
    context = torch.arange(PER_EXAMPLE * n * copies)
    none = context.new_full((m,), -1)
    return Tokens(
        copy=torch.cat([context // max(PER_EXAMPLE * n, 1), none]),
        example=torch.cat([context // PER_EXAMPLE % max(n, 1), none]),
        is_label=torch.cat([context % PER_EXAMPLE == 1, none >= 0]),
        is_query=torch.cat([context < 0, none < 0]),
    )


def _ask(strategy, predicate, q, k, *layer):
    """The predicate's own table, checked: a boolean tensor that fits (T, T), and the same when asked again."""
    T = len(q.copy)

    def asked():
        tokens = q.each(Tensor.clone), k.each(Tensor.clone)  # its own: it may write into them
        if not _asks_for_layer(predicate):
            return predicate(*tokens)
        by_name = not isinstance(predicate, Strategy) and "layer" in inspect.signature(predicate).parameters
        return predicate(*tokens, layer=layer[0]) if by_name else predicate(*tokens, *layer)

    try:
        with plugins.aside():
            table, again = asked(), asked()
    except (Exception, SystemExit) as error:
        raise InputError(f"mask {strategy.name}: its predicate failed: {one_line(error)}{_advice(error)}") from error
    what, allowed = f"mask {strategy.name}: its predicate's answer", f"a boolean tensor that broadcasts to ({T}, {T})"
    check(isinstance(table, Tensor), what, type(table).__name__, allowed)
    check(table.dtype == torch.bool, what, table.dtype, allowed)
    same = isinstance(again, Tensor) and torch.equal(table, again)
    check(same, what, "another one each time", "the same one whenever it is asked")
    try:
        return table.expand(T, T)
    except RuntimeError:
        raise InputError(f"{what}: got shape {tuple(table.shape)}, allowed: {allowed}") from None


def _advice(error):
    """What helps against the two slips that are easiest to make in a predicate."""
    if isinstance(error, AttributeError) and "'Tokens'" in str(error):
        return f"; tokens have {', '.join(f.name for f in fields(Tokens))}"
    if "Boolean value of Tensor" in str(error):
        return "; a predicate answers for all tokens at once: write & | ~ for and, or, not, and no if"
    return ""


def _positions(positions, tokens, n):
    """Both copies of a token share a position; every query stands where the next token would."""
    if positions == "none":
        return None
    counting = positions in COUNTING
    start, end = (PER_EXAMPLE * tokens.example, PER_EXAMPLE * n) if counting else (0, PER_EXAMPLE)
    return torch.where(tokens.is_query, end, start + tokens.is_label)


def position_count(positions: str, examples: int) -> int:
    """Rows of the position table for prompts of up to so many examples."""
    return PER_EXAMPLE * examples + 1 if positions in TABLES else PER_EXAMPLE + 1 if positions == "symmetric" else 0
