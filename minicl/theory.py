"""`minicl theory`: which optimiser does each mask carry out when its weights are set by hand?

The paper's appendix C: linear self-attention without softmax on one token (x, y) an example, with W_q = W_k =
diag(I, 0), W_v = (0 0; w₀ −1) and P = ηI. A layer then changes nothing but the y of a token t, by
η Σ (w₀·x_s − y_s)(x_s·x_t) over the tokens s that t sees. Starting from 0, the y of a query x after ℓ layers is
−(w_ℓ − w₀)·x, which defines w_ℓ.
"""

import json
import math

import torch

from minicl.errors import InputError, check, check_int, check_number
from minicl.evaluate import columns
from minicl.masks import STRATEGIES, get_strategy, layout
from minicl.tasks import get_task

RATES = (0.1, 0.25, 0.5, 1.0)  # η as a share of 1/λ_max, λ_max the largest eigenvalue of XᵀX


def unit_layout(mask, n, copies=None, own=True):
    """One token an example: the strategy's own mask between label tokens and the query, (T, T) with the query last.

    The query does not see itself, as in the paper's updates. With `own` false, neither does a token of a later copy.
    """
    plan = layout(mask, n, 1, copies=copies)
    tokens = (plan.tokens.is_label | plan.tokens.is_query).nonzero()[:, 0]
    sees = plan.mask[tokens][:, tokens].clone()
    copy = plan.tokens.copy[tokens]
    unseen = copy < 0 if own else (copy < 0) | (copy > 0)
    return sees & ~torch.diag(unseen)


def weights(mask, X, y, eta, layers, w0=None, own=True):
    """(layers + 1, B, d): w_ℓ as the query reads it, for prompts X (B, n, d), y (B, n) and step sizes eta (B,).

    Each of d unit queries is asked alone, so that a context that sees the query does not mix them.
    """
    B, n, d = X.shape
    strategy = get_strategy(mask)
    sees = unit_layout(strategy, n, own=own).to(X.dtype)
    w0 = X.new_zeros(B, d) if w0 is None else w0
    x = torch.cat([X.repeat(1, strategy.copies, 1).unsqueeze(1).expand(B, d, -1, d), _unit_queries(X)], dim=2)
    label = torch.cat([y.repeat(1, strategy.copies).unsqueeze(1).expand(B, d, -1), X.new_zeros(B, d, 1)], dim=2)
    start = x @ w0.view(B, 1, d, 1)  # (B, d, T, 1)
    similar = sees * (x @ x.mT)  # (B, d, T, T): row sees column
    found = [w0]
    for _ in range(layers):
        label = label + eta.view(B, 1, 1) * (similar @ (start[..., 0] - label).unsqueeze(-1))[..., 0]
        found.append(w0 - label[:, :, -1])
    return torch.stack(found)


def _unit_queries(X):
    B, _, d = X.shape
    return torch.eye(d, dtype=X.dtype).view(1, d, 1, d).expand(B, d, 1, d)


def linear_in_the_query(mask):
    """Whether the query's answer is w·x for one w: not so if the context sees the query."""
    return not get_strategy(mask).sees_query


def literal_invicl(X, y, eta, layers):
    """The proof's three updates, copy 0, copy 1 and query, as they stand there, from w₀ = 0."""
    gram = X @ X.mT
    itself = gram.diagonal(dim1=1, dim2=2)
    others = gram - torch.diag_embed(itself)
    first, second, w = y, y, torch.zeros_like(X[:, 0])
    step, found = eta.view(-1, 1), [torch.zeros_like(X[:, 0])]
    for _ in range(layers):
        first, second, w = (
            first - step * itself * first,
            second - step * (others @ first.unsqueeze(-1))[..., 0],
            w + step * (X.mT @ second.unsqueeze(-1))[..., 0],
        )
        found.append(w)
    return torch.stack(found)


