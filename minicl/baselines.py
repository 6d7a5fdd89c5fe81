"""Classical methods with one signature, `predict(xs, ys, queries)`, that the models' curves are read against.

Shapes as everywhere: xs (B, n, d), ys (B, n), queries (B, m, d), answers (B, m); n may be 0. `curve(xs, ys)` predicts
each point from the points before it. Work is done in float64, answers come in the dtype of the prompt.
"""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minicl.checks import InputError, check, check_int, check_number, check_prompt
from minicl.lasso import solve as solve_lasso
from minicl.registry import Registry
from minicl.shifts import Shift, get_shift
from minicl.tasks import Linear, Quadratic, Smooth, SparseLinear, Task


@dataclass(frozen=True)
class Baseline:
    """Predicts y at the queries from examples. Subclasses write `_predict`, on float64 tensors with n ≥ 1."""

    name: ClassVar[str]

    def predict(self, xs: Tensor, ys: Tensor, queries: Tensor) -> Tensor:
        """(B, m): the answer at each query, from all examples."""
        check_prompt(xs, ys, queries)
        if xs.shape[1] == 0:
            return queries.new_zeros(queries.shape[:2])  # the mean of every function class is 0
        return self._predict(xs.double(), ys.double(), queries.double()).to(xs.dtype)

    def curve(self, xs: Tensor, ys: Tensor, queries: Tensor | None = None) -> Tensor:
        """(B, n): the answer at the i-th query (point i itself, unless others are given) from the points before i."""
        queries = xs if queries is None else queries
        check_prompt(xs, ys, queries)
        check(queries.shape == xs.shape, "queries", f"shape {tuple(queries.shape)}", f"shape {tuple(xs.shape)}, as xs")
        return self._curve(xs.double(), ys.double(), queries.double()).to(xs.dtype)

    def _curve(self, xs, ys, queries):
        n = xs.shape[1]
        steps = [self.predict(xs[:, :i], ys[:, :i], queries[:, i : i + 1]) for i in range(n)]
        return torch.cat(steps, dim=1) if n else queries.new_zeros(queries.shape[:2])


BASELINES = Registry("baseline")


def get_baseline(name: str, **settings) -> Baseline:
    """A baseline by name: `get_baseline("lasso", alpha=0.01)`, `get_baseline("optimal", task=task, shift="noise")`."""
    return BASELINES.make(name, settings)


@BASELINES("zero")
class Zero(Baseline):
    """Always answers 0: error 1 on every normalised curve."""

    def _predict(self, xs, ys, queries):
        return queries.new_zeros(queries.shape[:2])


@BASELINES("averaging")
class Averaging(Baseline):
    """w = the mean of y·x: what least squares becomes when the inputs' covariance is taken to be the identity."""

    def _predict(self, xs, ys, queries):
        return _dot((xs * ys.unsqueeze(-1)).mean(1, keepdim=True), queries)


@BASELINES("knn")
class KNN(Baseline):
    """The mean label of the k nearest examples (of all, while there are fewer)."""

    k: int = 3

    def __post_init__(self):
        check_int("k", self.k, least=1)

    def _predict(self, xs, ys, queries):
        near = torch.cdist(queries, xs).topk(min(self.k, xs.shape[1]), largest=False).indices  # (B, m, k)
        return ys.unsqueeze(1).expand(-1, queries.shape[1], -1).gather(2, near).mean(-1)


class Weights(Baseline):
    """A method that is a weight vector: subclasses say which, from n examples or after each of them."""

    def weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        """(B, d)"""
        raise TypeError(f"{type(self).__name__} does not say which weights")

    def _predict(self, xs, ys, queries):
        return _dot(self.weights(xs, ys).unsqueeze(1), queries)

    def all_weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        """(B, n, d): row i from the first i examples, i < n."""
        rows = [self.weights(xs[:, :i], ys[:, :i]) for i in range(1, xs.shape[1])]
        return torch.stack([torch.zeros_like(xs[:, 0]), *rows], dim=1)

    def _curve(self, xs, ys, queries):
        return _dot(self.all_weights(xs, ys), queries) if xs.shape[1] else queries.new_zeros(queries.shape[:2])


def _dot(w, x):
    return (w * x).sum(-1)


