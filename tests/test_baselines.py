"""Baselines against numpy, scikit-learn and brute force."""

import subprocess
import sys
import warnings

import numpy
import pytest
import torch

from minicl.baselines import BASELINES, GaussianProcess, get_baseline
from minicl.lasso import _path, coordinate_descent, solve
from minicl.shifts import Shift, get_shift
from minicl.tasks import get_task

LINEAR = get_task("linear", n_dims=8)
ALL = [get_baseline("optimal", task=LINEAR) if name == "optimal" else get_baseline(name) for name in BASELINES] + [
    get_baseline("optimal", task=get_task("sparse_linear", n_dims=8, sparsity=2), shift="noise"),
    get_baseline("optimal", task=get_task("noisy_linear", n_dims=8), shift="scale_y"),
    get_baseline("optimal", task=get_task("quadratic", n_dims=8)),
    get_baseline("optimal", task=get_task("smooth", n_dims=8)),
]


def doubles(prompt):
    return tuple(t.double() for t in prompt)


@pytest.mark.parametrize("baseline", ALL, ids=lambda b: b.name)
@pytest.mark.parametrize("shift", ["none", "label_noise", "repeated_query"])
def test_curve_equals_predicting_length_by_length(baseline, shift):
    if baseline.name == "boosted_trees":
        baseline = get_baseline("boosted_trees", trees=3)
    xs, ys, queries, _ = doubles(LINEAR.sample(5, 20, seed=1, shift=shift))
    steps = [baseline.predict(xs[:, :i], ys[:, :i], queries[:, i : i + 1])[:, 0] for i in range(20)]
    torch.testing.assert_close(baseline.curve(xs, ys, queries), torch.stack(steps, 1), rtol=1e-6, atol=1e-6)
    if shift == "none":
        torch.testing.assert_close(baseline.curve(xs, ys), baseline.curve(xs, ys, xs))


@pytest.mark.parametrize("baseline", ALL, ids=lambda b: b.name)
@pytest.mark.parametrize("n, m", [(0, 3), (1, 1), (2, 0), (30, 4)])
def test_shapes_and_dtypes(baseline, n, m):
    xs, ys, queries, _ = LINEAR.sample(3, 34, seed=0)
    answer = baseline.predict(xs[:, :n], ys[:, :n], queries[:, 34 - m :])
    assert answer.shape == (3, m) and answer.dtype == torch.float32 and answer.isfinite().all()
    if n == 0:
        assert (answer == 0).all()
    assert baseline.curve(xs[:, :n], ys[:, :n]).shape == (3, n)


@pytest.mark.parametrize("n", [1, 3, 7, 8, 9, 40])
def test_least_squares_equals_numpy(n):
    xs, ys, queries, _ = doubles(LINEAR.sample(20, n + 3, seed=n, shift="label_noise"))
    solutions = [numpy.linalg.lstsq(x[:n].numpy(), y[:n].numpy(), rcond=None)[0] for x, y in zip(xs, ys, strict=True)]
    expected = [q.numpy() @ w for q, w in zip(queries, solutions, strict=True)]
    answer = get_baseline("least_squares").predict(xs[:, :n], ys[:, :n], queries)
    numpy.testing.assert_allclose(answer, numpy.stack(expected), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["noisy_linear", "relu_2nn"])
def test_least_squares_on_a_subspace_with_labels_that_do_not_fit(name):
    """Here rounding decides what is inside the span, and what it decides must not matter."""
    p = get_task(name, n_dims=20).sample(200, 41, seed=0, shift="half_subspace")
    baseline = get_baseline("least_squares")
    curve = baseline.curve(p.xs, p.ys, p.queries)
    for n in (9, 10, 11, 20, 40):
        at_once = baseline.predict(p.xs[:, :n], p.ys[:, :n], p.queries[:, n : n + 1])[:, 0]
        torch.testing.assert_close(curve[:, n], at_once, rtol=1e-3, atol=1e-3)


