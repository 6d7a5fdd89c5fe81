"""Mask strategies: who may look at whom, as predicates on named token attributes.

A prompt of n examples and m queries becomes T = 2·n·copies + m tokens: for each copy of the context x_1 y_1 … x_n y_n,
then the queries. Two rules hold under every strategy and are written once, in `layout`:

- a query sees the last copy of the context, and itself (never another query; under `blind_query` not itself either);
- inside one example of one copy, y sees x and itself, and x sees itself.

A strategy adds who else the *context* sees. Its predicate gets `q`, the tokens that look, as a column, and `k`, the
tokens that are looked at, as a row; so `k.example < q.example` is a (T, T) table, true where k comes before q.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from minicl.errors import InputError, check, check_int, choose

POSITIONS = ("absolute", "symmetric", "none")


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a predicate may ask of a token. A query belongs to no example and no copy: there both are −1."""

    copy: Tensor
    example: Tensor
    is_label: Tensor
    is_query: Tensor

    def view(self, *shape):
        return Tokens(*(a.view(shape) for a in (self.copy, self.example, self.is_label, self.is_query)))


@dataclass(frozen=True)
class Strategy:
    """Who sees whom, with the positions and the number of copies that go with it unless others are asked for.

    Call it as `layout("invicl", n=4, m=1).mask` to get its mask as a tensor.
    """

    name: str
    sees: Callable[[Tokens, Tokens], Tensor]
    positions: str = "symmetric"
    copies: int = 1
    sees_query: bool = False  # only then is the predicate asked about queries: context that sees them
    blind_query: bool = False  # a control: queries see the context and not themselves

    def __post_init__(self):
        choose(f"positions of mask {self.name}", self.positions, POSITIONS)
        check_int(f"copies of mask {self.name}", self.copies, least=1)

    def __call__(self, q, k):
        return self.sees(q, k)

    def __reduce__(self):
        return _named, (self.name, self.blind_query)  # pickled by name, so that models can be

    @property
    def summary(self):
        return (self.sees.__doc__ or self.name).strip().splitlines()[0]


def strategy(sees=None, **settings):
    """Decorator that turns a predicate into a Strategy: `@strategy` or `@strategy(positions="none", copies=2)`."""
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
    return boe(q, k) | k.is_query


@strategy(copies=2)
def invicl(q, k):
    """Copy 0: its own example. Copy 1: copy 0 of every other example, and itself."""
    return (q.copy > 0) & (k.copy == 0) & (k.example != q.example)


@strategy
def offdiagonal(q, k):
    """Every example but its own, and its own x."""
    return k.example != q.example


STRATEGIES = {s.name: s for s in (ar, nope, prefix, boe, saicl, invicl, offdiagonal)}


def get_strategy(mask):
    """The strategy that `mask` means: a built-in name, `path/to/file.py:name`, or a Strategy itself."""
    if isinstance(mask, Strategy):
        return mask
    if isinstance(mask, str) and ".py:" in mask:
        path, _, name = mask.rpartition(":")
        return _from_file(mask, path, name)
    return STRATEGIES[choose("mask", mask, tuple(STRATEGIES), also=", or one of your own as path/to/file.py:name")]


def short(mask):
    """The name of a mask without the file that it is in."""
    return mask.rpartition(":")[2]


def _named(mask, blind_query):
    return replace(get_strategy(mask), blind_query=blind_query)


def _from_file(mask, path, name):
    file = Path(path)
    if not file.is_file():
        raise InputError(f"mask {mask!r}: there is no file {path!r}")
    stat = file.stat()
    return _load(mask, str(file.resolve()), name, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)  # one object per file version, so that the layouts cached under it are found again
def _load(mask, path, name, _mtime, _size):
    spec = importlib.util.spec_from_file_location(f"minicl_user_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[spec.name] = module
        with _aside():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"mask {mask}: {path} failed to import: {_one_line(error)}") from error
    found = getattr(module, name, None)
    if found is None:
        offered = [n for n, v in vars(module).items() if isinstance(v, Strategy) or _is_own_function(v, module)]
        raise InputError(f"mask {mask}: {path} has no {name!r}; it has: {', '.join(offered) or 'no predicate'}")
    if not isinstance(found, Strategy):
        check(callable(found), f"mask {mask}", type(found).__name__, "a function of (q, k)")
        found = Strategy(name, found)
    found = replace(found, name=mask)
    layout(found, n=3, m=2)  # a predicate that cannot work is refused here, before anything is built on it
    return found


def _is_own_function(value, module):
    return callable(value) and getattr(value, "__module__", None) == module.__name__