def optimiser(name, X, y, eta, layers):
    """(layers + 1, B, d): the optimiser that the paper names, from w = 0, written in weights and not in tokens."""
    step, w = eta.view(-1, 1), torch.zeros_like(X[:, 0])

    def slope(w):
        return (X.mT @ ((X @ w.unsqueeze(-1))[..., 0] - y).unsqueeze(-1))[..., 0]

    found, seen = [w], X.new_zeros(*X.shape)  # seen: online descent's own weights at each example
    for _ in range(layers):
        if name == "gradient descent":
            w = w - step * slope(w)
        elif name == "constant gradient":
            w = w - step * slope(torch.zeros_like(w))
        elif name == "online gradient descent":
            each = (y - (X * seen).sum(-1)).unsqueeze(-1) * X  # every example's own step, at its own weights
            w = w + step * each.sum(1)
            seen = seen + step.unsqueeze(1) * each.cumsum(1)
        elif name == "gradient descent + η²Δ":
            gram = X @ X.mT
            others = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
            rest = (X @ w.unsqueeze(-1)) - y.unsqueeze(-1)
            w = w - step * slope(w) + step**2 * (X.mT @ others @ rest)[..., 0]
        else:
            raise InputError(f"optimiser: got {name!r}")
        found.append(w)
    return torch.stack(found)


STATED = {
    "prefix": "gradient descent",
    "ar": "online gradient descent",
    "nope": "online gradient descent",
    "boe": "constant gradient",
    "invicl": "gradient descent + η²Δ",
}


def problems(prompts, n, d, seed=0):
    """Linear-regression prompts in float64: X, y, the true w, and λ_max of XᵀX."""
    p = get_task("linear", n_dims=d).sample(prompts, n, seed)
    X, y = p.xs.double(), p.ys.double()
    w = torch.linalg.lstsq(X, y.unsqueeze(-1)).solution[..., 0]
    return X, y, w, torch.linalg.matrix_norm(X, ord=2).square()


def study(masks, prompts=200, n=10, d=5, layers=12, rates=RATES, seed=0):
    """A record for every mask (and the proof's literal InvICL) and step size: distances to w and to the optimiser."""
    X, y, w, largest = problems(prompts, n, d, seed)
    size = w.norm(dim=-1)

    def distance(found, other):
        return ((found - other).norm(dim=-1) / size).mean(1).tolist()

    records = []
    for rate in rates:
        eta = rate / largest
        ways = {mask: weights(mask, X, y, eta, layers) for mask in masks}
        if "invicl" in masks:
            ways["invicl (proof)"] = literal_invicl(X, y, eta, layers)
        for name, found in ways.items():
            stated = STATED.get(name.split()[0])
            claimed = stated and optimiser(stated, X, y, eta, layers)
            to_w = distance(found, w)
            records.append(
                {
                    "mask": name,
                    "rate": rate,
                    "layers": list(range(layers + 1)),
                    "distance": to_w,
                    "optimiser": stated,
                    "optimiser_distance": stated and distance(claimed, w),
                    "from_optimiser": stated and distance(found, claimed),
                    "from_gradient_descent": distance(found, optimiser("gradient descent", X, y, eta, layers)),
                    "verdict": verdict(to_w),
                    "linear": name not in STRATEGIES or linear_in_the_query(name),
                }
            )
    return records


def verdict(distances):
    """converges: still falling at the end; stalls: by less than 1 % a layer; diverges: up again from its best."""
    best, last, before = min(distances), distances[-1], distances[-2]
    if last > 1.05 * best or not math.isfinite(last):
        return "diverges"
    return "converges" if last < 0.99 * before else "stalls"


def first_difference(record, tolerance=1e-9):
    """The first layer at which the mask is not its optimiser, or None."""
    return next((i for i, gap in enumerate(record["from_optimiser"]) if gap > tolerance), None)