def test_least_squares_on_a_subspace_and_on_repeated_examples():
    """Inputs that add nothing new are where a recursive pseudo-inverse goes wrong first."""
    task = get_task("linear", n_dims=10)
    p = task.sample(50, 30, seed=0, shift="half_subspace")
    error = (get_baseline("least_squares").curve(p.xs, p.ys, p.queries) - p.targets).abs()
    assert error[:, 6:].max() < 1e-2 and error[:, :4].mean() > 0.5
    xs, ys = p.xs[:, :3].repeat(1, 6, 1), p.ys[:, :3].repeat(1, 6)
    again = get_baseline("least_squares").curve(xs, ys)
    torch.testing.assert_close(again[:, 3:], ys[:, 3:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [1, 8, 40])
@pytest.mark.parametrize("alpha", [0.01, 1, 30])
def test_ridge_equals_scikit_learn(n, alpha):
    linear_model = pytest.importorskip("sklearn.linear_model")
    xs, ys, queries, _ = doubles(LINEAR.sample(6, n + 2, seed=n))
    answer = get_baseline("ridge", alpha=alpha).predict(xs[:, :n], ys[:, :n], queries)
    for x, y, q, a in zip(xs, ys, queries, answer, strict=True):
        model = linear_model.Ridge(alpha=alpha, fit_intercept=False).fit(x[:n], y[:n])
        numpy.testing.assert_allclose(a, model.predict(q), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [1, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("task", ["linear", "sparse_linear", "noisy_linear"])
def test_lasso_reaches_scikit_learn_s_objective(alpha, task):
    linear_model = pytest.importorskip("sklearn.linear_model")
    xs, ys, _, _ = doubles(get_task(task).sample(3, 101, seed=2))
    all_weights = get_baseline("lasso", alpha=alpha).all_weights(xs, ys)
    for n in (1, 2, 3, 5, 10, 19, 20, 21, 22, 30, 40, 70, 100):
        for x, y, w in zip(xs[:, :n], ys[:, :n], all_weights[:, n], strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns where it stops early; ours must then be lower
                theirs = linear_model.Lasso(alpha=alpha, fit_intercept=False, max_iter=20_000).fit(x, y).coef_

            def objective(w, x=x, y=y, n=n):
                return float((y - x @ w).square().sum() / (2 * n) + alpha * w.abs().sum())

            assert objective(w) <= objective(torch.tensor(theirs)) * (1 + 1e-4) + 1e-12


@pytest.mark.parametrize("shift", ["none", "noise", "label_noise", "scale_y"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_optimum_of_smooth_functions_is_a_gaussian_process(noise, shift):
    """Written out by conditioning the joint normal distribution, one prompt and one query at a time."""
    task, n, changed = get_task("smooth", n_dims=2, length=0.7, noise=noise), 6, get_shift(shift)
    xs, ys, queries, _ = doubles(task.sample(4, n + 2, seed=5, shift=shift))
    answer = get_baseline("optimal", task=task, shift=shift).predict(xs[:, :n], ys[:, :n], queries[:, n:])
    for b in range(4):
        for j in range(2):
            points = numpy.concatenate([xs[b, :n], queries[b, n + j : n + j + 1]])
            apart = numpy.linalg.norm(points[:, None] - points[None], axis=-1)
            joint = changed.gain**2 * numpy.exp(-0.5 * (apart / 0.7) ** 2) + changed.offset**2
            joint[:n, :n] += (noise**2 + changed.label_noise**2) * numpy.eye(n)
            precision = numpy.linalg.inv(joint)  # the mean of the last, given the others, is read off its last row
            expected = -(precision[n, :n] @ ys[b, :n].numpy()) / precision[n, n]
            numpy.testing.assert_allclose(answer[b, j], expected, rtol=1e-5, atol=1e-5)


def test_nothing_that_was_tried_beats_the_optimum_on_smooth_functions():
    task = get_task("smooth", n_dims=1)
    p = task.sample(500, 11, seed=1)
    errors = {}
    rivals = {"knn": get_baseline("knn"), "sharper": GaussianProcess(0.5, 0.2), "trusting": GaussianProcess(1.0, 0.02)}
    for name, baseline in {"optimal": get_baseline("optimal", task=task), **rivals}.items():
        answer = baseline.predict(p.xs[:, :10], p.ys[:, :10], p.queries[:, 10:])
        errors[name] = float((answer - p.targets[:, 10:]).square().mean())
    assert errors["optimal"] == min(errors.values()) and errors["optimal"] < 0.1, errors
    exact = get_baseline("optimal", task=get_task("smooth", n_dims=1, noise=0.0))
    p = exact.task.sample(20, 41, seed=1)  # 40 inputs on a line are close to one another: it must stay solvable
    assert (exact.predict(p.xs[:, :40], p.ys[:, :40], p.xs[:, :40]) - p.ys[:, :40]).abs().max() < 0.01


def test_lasso_path_equals_plain_coordinate_descent():
    xs, ys, _, _ = doubles(get_task("sparse_linear", n_dims=6, sparsity=2).sample(30, 12, seed=0, shift="label_noise"))
    G, b = xs.mT @ xs / 12, (xs.mT @ ys.unsqueeze(-1))[..., 0] / 12
    for alpha in (3.0, 0.3, 0.01):
        torch.testing.assert_close(_path(G, b, alpha), coordinate_descent(G, b, alpha), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shift", ["none", "label_noise"])
def test_lasso_path_is_exact_by_itself(shift):
    """Coordinates that leave and come back are where a path goes astray; the fallback must not be needed for it."""
    xs, ys, _, _ = doubles(get_task("linear", n_dims=8).sample(400, 9, seed=1, shift=shift))
    G, b = xs.mT @ xs / 9, (xs.mT @ ys.unsqueeze(-1))[..., 0] / 9
    for alpha in (0.1, 0.001):
        w = _path(G, b, alpha)
        slope = b - (G @ w.unsqueeze(-1))[..., 0]
        assert slope.abs().max() < alpha + 1e-9
        torch.testing.assert_close(slope[w != 0], alpha * w[w != 0].sign(), rtol=0, atol=1e-9)


def test_lasso_with_equal_opposite_and_empty_columns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (40, 9, 3), generator=generator).double()
    x = torch.cat([x, x[..., :1], -x[..., 1:2], torch.zeros(40, 9, 1).double()], dim=-1)
    y = torch.randint(-2, 3, (40, 9), generator=generator).double()
    G, b = x.mT @ x / 9, (x.mT @ y.unsqueeze(-1))[..., 0] / 9
    w = solve(G, b, 0.05)
    slope = b - (G @ w.unsqueeze(-1))[..., 0]
    assert (slope.abs() <= 0.05 + 1e-7).all()
    torch.testing.assert_close(slope[w != 0], 0.05 * w[w != 0].sign(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3, 25])
def test_knn_equals_scikit_learn(n):
    neighbors = pytest.importorskip("sklearn.neighbors")
    xs, ys, queries, _ = doubles(LINEAR.sample(6, n + 5, seed=n))
    answer = get_baseline("knn").predict(xs[:, :n], ys[:, :n], queries[:, n:])
    for x, y, q, a in zip(xs[:, :n], ys[:, :n], queries[:, n:], answer, strict=True):
        expected = neighbors.KNeighborsRegressor(min(3, n)).fit(x, y).predict(q)
        numpy.testing.assert_allclose(a, expected, rtol=1e-10)


def test_averaging_and_gradient_descent_step_by_step():
    xs, ys, queries, _ = doubles(LINEAR.sample(4, 12, seed=0))
    for b in range(4):
        X, y = xs[b].numpy(), ys[b].numpy()
        expected = queries[b].numpy() @ (X.T @ y / 12)
        numpy.testing.assert_allclose(get_baseline("averaging").predict(xs, ys, queries)[b], expected)
        w = numpy.zeros(8)
        for _ in range(5):
            w -= 0.7 / numpy.linalg.eigvalsh(X.T @ X).max() * X.T @ (X @ w - y)
        found = get_baseline("gradient_descent", steps=5, rate=0.7).predict(xs, ys, queries)[b]
        numpy.testing.assert_allclose(found, queries[b].numpy() @ w, rtol=1e-9)
    many = get_baseline("gradient_descent", steps=4000).predict(xs, ys, queries)
    torch.testing.assert_close(many, get_baseline("least_squares").predict(xs, ys, queries), rtol=1e-4, atol=1e-4)


def curve_error(baseline, task, shift="none", B=3000, n=30, seed=0):
    p = task.sample(B, n, seed=seed, shift=shift)
    return (baseline.curve(p.xs, p.ys, p.queries) - p.targets).square().mean(0) / get_shift(shift).normaliser(task)


@pytest.mark.parametrize("B, n", [(2500, 6), (100, 30)])
def test_sparse_optimum_beats_the_others_and_becomes_exact(B, n):
    task = get_task("sparse_linear", n_dims=20, sparsity=3)
    p = task.sample(B, n, seed=1)
    best = (get_baseline("optimal", task=task).curve(p.xs, p.ys) - p.targets).square()
    for name in ("zero", "least_squares", "lasso"):
        theirs = (get_baseline(name).curve(p.xs, p.ys) - p.targets).square()
        # With one or two examples supports are hardly told apart, and 100 prompts do not show the difference.
        seen = slice(0 if B > 1000 else 3, None)
        assert (best.mean(0) <= theirs.mean(0) + 1e-6)[seen].all(), name
    assert (best[:, 5:] < 1e-6).float().mean() > 0.999, "exact once n exceeds the sparsity"


def test_sparse_optimum_equals_the_posterior_by_brute_force():
    """Importance sampling from the prior: slow, and knows nothing of evidence formulas."""
    task = get_task("sparse_linear", n_dims=4, sparsity=2)
    x = torch.tensor([[[1.0, 0.5, -0.3, 0.8], [0.2, -1.0, 0.4, 0.1]]]).double()
    y, query, noise = torch.tensor([[0.7, -0.4]]).double(), torch.eye(4).double()[None], 0.5
    shift = get_shift("label_noise", label_noise=noise)
    answer = get_baseline("optimal", task=task, shift=shift).predict(x, y, query)[0]
    generator = torch.Generator().manual_seed(0)
    N = 2_000_000
    support = torch.rand(N, 4, generator=generator).argsort(1) < 2
    w = torch.randn(N, 4, generator=generator).double() * support
    weight = torch.softmax(-(y - w @ x[0].T).square().sum(1) / (2 * noise**2), 0)
    torch.testing.assert_close(answer, weight @ w, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    "name, settings, shift, rivals",
    [
        ("linear", {}, "none", ("ridge", "lasso", "averaging")),
        ("linear", {}, "noise", ("least_squares", "ridge")),
        ("linear", {"bias": True}, "scale_y", ("least_squares", "ridge")),
        ("noisy_linear", {}, "none", ("least_squares", "lasso")),
        ("noisy_linear", {"noise": 1.5}, "label_noise", ("least_squares", "ridge")),
        ("quadratic", {}, "none", ("least_squares", "ridge", "knn")),
        ("sparse_linear", {"sparsity": 2}, "noise", ("least_squares", "lasso")),
    ],
)
def test_no_other_method_beats_the_optimum(name, settings, shift, rivals):
    task = get_task(name, n_dims=6, **settings)
    best = curve_error(get_baseline("optimal", task=task, shift=shift), task, shift)
    for rival in rivals:
        theirs = curve_error(get_baseline(rival), task, shift)
        assert (best <= theirs * 1.02 + 1e-6).all(), rival
        assert best.sum() < 0.97 * theirs.sum(), rival


def test_noise_free_optimum_knows_the_intercept_after_d_plus_one_examples():
    error = curve_error(get_baseline("optimal", task=LINEAR, shift="noise"), LINEAR, "noise", B=200, n=14)
    assert error[9:].max() < 1e-3 < error[7]


def test_trees_learn_trees():
    pytest.importorskip("sklearn")
    task = get_task("decision_tree", n_dims=4, depth=2)
    p = task.sample(30, 101, seed=0)
    zero = p.targets[:, 100].square().mean()
    for name in ("greedy_tree", "boosted_trees"):
        answer = get_baseline(name).predict(p.xs[:, :100], p.ys[:, :100], p.queries[:, 100:])
        assert (answer[:, 0] - p.targets[:, 100]).square().mean() < 0.3 * zero


def test_without_scikit_learn_one_line_says_what_to_install():
    code = """
import sys; sys.modules["sklearn"] = None
import torch; from minicl.baselines import get_baseline
x = torch.randn(2, 3, 4); y = torch.randn(2, 3)
print(get_baseline("least_squares").predict(x, y, x).shape)
try: get_baseline("greedy_tree").predict(x, y, x)
except ValueError as error: print(error)
"""
    lines = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert lines[0] == "torch.Size([2, 3])"
    assert lines[1:] == ["baseline greedy_tree: needs scikit-learn: pip install 'minicl[trees]'"]


def test_the_optimum_is_only_for_functions_that_it_knows(tmp_path):
    """A class of one's own that extends a built-in one may draw other functions."""
    source = "from minicl.tasks import Linear\nclass louder(Linear):\n    noise: float = 1.0\nclass folded(Linear):\n"
    source += "    def function(self, random):\n        f = super().function(random)\n"
    (tmp_path / "my.py").write_text(source + "        return lambda xs: f(xs).abs()\n")
    louder, noisy = get_task(f"{tmp_path}/my.py:louder", n_dims=4), get_task("noisy_linear", n_dims=4)
    p = louder.sample(20, 10)
    mine, theirs = (get_baseline("optimal", task=task).curve(p.xs, p.ys) for task in (louder, noisy))
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match=r"optimal: got task .*folded under shift none, allowed: linear"):
        get_baseline("optimal", task=get_task(f"{tmp_path}/my.py:folded", n_dims=4))


class Strange(Shift):
    def function(self, f, random):
        return lambda xs: f(xs).square()


x, y = torch.zeros(2, 3, 4), torch.zeros(2, 3)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get_baseline("laso"), ("baseline", "'laso'", "did you mean lasso?")),
        (lambda: get_baseline("lasso", alpha=0), ("alpha", "0", "above 0")),
        (lambda: get_baseline("lasso", alfa=1), ("setting of baseline lasso", "alfa", "did you mean alpha?")),
        (lambda: get_baseline("ridge", alpha=-1), ("alpha", "-1")),
        (lambda: get_baseline("least_squares", alpha=1), ("setting of baseline least_squares", "alpha")),
        (lambda: get_baseline("knn", k=0), ("k", "0")),
        (lambda: get_baseline("gradient_descent", rate=0), ("rate", "0")),
        (lambda: get_baseline("optimal", task=get_task("relu_2nn")), ("optimal", "relu_2nn", "sparse_linear")),
        (lambda: get_baseline("optimal", task=LINEAR, shift=Strange()), ("optimal", "linear", "scale and move")),
        (lambda: get_baseline("optimal", task="linear"), ("task", "'linear'")),
        (lambda: get_baseline("zero").predict(x, y[:, :2], x), ("ys", "(2, 2)", "(2, 3)")),
        (lambda: get_baseline("zero").predict(x, y, x[..., :2]), ("queries", "(2, 3, 2)")),
        (lambda: get_baseline("zero").predict(x.long(), y, x), ("xs", "torch.int64", "floating-point")),
        (lambda: get_baseline("zero").predict(x / 0, y, x), ("xs", "NaN or infinity")),
        (lambda: get_baseline("zero").curve(x, y, x[:, :1]), ("queries", "(2, 1, 4)", "as xs")),
    ],
)
def test_bad_input_names_the_argument(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