@contextlib.contextmanager
def _aside():
    """What a user's file prints goes to standard error: standard output is for results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@dataclass(frozen=True, eq=False)
class Layout:
    """The tokens of a prompt of n examples and m queries, what each sees, and where predictions are read."""

    tokens: Tokens
    mask: Tensor  # (T, T) bool, row sees column
    positions: Tensor | None  # (T,) rows of the position table; None: no positions
    context: Tensor  # (n,) the tokens that context predictions are read from: x of the last copy
    query: Tensor  # (m,)
    causal: bool  # the mask is exactly the lower triangle, so attention may skip it
    local: int = 0  # so many tokens at the front see nothing but their own pair: their attention is a few products
    tails: dict = field(default_factory=dict)  # what `tail` has found

    @property
    def pairs_computed(self):
        """Token pairs that dense attention computes per layer and head: only a causal mask lets it skip half."""
        T = len(self.mask)
        return T * (T + 1) // 2 if self.causal else T * T

    @torch.inference_mode(False)
    def tail(self, layers, context=True):
        """For the last layers: {layer: (rows, mask)}, where rows are the tokens whose state is still needed then.

        Backwards from what is read: a layer needs the rows that the next one computes or looks at. `rows` are places in
        the rows of the layer before, and the mask is between those; layers that need every token are left out.
        """
        if (layers, context) not in self.tails:
            needed = torch.cat([self.context, self.query]) if context else self.query
            steps, layer = [], layers
            while layer and len(needed) < len(self.mask):
                steps.append((layer, needed))
                seen = self.mask[needed].any(0)
                seen[needed] = True
                needed, layer = seen.nonzero()[:, 0], layer - 1
            found, present = {}, torch.arange(len(self.mask), device=needed.device)
            for layer, rows in reversed(steps):
                place = torch.full((len(self.mask),), -1, device=rows.device)
                place[present] = torch.arange(len(present), device=rows.device)
                found[layer] = (place[rows], self.mask[rows][:, present])
                present = rows
            self.tails[layers, context] = found
        return self.tails[layers, context]


def layout(mask, n, m, positions=None, copies=None, device="cpu"):
    """The Layout of a strategy for n examples and m queries, built once. None means the strategy's own choice."""
    strategy = get_strategy(mask)
    check_int("n", n, least=0)
    check_int("m", m, least=0)
    positions, copies = positions or strategy.positions, copies or strategy.copies
    choose("positions", positions, POSITIONS)
    check_int(f"copies with mask {strategy.name}", copies, least=strategy.copies)
    T = 2 * n * copies + m
    check(T <= MOST_TOKENS, "prompt", f"{T} tokens", f"at most {MOST_TOKENS}, so that the mask fits in memory")
    kept = _layout if T <= 1024 else _large_layout
    return kept(strategy, n, m, positions, copies, torch.device(device))


MOST_TOKENS = 20_000  # 400 MB of mask


@torch.inference_mode(False)  # what is built during an evaluation must also serve a later backward pass
def _build(strategy, n, m, positions, copies, device):
    tokens = _tokens(n, m, copies, device)
    q, k = tokens.view(-1, 1), tokens.view(1, -1)

    itself = (q.copy == k.copy) & (q.example == k.example) & (k.is_label <= q.is_label) & ~q.is_query & ~k.is_query
    query_rule = q.is_query & (k.copy == copies - 1)
    if not (strategy.blind_query and n):  # without a context there is nothing else to see
        query_rule = query_rule | q.is_query & torch.eye(len(tokens.copy), dtype=torch.bool, device=device)
    own = ~q.is_query & (~k.is_query | strategy.sees_query) & _ask(strategy, q, k)
    mask = itself | query_rule | own

    last_x = (tokens.copy == copies - 1) & ~tokens.is_label
    more = (mask != itself).any(1).nonzero()  # the tokens that see more than their pair
    return Layout(
        tokens,
        mask,
        _positions(positions, tokens, n),
        context=last_x.nonzero()[:, 0],
        query=tokens.is_query.nonzero()[:, 0],
        causal=torch.equal(mask, torch.ones_like(mask).tril()),
        local=int(more[0, 0]) // 2 * 2 if len(more) else len(mask),
    )


_layout = lru_cache(maxsize=256)(_build)  # more than a run has lengths, 1 MB of mask each at most
_large_layout = lru_cache(maxsize=4)(_build)


def _tokens(n, m, copies, device):
    """Copy by copy, example by example, x then y; then the queries."""
    pairs = torch.arange(2 * n * copies, device=device)
    none = pairs.new_full((m,), -1)
    return Tokens(
        copy=torch.cat([pairs // max(2 * n, 1), none]),
        example=torch.cat([pairs // 2 % max(n, 1), none]),
        is_label=torch.cat([pairs % 2 == 1, none >= 0]),
        is_query=torch.cat([pairs < 0, none < 0]),
    )


def _ask(strategy, q, k):
    """The strategy's own table, checked: a boolean tensor that fits (T, T)."""
    T = len(q.copy)
    try:
        with _aside():
            table = strategy(q, k)
    except (Exception, SystemExit) as error:
        raise InputError(f"mask {strategy.name}: its predicate failed: {_one_line(error)}") from error
    what, allowed = f"mask {strategy.name}: its predicate's answer", f"a boolean tensor that broadcasts to ({T}, {T})"
    check(isinstance(table, Tensor), what, type(table).__name__, allowed)
    check(table.dtype == torch.bool, what, table.dtype, allowed)
    try:
        return table.expand(T, T)
    except RuntimeError:
        raise InputError(f"{what}: got shape {tuple(table.shape)}, allowed: {allowed}") from None


def _positions(positions, tokens, n):
    """Both copies of a token share a position; every query stands where the next token would."""
    if positions == "none":
        return None
    start, end = (2 * tokens.example, 2 * n) if positions == "absolute" else (0, 2)
    return torch.where(tokens.is_query, end, start + tokens.is_label)
