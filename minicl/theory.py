"""`minicl theory`: which optimiser does each mask carry out when its weights are set by hand?

The paper's appendix C: linear self-attention without softmax, with one token (x, y) per example, W_q = W_k =
diag(I, 0), W_v = (0 0; w₀ −1) and P = ηI. A layer then changes only the y of a token t, by
η Σ (w₀·x_s − y_s)(x_s·x_t) over the tokens s that t sees. Starting from 0, the y of a query x after ℓ layers is
−(w_ℓ − w₀)·x, which defines w_ℓ.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minicl import plugins
from minicl.checks import InputError, check, check_int, check_number
from minicl.masks import STRATEGIES, Strategy, get_strategy, layout
from minicl.tasks import get_task
from minicl.text import columns, names

RATES = (0.1, 0.25, 0.5, 1.0)  # η as a share of 1/λ_max, λ_max the largest eigenvalue of XᵀX
PROOF = "invicl (proof)"


def unit_masks(mask: str | Strategy, n: int, layers: int, copies: int | None = None, own: bool = True) -> Tensor:
    """(layers, T, T) with one token per example and the query last: the strategy's mask between labels and the query.

    The query does not see itself, as in the paper's updates. With `own` false, neither does a token of a later copy.
    """
    whole = layout(mask, n, 1, copies=copies, layers=layers)
    chosen = (whole.tokens.is_label | whole.tokens.is_query).nonzero()[:, 0]
    sees = whole.masks(layers)[:, chosen][:, :, chosen]
    copy = whole.tokens.copy[chosen]
    blind = copy < 0 if own else copy != 0
    return sees & ~torch.diag(blind)


def weights(
    mask: str | Strategy, X: Tensor, y: Tensor, eta: Tensor, layers: int, w0: Tensor | None = None, own: bool = True
) -> Tensor:
    """(layers + 1, B, d): w_ℓ as the query reads it, for prompts X (B, n, d), y (B, n) and step sizes eta (B,).

    Each of d unit queries is asked alone, so that a context that sees the query does not mix them.
    """
    B, n, d = X.shape
    strategy = get_strategy(mask)
    w0 = X.new_zeros(B, d) if w0 is None else w0
    x = torch.cat([X.repeat(1, strategy.copies, 1).unsqueeze(1).expand(B, d, -1, d), _unit_queries(X)], dim=2)
    label = torch.cat([y.repeat(1, strategy.copies).unsqueeze(1).expand(B, d, -1), X.new_zeros(B, d, 1)], dim=2)
    start = (x @ w0.view(B, 1, d, 1))[..., 0]  # (B, d, T)
    similar = x @ x.mT  # (B, d, T, T)
    steps = [w0]
    for sees in unit_masks(strategy, n, layers, own=own).to(X.dtype):
        label = label + eta.view(B, 1, 1) * ((sees * similar) @ (start - label).unsqueeze(-1))[..., 0]
        steps.append(w0 - label[:, :, -1])
    return torch.stack(steps)


def _unit_queries(X):
    B, _, d = X.shape
    return torch.eye(d, dtype=X.dtype).view(1, d, 1, d).expand(B, d, 1, d)


def linear_in_the_query(mask: str | Strategy) -> bool:
    """Whether the query's answer is w·x for one w: not so if the context sees the query."""
    return not get_strategy(mask).sees_query


def literal_invicl(X: Tensor, y: Tensor, eta: Tensor, layers: int) -> Tensor:
    """The proof's three updates, copy 0, copy 1 and query, as they stand there, from w₀ = 0."""
    itself, others = _gram(X)
    first, second, w = y, y, torch.zeros_like(X[:, 0])
    step, steps = eta.view(-1, 1), [w]
    for _ in range(layers):
        first, second, w = (
            first - step * itself * first,
            second - step * (others @ first.unsqueeze(-1))[..., 0],
            w + step * (X.mT @ second.unsqueeze(-1))[..., 0],
        )
        steps.append(w)
    return torch.stack(steps)


def _gram(X):
    """(B, n) and (B, n, n): the diagonal of XXᵀ, and XXᵀ with 0 on its diagonal."""
    gram = X @ X.mT
    itself = gram.diagonal(dim1=1, dim2=2)
    return itself, gram - torch.diag_embed(itself)


