"""Prompts: their distribution, with fixed seeds and stated tolerances, and that a shift changes only what it says."""

import math

import pytest
import torch

from minicl.rng import Random
from minicl.tasks import SHIFTS, TASKS, Shift, get_shift, get_task

ALL_TASKS, ALL_SHIFTS = tuple(TASKS), tuple(s for s in SHIFTS if s != "none")


def near(value, expected, tolerance):
    assert abs(float(value) - expected) < tolerance, f"{float(value)} is not {expected} ± {tolerance}"


def weights(task, B=4000, seed=0):
    """w of every prompt of a linear task, read off its values at the unit vectors."""
    f = task.function(Random(seed, B))
    return f(torch.eye(task.n_dims).expand(B, -1, -1)) - f(torch.zeros(B, 1, task.n_dims))


def test_random_numbers_look_random():
    random = Random(0, 1000)
    z, u = random.normal("z", 1001), random.uniform("u", 1000)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        near((z.double() ** power).mean(), moment, 5 * math.sqrt(math.prod(range(1, 2 * power, 2)) / z.numel()))
    near(u.mean(), 1 / 2, 0.002)
    near(u.var(), 1 / 12, 0.002)
    assert u.min() > 0 and u.max() < 1
    rows = torch.corrcoef(z[:200])  # prompts, and within them neighbours, are uncorrelated
    near((rows - torch.eye(200)).abs().max(), 0, 0.18)
    near((z[:, 1:] * z[:, :-1]).mean(), 0, 0.005)
    near((z * Random(1, 1000).normal("z", 1001)).mean(), 0, 0.005)
    near((z * random.normal("other", 1001)).mean(), 0, 0.005)
    counts = random.integers("i", 7, 1000).flatten().bincount(minlength=7)
    assert len(counts) == 7 and (counts / 1e6 - 1 / 7).abs().max() < 0.002


@pytest.mark.parametrize("name", ALL_TASKS)
def test_inputs_and_labels_have_the_moments_they_should(name):
    task = get_task(name)
    p = task.sample(4000, 41, seed=1)
    assert p.xs.shape == (4000, 41, 20) and p.ys.shape == (4000, 41) and p.xs.dtype == torch.float32
    near(p.xs.mean(), 0, 0.003)
    near(p.xs.var(), 1, 0.005)
    near(p.targets.square().mean() / task.normaliser, 1, 0.06)
    if name != "relu_2nn":  # (its sample mean over 4,000 networks is still coarse)
        near(p.ys.mean() / math.sqrt(task.normaliser), 0, 0.03)
    assert p.queries is p.xs
    near((p.ys - p.targets).std(), getattr(task, "noise", 0), 0.01)


def test_linear_weights():
    w = weights(get_task("linear"))
    near(w.mean(), 0, 0.01)
    near(w.var(), 1, 0.02)
    near((torch.corrcoef(w.T) - torch.eye(20)).abs().max(), 0, 0.07)
    biased = get_task("linear", n_dims=5, bias=True)
    b = biased.function(Random(0, 4000))(torch.zeros(4000, 1, 5))
    near(b.var(), 1, 0.08)
    assert biased.normaliser == 6


@pytest.mark.parametrize("d, sparsity", [(20, 3), (8, 2), (3, 3)])
def test_sparse_weights_are_exactly_sparse_and_uniform(d, sparsity):
    w = weights(get_task("sparse_linear", n_dims=d, sparsity=sparsity), B=8000)
    used = w != 0
    assert (used.sum(1) == sparsity).all()
    near((used.float().mean(0) - sparsity / d).abs().max(), 0, 0.02)
    together = (used.float().T @ used.float() / 8000)[~torch.eye(d, dtype=torch.bool)]
    near((together - sparsity * (sparsity - 1) / (d * (d - 1))).abs().max(), 0, 0.02)
    near(w[used].var(), 1, 0.03)


@pytest.mark.parametrize("depth", [1, 3, 4, 6])
def test_tree_equals_a_recursive_evaluation(depth):
    task = get_task("decision_tree", n_dims=7, depth=depth)
    p = task.sample(20, 30, seed=3)
    coordinates, leaves = (t.tolist() for t in task.tree(Random(3, 20)))

    def descend(prompt, x, node):
        inner = coordinates[prompt]
        if node >= len(inner):
            return leaves[prompt][node - len(inner)]
        return descend(prompt, x, 2 * node + (2 if x[inner[node]] > 0 else 1))

    expected = [[descend(b, x.tolist(), 0) for x in p.xs[b]] for b in range(20)]
    assert torch.equal(p.ys, torch.tensor(expected))
    assert len({y for row in expected for y in row}) > 20, "many leaves are reached"