def resemblance(run, most=24, prompts=2048, step=None):
    """For a trained run: the distance of each layer's probed prediction to k steps of two optimisers, at full length.

    Gradient descent takes the step size (of a grid up to 2/λ_max) that is best for that layer and k.
    """
    from minicl import checkpoint
    from minicl.probe import fit_ridge, states, with_one

    config = checkpoint.read_config(run)
    task, n, layers = config.task, config.data.examples, list(range(config.model.n_layer + 1))
    check(task.name in ("linear", "noisy_linear"), "task", task.name, "linear, noisy_linear")
    sets = states(checkpoint.load(run, step), task, n, layers, prompts)
    p = task.sample(len(sets["test"][1]), n + 1, (13,))
    X, y, query = p.xs[:, :n].double(), p.ys[:, :n].double(), p.queries[:, n].double()
    largest = torch.linalg.matrix_norm(X, ord=2).square()
    descents = [optimiser("gradient descent", X, y, rate / largest, most) for rate in (0.1, 0.2, 0.4, 0.7, 1, 1.4, 1.9)]
    newton = _newton(X, y, largest, most)
    rows = []
    for layer in layers:
        data = {name: (found[0][layer], found[1].unsqueeze(1)) for name, found in sets.items()}
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
    found = [torch.zeros_like(X[:, 0])]
    for _ in range(most):
        found.append((M @ target)[..., 0])
        M = 2 * M - M @ S @ M
    return torch.stack(found)


def add_arguments(parser):
    parser.add_argument(
        "--mask", nargs="+", action="extend", metavar="M", help="strategies (all that know the paper's)"
    )
    parser.add_argument("--run", metavar="RUN", help="instead: which optimiser do a trained run's layers resemble?")
    parser.add_argument("--prompts", type=int, help="prompts (200; 2048 with --run)")
    parser.add_argument("--examples", type=int, default=10, help="examples a prompt (10)")
    parser.add_argument("--n-dims", type=int, default=5, help="dimensions of x (5)")
    parser.add_argument("--layers", type=int, default=12, help="layers (12)")
    parser.add_argument("--rates", type=float, nargs="+", help=f"step sizes times λ_max {RATES}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw them")


def run(args):
    from minicl import draw

    if args.plot is not None:
        draw.check_ending(args.plot)
    for name in ("examples", "n_dims", "layers"):
        check_int(name, getattr(args, name), least=2 if name == "layers" else 1)
    if args.prompts is not None:
        check_int("prompts", args.prompts, least=8)
    for rate in args.rates or ():
        check_number("rates", rate, above=True)
    if args.run is not None:
        records = resemblance(args.run, prompts=args.prompts or 2048)
        print(json.dumps(records) if args.json else _resemblance_table(records))
        picture = draw.resemblance
    else:
        masks = args.mask or list(STATED)
        settings = (args.prompts or 200, args.examples, args.n_dims, args.layers, args.rates or RATES, args.seed)
        records = study(masks, *settings)
        print(json.dumps(records) if args.json else table(records))
        picture = draw.theory
    if args.plot is not None:
        draw.save(picture(records), args.plot)
    return 0


def table(records):
    rates = list(dict.fromkeys(r["rate"] for r in records))
    rows = [["distance to w after the last layer", *(f"η = {rate:g}/λ_max" for rate in rates)]]
    names = list(dict.fromkeys(r["mask"] for r in records))
    for name in names:
        mine = [r for r in records if r["mask"] == name]
        rows.append([name, *(f"{r['distance'][-1]:.3g} {r['verdict']}" for r in mine)])
    lines = [*columns(rows), ""]
    for name in names:
        r = next(r for r in records if r["mask"] == name)
        if r["optimiser"]:
            layer = first_difference(r)
            same = "at every layer" if layer is None else f"up to layer {layer - 1}, not from layer {layer} on"
            gap = (
                ""
                if layer is None
                else f" (there by {r['from_optimiser'][layer]:.2g} of |w| at η = {r['rate']:g}/λ_max)"
            )
            lines.append(f"{name} is {r['optimiser']} {same}{gap}")
        if not r["linear"]:
            lines.append(f"{name}: the context sees the query, so its answers are those of no single w")
    if "invicl (proof)" in names:
        lines += ["", *WHY]
    return "\n".join(lines)


WHY = (
    "Why InvICL is not its stated recursion: in a layer all tokens change at once, so the query reads copy 1 as it was",
    "before; the recursion lets it read copy 1 after its step. And copy 0 sees only itself: its residuals fall by",
    "(1 − η|x|²) a layer, whatever the query has learnt, while the recursion takes them at the query's own w.",
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