@BASELINES("ridge")
class Ridge(Weights):
    """The w that minimises ‖Xw − y‖² + alpha·‖w‖²; alpha = 0 is least squares of minimum norm."""

    alpha: float = 1.0

    def __post_init__(self):
        check_number("alpha", self.alpha)

    def weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        if self.alpha == 0:
            return (torch.linalg.pinv(xs, rtol=INDEPENDENT) @ ys.unsqueeze(-1))[..., 0]
        gram = xs.mT @ xs + self.alpha * torch.eye(xs.shape[-1], dtype=xs.dtype, device=xs.device)
        return torch.linalg.solve(gram, (xs.mT @ ys.unsqueeze(-1))[..., 0])

    def all_weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        """Example by example, for all prompts at once: recursive least squares, begun as Greville's pseudo-inverse.

        `cover` is the (pseudo-)inverse of XᵀX + alpha·I, `outside` the projector onto what no example has reached yet.
        """
        B, n, d = xs.shape
        eye = torch.eye(d, dtype=xs.dtype, device=xs.device).expand(B, d, d)
        outside = eye.clone() if self.alpha == 0 else None
        cover = torch.zeros_like(eye) if self.alpha == 0 else eye / self.alpha
        w = xs.new_zeros(B, d)
        rows, doubtful = [w], xs.new_zeros(B, 1, dtype=torch.bool)
        for i in range(n - 1):
            x = xs[:, i]
            along = (cover @ x.unsqueeze(-1))[..., 0]
            gain = along / (1 + _dot(x, along)).unsqueeze(-1)
            down = gain.unsqueeze(2) * along.unsqueeze(1)
            if outside is not None:
                rest = (outside @ x.unsqueeze(-1))[..., 0]
                size = rest.square().sum(-1, keepdim=True)
                share = size / x.square().sum(-1, keepdim=True).clamp_min(1e-300)
                new = share > INDEPENDENT**2  # x leaves the span of those before it
                doubtful = doubtful | ((share > 1e-20) & (share < 1e-6))
                unit = rest / size.where(new, torch.ones_like(size))
                cross = unit.unsqueeze(2) * along.unsqueeze(1)
                squares = unit.unsqueeze(2) * unit.unsqueeze(1)
                grown = cross + cross.mT - (1 + _dot(x, along)).view(B, 1, 1) * squares
                gain = unit.where(new, gain)
                down = grown.where(new.unsqueeze(-1), down)
                outside = outside - (squares * size.unsqueeze(-1)).where(new.unsqueeze(-1), torch.zeros_like(squares))
            w = w + gain * (ys[:, i] - _dot(x, w)).unsqueeze(-1)
            cover = cover - down
            rows.append(w)
        found = torch.stack(rows, dim=1)
        if doubtful.any():  # almost inside the span: where rounding decides, a fresh pseudo-inverse does it better
            some = doubtful[:, 0]
            found[some] = super().all_weights(xs[some], ys[some])
        return found


# Below this share of its length, what an input adds to the span of the others is rounding of float32 data.
INDEPENDENT = 1e-6


@BASELINES("least_squares")
class LeastSquares(Ridge):
    """Least squares, of minimum norm while there are fewer examples than dimensions."""

    alpha: ClassVar[float] = 0.0


@BASELINES("ridge_cv")
class RidgeCV(Baseline):
    """Ridge regression of standardised columns with an intercept, its alpha of 0.1, 1, 10 by leave-one-out errors."""

    def _predict(self, xs, ys, queries):
        centre, middle = xs.mean(1, keepdim=True), ys.mean(1, keepdim=True)
        size = xs.std(1, keepdim=True, correction=0)
        size = size.where(size > INDEPENDENT * centre.abs(), torch.inf)  # a constant column says nothing
        U, S, Vh = torch.linalg.svd((xs - centre) / size, full_matrices=False)
        along = (U.mT @ (ys - middle).unsqueeze(-1))[..., 0]
        shrunk = [S.square() / (S.square() + alpha) for alpha in ALPHAS]  # (B, rank) each
        left_out = [
            (ys - middle - (U @ (share * along).unsqueeze(-1))[..., 0])
            / (1 - 1 / xs.shape[1] - _dot(U.square(), share.unsqueeze(1))).clamp_min(1e-9)
            for share in shrunk
        ]
        best = torch.stack([e.square().mean(1) for e in left_out]).argmin(0)  # (B,)
        share = torch.stack(shrunk, dim=1)[torch.arange(len(best), device=best.device), best]
        w = (Vh.mT @ (share * along / S.where(S > 0, torch.inf)).unsqueeze(-1))[..., 0]
        return middle + _dot(w.unsqueeze(1), (queries - centre) / size)


ALPHAS = (0.1, 1.0, 10.0)  # scikit-learn's own for RidgeCV