@pytest.mark.parametrize("shift", [None, *ALL_SHIFTS])
@pytest.mark.parametrize("name", ALL_TASKS)
def test_a_prompt_depends_on_its_seed_and_number_alone(name, shift):
    task = get_task(name, n_dims=6, **({"sparsity": 2} if name == "sparse_linear" else {}))
    large = task.sample(9, 6, seed=5, shift=shift)
    task.sample(3, 4, seed=8)
    small = task.sample(4, 6, seed=5, shift=shift)
    part = task.sample(2, 6, seed=5, shift=shift, first=2)
    other = task.sample(4, 6, seed=6, shift=shift)
    for whole, begin, middle, differs in zip(large, small, part, other, strict=True):
        assert torch.equal(whole[:4], begin)
        assert torch.equal(whole[2:4], middle)
        assert not torch.equal(begin, differs)


def test_more_points_begin_with_the_same_ones():
    short, long = (get_task("linear").sample(3, n, seed=(7, 1)) for n in (4, 9))
    assert torch.equal(short.xs, long.xs[:, :4]) and torch.equal(short.ys, long.ys[:, :4])


def test_seeds_are_independent():
    a, b = (get_task("linear").sample(500, 10, seed=s) for s in (0, 1))
    near((a.xs * b.xs).mean(), 0, 0.02)
    near((a.ys * b.ys).mean() / 20, 0, 0.05)
    one_two, two_one = (get_task("linear").sample(2, 3, seed=s).xs for s in ((1, 2), (2, 1)))
    assert not torch.equal(one_two, two_one)


@pytest.mark.parametrize("shift", ["noise", "scale_y", "label_noise"])
@pytest.mark.parametrize("name", ["linear", "decision_tree"])
def test_label_shifts_leave_inputs_alone(name, shift):
    task = get_task(name)
    plain, shifted = task.sample(2000, 20, seed=2), task.sample(2000, 20, seed=2, shift=shift)
    assert torch.equal(plain.xs, shifted.xs) and torch.equal(plain.queries, shifted.queries)
    if shift == "noise":
        b = shifted.ys - plain.ys
        near((b - b[:, :1]).abs().max(), 0, 1e-5)
        near(b[:, 0].var(), 1, 0.1)
        assert torch.equal(shifted.ys, shifted.targets)
    elif shift == "scale_y":
        torch.testing.assert_close(shifted.ys, 3 * plain.ys)
        torch.testing.assert_close(shifted.targets, 3 * plain.targets)
    else:
        assert torch.equal(plain.targets, shifted.targets)
        near((shifted.ys - plain.ys).var(), 1, 0.02)


@pytest.mark.parametrize("shift", [s for s in ALL_SHIFTS if s not in ("noise", "scale_y", "label_noise")])
def test_input_shifts_leave_the_function_alone(shift):
    task = get_task("linear", n_dims=8)
    p = task.sample(50, 8, seed=4, shift=shift)
    w = weights(task, B=50, seed=4)
    torch.testing.assert_close(p.ys, (p.xs * w[:, None]).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p.targets, (p.queries * w[:, None]).sum(-1), rtol=1e-4, atol=1e-4)


def test_scale():
    plain, scaled = (get_task("linear").sample(10, 5, shift=s) for s in (None, "scale"))
    assert torch.equal(scaled.xs, 3 * plain.xs)
    assert get_shift("scale").normaliser(get_task("linear")) == 180
    assert get_shift("scale").normaliser(get_task("quadratic")) == 20 * 81
    assert get_shift("scale").normaliser(get_task("decision_tree")) == 1
    assert get_shift("scale").normaliser(get_task("linear", n_dims=2, bias=True)) == 19