def optimiser(name: str, X: Tensor, y: Tensor, eta: Tensor, layers: int) -> Tensor:
    """(layers + 1, B, d): the optimiser that the paper names, from w = 0, written in weights and not in tokens."""
    step, w = eta.view(-1, 1), torch.zeros_like(X[:, 0])

    def slope(w):
        return (X.mT @ ((X @ w.unsqueeze(-1))[..., 0] - y).unsqueeze(-1))[..., 0]

    steps, at_each = [w], torch.zeros_like(X)  # at_each: online descent's own weights at each example
    for _ in range(layers):
        if name == "gradient descent":
            w = w - step * slope(w)
        elif name == "constant gradient":
            w = w - step * slope(torch.zeros_like(w))
        elif name == "online gradient descent":
            each = (y - (X * at_each).sum(-1)).unsqueeze(-1) * X  # every example's own step, at its own weights
            w = w + step * each.sum(1)
            at_each = at_each + step.unsqueeze(1) * each.cumsum(1)
        elif name == "gradient descent + η²Δ":
            rest = (X @ w.unsqueeze(-1)) - y.unsqueeze(-1)
            w = w - step * slope(w) + step**2 * (X.mT @ _gram(X)[1] @ rest)[..., 0]
        else:
            raise InputError(f"optimiser: got {name!r}")
        steps.append(w)
    return torch.stack(steps)


STATED = {
    "prefix": "gradient descent",
    "ar": "online gradient descent",
    "nope": "online gradient descent",
    "boe": "constant gradient",
    "invicl": "gradient descent + η²Δ",
}