@BASELINES("lasso")
class Lasso(Weights):
    """The w that minimises ‖Xw − y‖²/(2n) + alpha·‖w‖₁, as scikit-learn has it, without intercept."""

    alpha: float = 0.01

    def __post_init__(self):
        check_number("alpha", self.alpha, above=True)

    def weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        n = xs.shape[1]
        return solve_lasso(xs.mT @ xs / n, (xs.mT @ ys.unsqueeze(-1))[..., 0] / n, self.alpha)

    def all_weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        xs, ys = xs[:, :-1], ys[:, :-1]
        B, n, d = xs.shape
        count = torch.arange(1, n + 1, dtype=xs.dtype, device=xs.device).view(1, n, 1)
        gram = (xs.unsqueeze(-1) * xs.unsqueeze(-2)).cumsum(1) / count.unsqueeze(-1)
        target = (xs * ys.unsqueeze(-1)).cumsum(1) / count
        w = solve_lasso(gram.flatten(0, 1), target.flatten(0, 1), self.alpha).view(B, n, d)
        return torch.cat([xs.new_zeros(B, 1, d), w], dim=1)


@BASELINES("gradient_descent")
class GradientDescent(Weights):
    """Gradient descent on ‖Xw − y‖²/2 from w = 0: `steps` steps of `rate` over the largest eigenvalue of XᵀX."""

    steps: int = 12
    rate: float = 1.0

    def __post_init__(self):
        check_int("steps", self.steps, least=0)
        check_number("rate", self.rate, above=True)

    def weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        step = self.rate / torch.linalg.matrix_norm(xs, ord=2).square().clamp_min(1e-300).view(-1, 1)
        w = torch.zeros_like(xs[:, 0])
        for _ in range(self.steps):
            w = w + step * (xs.mT @ (ys - (xs @ w.unsqueeze(-1))[..., 0]).unsqueeze(-1))[..., 0]
        return w


@dataclass(frozen=True)
class SparsePosterior(Weights):
    """The posterior mean of w when every set of `sparsity` coordinates is equally likely and their values ~ N(0, 1).

    Supports are weighed by their evidence, exactly: y ~ N(0, X_S X_Sᵀ + noise² I) given the support S. The last
    `always` columns belong to every support (an intercept).
    """

    sparsity: int
    noise: float = 0.0
    always: int = 0
    name: ClassVar[str] = "optimal"

    def weights(self, xs: Tensor, ys: Tensor) -> Tensor:
        gram, target = xs.mT @ xs, (xs.mT @ ys.unsqueeze(-1))[..., 0]
        energy, d = ys.square().sum(1, keepdim=True), xs.shape[-1]
        free = d - self.always
        sets = [[*s, *range(free, d)] for s in itertools.combinations(range(free), self.sparsity)]
        sets = torch.tensor(sets, device=gram.device)  # (K, s)
        # Noise-free prompts get the noise that their float32 labels have, so that the evidence stays finite.
        variance = self.noise**2 + 1e-10 * max(1.0, float(ys.square().mean()) / self.sparsity)
        columns = list(sets.T)
        A = [[gram[:, p, q] + variance * (i == j) for j, q in enumerate(columns)] for i, p in enumerate(columns)]
        b = [target[:, p] for p in columns]
        mean, log_det, fit = _solve_small(A, b)
        evidence = -0.5 * (log_det + (energy - fit) / variance)  # (B, K), up to what all supports share
        weight = torch.softmax(evidence, dim=1)
        shares = torch.stack([weight * m for m in mean], dim=-1).flatten(1)  # (B, K·s)
        return gram.new_zeros(len(gram), d).scatter_add(1, sets.flatten().expand(len(gram), -1), shares)


def _solve_small(A, b):
    """Solve many tiny positive systems entry by entry (Cholesky): the solution, log det A, and bᵀA⁻¹b."""
    s = len(b)
    L = [[None] * s for _ in range(s)]
    for i in range(s):
        for j in range(i + 1):
            rest = A[i][j] - sum(L[i][k] * L[j][k] for k in range(j))
            L[i][j] = rest.sqrt() if i == j else rest / L[j][j]
    half = []
    for i in range(s):
        half.append((b[i] - sum(L[i][k] * half[k] for k in range(i))) / L[i][i])
    x = [None] * s
    for i in reversed(range(s)):
        x[i] = (half[i] - sum(L[k][i] * x[k] for k in range(i + 1, s))) / L[i][i]
    return x, 2 * sum(L[i][i].log() for i in range(s)), sum(h.square() for h in half)


@dataclass(frozen=True)
class GaussianProcess(Baseline):
    """The posterior mean of a function with covariance gain²·exp(−‖x − z‖² / 2·length²) + offset², seen with noise."""

    length: float
    noise: float = 0.0
    gain: float = 1.0
    offset: float = 0.0
    name: ClassVar[str] = "optimal"

    def kernel(self, xs: Tensor, others: Tensor) -> Tensor:
        square = (xs.unsqueeze(2) - others.unsqueeze(1)).square().sum(-1)
        return self.gain**2 * (-square / (2 * self.length**2)).exp() + self.offset**2

    def _predict(self, xs, ys, queries):
        # Noise-free prompts get the noise that their float32 labels have, so that close inputs stay solvable.
        variance = self.noise**2 + 1e-10 * (self.gain**2 + self.offset**2)
        seen = self.kernel(xs, xs) + variance * torch.eye(xs.shape[1], dtype=xs.dtype, device=xs.device)
        return (self.kernel(queries, xs) @ torch.linalg.solve(seen, ys.unsqueeze(-1)))[..., 0]