def test_quadratic_and_network_values_by_hand():
    x = get_task("quadratic", n_dims=3).sample(4, 5, seed=2)
    w = Random(2, 4).normal("w", 3)
    torch.testing.assert_close(x.ys, (x.xs**2 * w[:, None]).sum(-1) / 3**0.5)
    task = get_task("relu_2nn", n_dims=3, hidden=7)
    x = task.sample(4, 5, seed=2)
    W, v = Random(2, 4).normal("W", 3, 7), Random(2, 4).normal("v", 7)
    expected = torch.stack([torch.relu(x.xs[b] @ W[b]) @ v[b] for b in range(4)]) * (2 / 7) ** 0.5
    torch.testing.assert_close(x.ys, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d", [20, 5, 2])
def test_half_subspace(d):
    p = get_task("linear", n_dims=d).sample(500, 41, seed=0, shift="half_subspace")
    singular = torch.linalg.svdvals(p.xs.double())
    assert (singular[:, d // 2 :] < 1e-4 * singular[:, :1]).all(), "rank d/2"
    assert (singular[:, d // 2 - 1] > 1e-3).all(), "and not less"
    near(p.xs.square().sum(-1).mean() / d, 1, 0.02)
    first, second = (torch.linalg.svd(x).Vh[: d // 2] for x in p.xs[:2].double())
    assert (first @ second.T).norm() < 0.99 * math.sqrt(d // 2), "another subspace for every prompt"
    near((p.xs.flatten(0, 1).T @ p.xs.flatten(0, 1) / (500 * 41) - torch.eye(d)).abs().max(), 0, 0.2)


def test_skewed():
    p = get_task("linear", n_dims=4).sample(40, 4000, seed=0, shift="skewed")
    eigenvalues = torch.linalg.eigvalsh(p.xs.mT @ p.xs / 4000).flip(-1).mean(0)
    expected = 1 / torch.arange(1, 5) ** 2
    torch.testing.assert_close(eigenvalues, 4 * expected / expected.sum(), rtol=0.02, atol=0)


def test_random_quadrants():
    p = get_task("linear", n_dims=6).sample(100, 50, seed=0, shift="random_quadrants")
    signs = p.xs.sign()
    assert (signs == signs[:, :1]).all() and not (signs[:1] == signs[1:2]).all()
    near((p.queries.sign() == signs).float().mean(), 0.5, 0.02)
    assert torch.equal(p.xs.abs(), p.queries.abs())


def test_orthogonal_query():
    task = get_task("linear", n_dims=12)
    p = task.sample(50, 12, seed=0, shift="orthogonal_query")
    products = (p.queries @ p.xs.mT).tril(-1)
    near(products.abs().max(), 0, 1e-4)
    near((p.queries.norm(dim=-1) - math.sqrt(12)).abs().max(), 0, 1e-4)
    assert torch.equal(p.xs, task.sample(50, 12, seed=0).xs)
    with pytest.raises(ValueError, match="n_points under shift orthogonal_query: got 13, allowed: at most 12"):
        task.sample(50, 13, shift="orthogonal_query")


def test_repeated_query():
    p = get_task("linear").sample(400, 6, seed=0, shift="repeated_query")
    same = (p.queries[:, :, None] == p.xs[:, None]).all(-1)  # (B, query, point)
    for i in range(1, 6):
        assert (same[:, i].sum(-1) == 1).all() and not same[:, i, i:].any()
        near((same[:, i, :i].float().mean(0) - 1 / i).abs().max(), 0, 0.1)
    assert not same[:, 0].any()


@pytest.mark.parametrize("shift", ALL_SHIFTS)
def test_every_curve_starts_near_one(shift):
    for name in ("linear", "sparse_linear", "decision_tree", "relu_2nn"):
        task = get_task(name)
        p = task.sample(3000, 20, seed=9, shift=shift)
        near(p.targets.square().mean() / get_shift(shift).normaliser(task), 1, 0.12)
    assert len(get_shift(shift).summary) > 20 and type(get_shift(shift)).__doc__ != Shift.__doc__


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("shift", [None, *ALL_SHIFTS])
def test_few_points(shift, n):
    p = get_task("linear").sample(3, n, shift=shift)
    assert [t.shape for t in p] == [(3, n, 20), (3, n), (3, n, 20), (3, n)]


def test_a_class_of_ones_own_is_a_few_lines():
    @TASKS("cubic")
    class Cubic(get_task("linear").__class__):
        """y = Σ x³."""

        power: int = 3

        def function(self, random):
            return lambda xs: (xs**self.power).sum(-1)

    try:
        task = get_task("cubic", n_dims=2)
        p = task.sample(3, 4)
        torch.testing.assert_close(p.ys, p.xs[..., 0] ** 3 + p.xs[..., 1] ** 3)
    finally:
        del TASKS["cubic"]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get_task("liner"), ("task", "'liner'", "did you mean linear?", "decision_tree")),
        (lambda: get_task("sparse_linear", sparsity=21), ("sparsity", "21", "at most n_dims = 20")),
        (lambda: get_task("sparse_linear", sparsity=0), ("sparsity", "0", "at least 1")),
        (lambda: get_task("decision_tree", depth=0), ("depth", "0", "at least 1")),
        (lambda: get_task("decision_tree", depth=99), ("depth", "99", "at most 16")),
        (lambda: get_task("noisy_linear", noise=-1), ("noise", "-1", "at least 0")),
        (lambda: get_task("noisy_linear", noise=math.nan), ("noise", "nan")),
        (lambda: get_task("linear", n_dims=0), ("n_dims", "0")),
        (lambda: get_task("linear", sparsity=2), ("setting of task linear", "sparsity", "n_dims, bias")),
        (lambda: get_task("relu_2nn", hidden=2.5), ("hidden", "2.5")),
        (lambda: get_shift("scales"), ("shift", "scales", "did you mean scale?")),
        (lambda: get_shift("scale", factor=0), ("factor", "0", "above 0")),
        (lambda: get_shift("noise", size=2), ("setting of shift noise", "size", "offset")),
        (lambda: get_task("linear").sample(0, 5), ("batch_size", "0")),
        (lambda: get_task("linear").sample(2, -1), ("n_points", "-1")),
        (lambda: get_task("linear").sample(2, 3, seed=-1), ("seed", "-1")),
        (lambda: get_task("linear").sample(2, 3, seed=0.5), ("seed", "0.5")),
        (lambda: get_task("linear", n_dims=1).sample(2, 3, shift="half_subspace"), ("n_dims", "1", "at least 2")),
    ],
)
def test_bad_parameters_name_the_argument(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