def problems(prompts: int, n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Linear-regression prompts in float64: X, y, the true w, and λ_max of XᵀX."""
    p = get_task("linear", n_dims=d).sample(prompts, n, seed)
    X, y = p.xs.double(), p.ys.double()
    w = torch.linalg.lstsq(X, y.unsqueeze(-1)).solution[..., 0]
    return X, y, w, torch.linalg.matrix_norm(X, ord=2).square()


def compare(
    masks: Iterable[str | Strategy],
    prompts: int = 200,
    n: int = 10,
    d: int = 5,
    layers: int = 12,
    rates: Sequence[float] = RATES,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A record for every mask (and the proof's literal InvICL) and step size: distances to w and to the optimiser."""
    X, y, w, largest = problems(prompts, n, d, seed)
    strategies = {s.name: s for s in map(get_strategy, masks)}
    for s in strategies.values():
        check(not s.average, "masks", s.name, "masks: it averages several passes")
    updates: dict[str, Callable] = {s.name: lambda *problem, s=s: weights(s, *problem) for s in strategies.values()}
    if STRATEGIES["invicl"] in strategies.values():
        updates[PROOF] = literal_invicl

    def distance(steps, other):
        return ((steps - other).norm(dim=-1) / w.norm(dim=-1)).mean(1).tolist()

    records = []
    for rate in rates:
        problem = (X, y, rate / largest, layers)
        descent = optimiser("gradient descent", *problem)
        for name, update in updates.items():
            steps = update(*problem)
            stated = STATED.get("invicl" if name == PROOF else name)
            claimed = stated and optimiser(stated, *problem)
            to_w = distance(steps, w)
            records.append(
                {
                    "mask": name,
                    "rate": rate,
                    "layers": list(range(layers + 1)),
                    "distance": to_w,
                    "optimiser": stated,
                    "optimiser_distance": stated and distance(claimed, w),
                    "from_optimiser": stated and distance(steps, claimed),
                    "from_gradient_descent": distance(steps, descent),
                    "verdict": verdict(to_w),
                    "linear": name == PROOF or linear_in_the_query(strategies[name]),
                }
            )
    return records


def verdict(distances: Sequence[float]) -> str:
    """converges: still falling at the end; stalls: by less than 1 % per layer; diverges: up again from its best."""
    best, last, before = min(distances), distances[-1], distances[-2]
    if last > 1.05 * best or not math.isfinite(last):
        return "diverges"
    return "converges" if last < 0.99 * before else "stalls"


def first_difference(record: dict[str, Any], tolerance: float = 1e-9) -> int | None:
    """The first layer at which the mask is not its optimiser, or None."""
    return next((i for i, gap in enumerate(record["from_optimiser"]) if gap > tolerance), None)


def resemblance(
    run: str | Path, most: int = 24, prompts: int = 2048, step: int | None = None, trust: bool = False
) -> list[dict[str, Any]]:
    """For a trained run: the distance of each layer's probed prediction to k steps of two optimisers, at full length.

    Gradient descent takes the step size (of a grid up to 2/λ_max) that is best for that layer and k.
    """
    from minicl import runs
    from minicl.probe import SEEDS, fit_ridge, read, with_one

    config = runs.read_config(run, trust)
    check(config.model.architecture == "transformer", "run", f"{run}, a set encoder", "runs of transformers")
    task, n, layers = config.task, config.data.examples, list(range(config.model.n_layer + 1))
    check(task.name in ("linear", "noisy_linear"), "task", plugins.short(task.name), "linear, noisy_linear")
    sets = read(runs.load(run, step, trust=trust), task, [n], layers, prompts)[n]
    p = task.sample(len(sets["test"].target), n + 1, (SEEDS["test"],))
    X, y, query = p.xs[:, :n].double(), p.ys[:, :n].double(), p.queries[:, n].double()
    largest = torch.linalg.matrix_norm(X, ord=2).square()
    descents = [optimiser("gradient descent", X, y, rate / largest, most) for rate in (0.1, 0.2, 0.4, 0.7, 1, 1.4, 1.9)]
    newton = _newton(X, y, largest, most)
    rows = []
    for layer in layers:
        data = {name: (values.hidden[layer], values.target) for name, values in sets.items()}
        answer = (with_one(data["test"][0]) @ fit_ridge(*data["fit"], data["choose"]))[:, 0]

        def gap(w, answer=answer):  # (most + 1, B, d) → a distance for each k
            return ((w * query).sum(-1) - answer).square().mean(1) / task.normaliser

        descent = torch.stack([gap(w) for w in descents]).min(0).values
        rows.append({"run": str(run), "layer": layer, "descent": descent.tolist(), "newton": gap(newton).tolist()})
    return rows


def _newton(X, y, largest, most):
    """Newton's iteration for the inverse of S = XᵀX, from S/λ_max²: w_k = M_k Xᵀy, M_k+1 = 2 M_k − M_k S M_k."""
    S, target = X.mT @ X, X.mT @ y.unsqueeze(-1)
    M = S / largest.square().view(-1, 1, 1)
    steps = [torch.zeros_like(X[:, 0])]
    for _ in range(most):
        steps.append((M @ target)[..., 0])
        M = 2 * M - M @ S @ M
    return torch.stack(steps)


# The flags that say what `compare` compares, and their defaults. A trained run has its own.
COMPARED = {"masks": tuple(STATED), "examples": 10, "n_dims": 5, "layers": 12, "rates": RATES, "seed": 0}


def add_arguments(parser):
    also = {"type": names, "action": "extend", "metavar": "M,M,…"}
    parser.add_argument("--masks", "--mask", help=f"strategies, also path/to/file.py:name ({','.join(STATED)})", **also)
    parser.add_argument("--run", metavar="RUN", help="instead: which optimiser do a trained run's layers resemble?")
    parser.add_argument("--trust", action="store_true", help="--run: run the mask.py that came with the run folder")
    parser.add_argument("--prompts", type=int, help="prompts (200; 2048 with --run)")
    parser.add_argument("--examples", type=int, help="examples in each prompt (10)")
    parser.add_argument("--n-dims", type=int, help="dimensions of x (5)")
    parser.add_argument("--layers", type=int, help="depth of the model (12)")
    rates = ",".join(f"{rate:g}" for rate in RATES)
    parser.add_argument("--rates", type=_numbers, metavar="R,R,…", help=f"step sizes, times λ_max ({rates})")
    parser.add_argument("--seed", type=int, help="seed of the prompts (0)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw them")


def _numbers(text):
    try:
        return tuple(float(part) for part in names(text))
    except ValueError:
        raise InputError(f"got {text!r}, allowed: numbers with commas between them") from None


def run(args):
    from minicl import draw, draw_layers

    if args.plot is not None:
        draw.check_ending(args.plot)
    if args.prompts is not None:
        check_int("prompts", args.prompts, least=8)
    if args.run is not None:
        for name in COMPARED:
            if getattr(args, name) is not None:
                raise InputError(f"--{name.replace('_', '-')}: does not go with --run, which has its own")
        records = resemblance(args.run, prompts=args.prompts or 2048, trust=args.trust)
        picture, text = draw_layers.resemblance, _resemblance_table
    else:
        records = compare(prompts=args.prompts or 200, **_settings(args))
        picture, text = draw_layers.theory, table
    print(json.dumps(records) if args.json else text(records))
    if args.plot is not None:
        draw.save(picture(records), args.plot)
    return 0


def _settings(args):
    """The arguments of `compare`, checked."""
    given = {k: default if getattr(args, k) is None else getattr(args, k) for k, default in COMPARED.items()}
    for name in ("examples", "n_dims", "layers", "seed"):
        check_int(name, given[name], least={"layers": 2, "seed": 0}.get(name, 1))
    for name in ("masks", "rates"):
        check(given[name], name, "an empty list", "at least one")
    for rate in given["rates"]:
        check_number("rates", rate, above=True)
    return {{"examples": "n", "n_dims": "d"}.get(name, name): value for name, value in given.items()}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Distances after the last layer, and in words where each mask is the optimiser that the paper names."""
    by_mask: dict[str, list[dict[str, Any]]] = {}
    for r in records:
        by_mask.setdefault(r["mask"], []).append(r)
    rates = dict.fromkeys(r["rate"] for r in records)
    rows = [["distance to w after the last layer", *(f"η = {rate:g}/λ_max" for rate in rates)]]
    for mask, mine in by_mask.items():
        rows.append([plugins.short(mask), *(f"{r['distance'][-1]:.3g} {r['verdict']}" for r in mine)])
    lines = [*columns(rows), ""]
    for mask, (r, *_) in by_mask.items():
        name = plugins.short(mask)
        if r["optimiser"]:
            lines.append(f"{name} is {r['optimiser']} {_agreement(r)}")
        if not r["linear"]:
            lines.append(f"{name}: the context sees the query, so its answers are those of no single w")
    if PROOF in by_mask:
        lines += ["", *WHY]
    return "\n".join(lines)


def _agreement(record):
    layer = first_difference(record)
    if layer is None:
        return "at every layer"
    gap = f"{record['from_optimiser'][layer]:.2g} of |w| at η = {record['rate']:g}/λ_max"
    return f"up to layer {layer - 1}, not from layer {layer} on (there by {gap})"


WHY = (
    "Why InvICL is not its stated recursion: in a layer all tokens change at once, so the query reads copy 1 as it was",
    "before; the recursion lets it read copy 1 after its step. And copy 0 sees only itself: its residuals fall by",
    "(1 − η|x|²) per layer, whatever the query has learnt, while the recursion takes them at the query's own w.",
    "'invicl' is minicl's mask, where copy 1 sees itself: two layers of it are gradient descent, and it ends at the",
    "second iterate of Jacobi's method. 'invicl (proof)' are the proof's updates, where copy 1 does not see itself:",
    "its residuals never vanish, and w grows with every layer. BoE is no constant gradient either: each example sees",
    "itself, and it ends at Jacobi's first iterate.",
)


def _resemblance_table(records):
    rows = [["layer", "nearest descent", "distance", "nearest Newton", "distance"]]
    for r in records:
        cells = [str(r["layer"])]
        for kind in ("descent", "newton"):
            k = min(range(len(r[kind])), key=r[kind].__getitem__)
            cells += [f"{k} steps", f"{r[kind][k]:.3g}"]
        rows.append(cells)
    head = f"{records[0]['run']}: each layer's probed prediction, and the number of steps whose prediction is nearest"
    return "\n".join([head, *columns(rows)])
