"""The hand-set construction against optimisers, and against numbers worked out on paper."""

import json

import numpy
import pytest
import torch
from conftest import EVERY, assert_one_line

from minicl import theory
from minicl.config import Config
from minicl.train import train


@pytest.fixture(scope="module")
def problem():
    X, y, w, largest = theory.problems(prompts=6, n=9, d=4, seed=1)
    return X, y, w, 0.7 / largest


def test_prefix_is_gradient_descent_at_every_layer(problem):
    X, y, _, eta = problem
    found = theory.weights("prefix", X, y, eta, layers=12)
    for b in range(len(X)):
        x, target, w = X[b].numpy(), y[b].numpy(), numpy.zeros(4)
        for layer in range(1, 13):
            w = w - float(eta[b]) * x.T @ (x @ w - target)
            numpy.testing.assert_allclose(found[layer, b], w, rtol=0, atol=1e-10)


def test_a_start_other_than_zero(problem):
    X, y, _, eta = problem
    w0 = torch.tensor([1.0, -2.0, 0.5, 0.0]).double().expand(6, 4)
    found = theory.weights("prefix", X, y, eta, layers=3, w0=w0)
    w = w0
    for layer in range(1, 4):
        w = w - eta.view(-1, 1) * (X.mT @ (X @ w.unsqueeze(-1) - y.unsqueeze(-1)))[..., 0]
        torch.testing.assert_close(found[layer], w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mask", EVERY)
def test_the_first_layer_is_one_gradient_step(mask, problem):
    X, y, _, eta = problem
    step = eta.view(-1, 1) * (X.mT @ y.unsqueeze(-1))[..., 0]
    torch.testing.assert_close(theory.weights(mask, X, y, eta, layers=1)[1], step, rtol=0, atol=1e-12)


def test_three_layers_by_hand():
    """x = (1, 2), y = (3, 4), η = 0.1, worked out on paper.

    w₁ = 0.1·(1·3 + 2·4) = 1.1 under every mask. With copy 1 seeing itself, its labels are then 3 − 0.1·(1·2·4 + 1·1·3)
    = 1.9 and 4 − 0.1·(2·1·3 + 2·2·4) = 1.8, so w₂ = 1.1 + 0.1·(1.9 + 2·1.8) = 1.65. Copy 0 has 3 − 0.1·3 = 2.7 and
    4 − 0.1·16 = 2.4, so the next labels are 1.9 − 0.1·(2·2.4 + 1.9) = 1.23 and 1.8 − 0.1·(2·2.7 + 4·1.8) = 0.54, and
    w₃ = 1.65 + 0.1·(1.23 + 1.08) = 1.881. In the proof copy 1 does not see itself: 3 − 0.8 = 2.2 and 4 − 0.6 = 3.4, so
    w₂ = 1.1 + 0.1·(2.2 + 6.8) = 2.0. Gradient descent: 1.1, 1.65, 1.65 + 0.1·(1.35 + 1.4) = 1.925.
    """
    X, y, eta = (
        torch.tensor([[[1.0], [2.0]]]).double(),
        torch.tensor([[3.0, 4.0]]).double(),
        torch.tensor([0.1]).double(),
    )

    def line(found):
        return found[:, 0, 0].tolist()

    assert line(theory.weights("invicl", X, y, eta, 3)) == pytest.approx([0, 1.1, 1.65, 1.881])
    assert line(theory.literal_invicl(X, y, eta, 2)) == pytest.approx([0, 1.1, 2.0])
    assert line(theory.weights("prefix", X, y, eta, 3)) == pytest.approx([0, 1.1, 1.65, 1.925])
    # Stated: w₁ = 1.1 + η²·x·(offdiagonal of xxᵀ)·(−y) = 1.1 − 0.01·(1·2·4 + 2·2·3) = 0.9.
    assert line(theory.optimiser("gradient descent + η²Δ", X, y, eta, 1)) == pytest.approx([0, 0.9])


def test_the_proof_s_updates_are_the_mask_without_copy_1_seeing_itself(problem):
    X, y, _, eta = problem
    mask = theory.weights("invicl", X, y, eta, layers=12, own=False)
    torch.testing.assert_close(mask, theory.literal_invicl(X, y, eta, 12), rtol=0, atol=1e-10)


def test_stated_recursion_and_literal_updates_part_at_layer_1(problem):
    X, y, _, eta = problem
    literal = theory.literal_invicl(X, y, eta, 12)
    stated = theory.optimiser("gradient descent + η²Δ", X, y, eta, 12)
    assert torch.equal(literal[0], stated[0])
    gram = X @ X.mT
    others = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    delta = -(X.mT @ others @ y.unsqueeze(-1))[..., 0]  # Δ at w = 0
    torch.testing.assert_close(stated[1] - literal[1], eta.view(-1, 1) ** 2 * delta, rtol=0, atol=1e-12)
    assert (stated[1] - literal[1]).norm(dim=-1).min() > 1e-3
    # What the recursion does in its first step, the layers do in their second: the query lags copy 1 by a layer.
    torch.testing.assert_close(literal[2] - literal[1], stated[1] - stated[0], rtol=0, atol=1e-12)


def test_invicl_s_mask_is_gradient_descent_for_two_layers(problem):
    X, y, _, eta = problem
    gap = (theory.weights("invicl", X, y, eta, 12) - theory.optimiser("gradient descent", X, y, eta, 12)).norm(dim=-1)
    assert gap[:3].max() < 1e-12 < 1e-4 < gap[3].min()


def test_ar_is_online_gradient_descent(problem):
    X, y, _, eta = problem
    for mask in ("ar", "nope"):
        found = theory.weights(mask, X, y, eta, 12)
        torch.testing.assert_close(
            found, theory.optimiser("online gradient descent", X, y, eta, 12), rtol=0, atol=1e-10
        )


def test_boe_and_invicl_end_at_jacobi_s_first_two_iterates(problem):
    X, y, _, _ = problem
    gram = X @ X.mT
    diagonal = gram.diagonal(dim1=1, dim2=2)
    eta = 1 / diagonal.amax(1)
    first = y / diagonal
    second = (y - ((gram - torch.diag_embed(diagonal)) @ first.unsqueeze(-1))[..., 0]) / diagonal
    for mask, iterate in (("boe", first), ("invicl", second)):
        end = theory.weights(mask, X, y, eta, layers=3000)[-1]
        torch.testing.assert_close(end, (X.mT @ iterate.unsqueeze(-1))[..., 0], rtol=0, atol=1e-6)


def test_constant_gradient_is_boe_up_to_layer_1_only(problem):
    X, y, _, eta = problem
    gap = (theory.weights("boe", X, y, eta, 3) - theory.optimiser("constant gradient", X, y, eta, 3)).norm(dim=-1)
    assert gap[1].max() < 1e-12 and gap[2].min() > 1e-3


def test_verdicts():
    assert theory.verdict([1, 0.5, 0.25]) == "converges"
    assert theory.verdict([1, 0.5, 0.4999]) == "stalls"
    assert theory.verdict([1, 0.5, 0.6]) == "diverges"
    assert theory.verdict([1, 0.5, float("inf")]) == "diverges"


def test_command(cli, tmp_path):
    result = cli("theory", "--json", "--plot", "t.png", "--prompts", 20)
    records = json.loads(result.stdout)
    assert {r["mask"] for r in records} == {"prefix", "ar", "nope", "boe", "invicl", "invicl (proof)"}
    assert {r["rate"] for r in records} == {0.1, 0.25, 0.5, 1.0}
    for r in records:
        for key in ("distance", "layers", "from_gradient_descent", "from_optimiser", "optimiser_distance"):
            assert len(r[key]) == 13
    assert (tmp_path / "t.png").exists()
    text = cli("theory", "--mask", *EVERY, "--prompts", 20).stdout
    assert "prefix is gradient descent at every layer" in text and "not from layer 1 on" in text
    assert "saicl: the context sees the query" in text
    assert_one_line(cli("theory", "--layers", 1), "layers", "at least 2")
    assert_one_line(cli("theory", "--rates", 0), "rates", "above 0")
    assert_one_line(cli("theory", "--run", "gone"), "gone", "no such folder")


def test_which_optimiser_a_run_resembles(cli, tmp_path):
    config = Config.make(
        "demo", n_dims=2, examples=4, max_examples=8, n_layer=2, n_head=2, n_embd=16, steps=20, save_every=20, threads=1
    )
    train(config, tmp_path / "run")
    rows = json.loads(cli("theory", "--run", "run", "--prompts", 600, "--json", "--plot", "r.png").stdout)
    assert [r["layer"] for r in rows] == [0, 1, 2]
    assert min(rows[0]["descent"]) == rows[0]["descent"][0], "before the first layer a query knows nothing: no step"
    assert (tmp_path / "r.png").exists()
    assert "nearest Newton" in cli("theory", "--run", "run", "--prompts", 64).stdout


def test_newton_s_iteration_ends_at_least_squares():
    X, y, w, largest = theory.problems(prompts=5, n=9, d=3)
    torch.testing.assert_close(theory._newton(X, y, largest, 30)[-1], w, rtol=0, atol=1e-6)