@BASELINES("optimal")
class Optimal(Baseline):
    """The mean of the posterior, which no method can beat on average: for the classes where it has a closed form.

    Under these tasks and shifts y = gain·w·φ(x) + offset·b + noise with w and b standard normal (w on an unknown
    support if sparse), so features that carry the gain and the offset make it ridge regression. Smooth functions are
    a Gaussian process.
    """

    task: Task
    shift: str | Shift = "none"

    def __post_init__(self):
        check(isinstance(self.task, Task), "task", repr(self.task), "a task, as get_task makes it")
        # A class of one's own may extend one of these and draw other functions.
        known = type(self.task).function in [task.function for task in (Linear, SparseLinear, Quadratic, Smooth)]
        known = known and type(get_shift(self.shift)).function is Shift.function
        tasks = "linear, noisy_linear, sparse_linear, quadratic, smooth"
        allowed = f"{tasks}, under shifts that only scale and move the function"
        check(known, "optimal", f"task {self.task.name} under shift {get_shift(self.shift).name}", allowed)
        if isinstance(self.task, SparseLinear):
            supports = math.comb(self.task.n_dims, self.task.sparsity)
            check(
                supports <= 20_000,
                "optimal",
                f"{supports} supports",
                "at most 20000 (fewer dimensions or less of them)",
            )

    @property
    def offset(self) -> float:
        shift = get_shift(self.shift)
        return math.hypot(shift.offset, shift.gain * getattr(self.task, "bias", 0))

    @property
    def base(self) -> Baseline:
        noise = math.hypot(self.task.noise, get_shift(self.shift).label_noise)
        if isinstance(self.task, SparseLinear):
            return SparsePosterior(self.task.sparsity, noise, always=int(self.offset > 0))
        if isinstance(self.task, Smooth):
            return GaussianProcess(self.task.length, noise, get_shift(self.shift).gain, self.offset)
        return Ridge(noise**2)

    def features(self, xs: Tensor) -> Tensor:
        if isinstance(self.task, Smooth):  # its kernel carries the gain and the offset
            return xs
        phi = xs.square() / math.sqrt(3) if isinstance(self.task, Quadratic) else xs
        phi = get_shift(self.shift).gain * phi
        return torch.cat([phi, torch.full_like(xs[..., :1], self.offset)], dim=-1) if self.offset else phi

    def _predict(self, xs, ys, queries):
        return self.base._predict(self.features(xs), ys, self.features(queries))

    def _curve(self, xs, ys, queries):
        return self.base._curve(self.features(xs), ys, self.features(queries))


class Trees(Baseline):
    """A tree model of scikit-learn, fitted prompt by prompt."""

    def _predict(self, xs, ys, queries):
        try:
            import sklearn.ensemble
            import sklearn.tree
        except ImportError as error:
            raise InputError(f"baseline {self.name}: needs scikit-learn: pip install 'minicl[trees]'") from error
        answers = torch.empty(queries.shape[:2], dtype=torch.double)
        for answer, x, y, q in zip(answers, *(t.cpu().numpy() for t in (xs, ys, queries)), strict=True):
            if len(q):
                answer[:] = torch.from_numpy(self.model(sklearn).fit(x, y).predict(q))
        return answers.to(xs.device)


@BASELINES("greedy_tree")
class GreedyTree(Trees):
    """One regression tree, grown greedily (to `depth`, or until its leaves are pure)."""

    depth: int | None = None

    def __post_init__(self):
        if self.depth is not None:
            check_int("depth", self.depth, least=1)

    def model(self, sklearn):
        return sklearn.tree.DecisionTreeRegressor(max_depth=self.depth, random_state=0)


@BASELINES("boosted_trees")
class BoostedTrees(Trees):
    """Gradient-boosted regression trees."""

    trees: int = 50
    depth: int = 4
    rate: float = 0.1

    def __post_init__(self):
        check_int("trees", self.trees, least=1)
        check_int("depth", self.depth, least=1)
        check_number("rate", self.rate, above=True)

    def model(self, sklearn):
        return sklearn.ensemble.GradientBoostingRegressor(
            n_estimators=self.trees, max_depth=self.depth, learning_rate=self.rate, random_state=0
        )
