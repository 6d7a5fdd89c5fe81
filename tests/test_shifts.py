"""Shifts: each changes what it says about the prompts, and nothing else."""

import math

import pytest
import torch

from minicl.rng import Random
from minicl.shifts import SHIFTS, Shift, get_shift
from minicl.tasks import get_task

ALL = tuple(s for s in SHIFTS if s != "none")
OF_LABELS = ("noise", "scale_y", "label_noise")


def near(value, expected, tolerance):
    assert abs(float(value) - expected) < tolerance, f"{float(value)} is not {expected} ± {tolerance}"


@pytest.mark.parametrize("shift", OF_LABELS)
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


@pytest.mark.parametrize("shift", [s for s in ALL if s not in OF_LABELS])
def test_input_shifts_leave_the_function_alone(shift):
    task = get_task("linear", n_dims=8)
    p = task.sample(50, 8, seed=4, shift=shift)
    f = task.function(Random(4, 50))  # the same seed, the same function
    torch.testing.assert_close(p.ys, f(p.xs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p.targets, f(p.queries), rtol=1e-4, atol=1e-4)


def test_scale():
    plain, scaled = (get_task("linear").sample(10, 5, shift=s) for s in (None, "scale"))
    assert torch.equal(scaled.xs, 3 * plain.xs)
    assert get_shift("scale").normaliser(get_task("linear")) == 180
    assert get_shift("scale").normaliser(get_task("quadratic")) == 20 * 81
    assert get_shift("scale").normaliser(get_task("decision_tree")) == 1
    assert get_shift("scale").normaliser(get_task("linear", n_dims=2, bias=True)) == 19


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


@pytest.mark.parametrize("shift", ALL)
def test_every_curve_starts_near_one(shift):
    for name in ("linear", "sparse_linear", "decision_tree", "relu_2nn"):
        task = get_task(name)
        p = task.sample(3000, 20, seed=9, shift=shift)
        near(p.targets.square().mean() / get_shift(shift).normaliser(task), 1, 0.12)
    assert len(get_shift(shift).summary) > 20 and type(get_shift(shift)).__doc__ != Shift.__doc__


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("shift", [None, *ALL])
def test_few_points(shift, n):
    p = get_task("linear").sample(3, n, shift=shift)
    assert [t.shape for t in p] == [(3, n, 20), (3, n), (3, n, 20), (3, n)]


def test_a_shift_is_a_name_or_an_object():
    assert get_shift() == get_shift("none") == get_shift(None) == Shift()
    mild = get_shift("noise", offset=0.5)
    assert get_shift(mild) is mild and mild.normaliser(get_task("linear")) == 20.25
    plain, moved = (get_task("linear").sample(2000, 3, shift=s).ys for s in (None, mild))
    near((moved - plain)[:, 0].std(), 0.5, 0.03)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get_shift("scales"), ("shift", "scales", "did you mean scale?")),
        (lambda: get_shift("scale", factor=0), ("factor", "0", "above 0")),
        (lambda: get_shift("noise", offset=-1), ("offset", "-1")),
        (lambda: get_shift("label_noise", label_noise=math.inf), ("label_noise", "inf")),
        (lambda: get_shift("scale_y", gain=0), ("gain", "0", "above 0")),
        (lambda: get_shift("noise", size=2), ("setting of shift noise", "size", "offset")),
        (lambda: get_task("linear", n_dims=1).sample(2, 3, shift="half_subspace"), ("n_dims", "1", "at least 2")),
    ],
)
def test_bad_parameters_name_the_argument(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)
