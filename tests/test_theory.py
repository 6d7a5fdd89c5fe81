"""The hand-set construction against optimisers, and against numbers worked out on paper."""

import json

import numpy
import pytest
import torch
from conftest import EVERY, MASKS, assert_one_line

from minicl import theory
from minicl.config import Config
from minicl.masks import STRATEGIES, Strategy
from minicl.training import train_run


@pytest.fixture(scope="module")
def problem():
    X, y, w, largest = theory.problems(prompts=6, n=9, d=4, seed=1)
    return X, y, w, 0.7 / largest


def test_prefix_is_gradient_descent_at_every_layer(problem):
    X, y, _, eta = problem
    steps = theory.weights("prefix", X, y, eta, layers=12)
    for b in range(len(X)):
        x, target, w = X[b].numpy(), y[b].numpy(), numpy.zeros(4)
        for layer in range(1, 13):
            w = w - float(eta[b]) * x.T @ (x @ w - target)
            numpy.testing.assert_allclose(steps[layer, b], w, rtol=0, atol=1e-10)


def test_a_start_other_than_zero(problem):
    X, y, _, eta = problem
    w0 = torch.tensor([1.0, -2.0, 0.5, 0.0]).double().expand(6, 4)
    steps = theory.weights("prefix", X, y, eta, layers=3, w0=w0)
    w = w0
    for layer in range(1, 4):
        w = w - eta.view(-1, 1) * (X.mT @ (X @ w.unsqueeze(-1) - y.unsqueeze(-1)))[..., 0]
        torch.testing.assert_close(steps[layer], w, rtol=0, atol=1e-10)


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

    def line(steps):
        return steps[:, 0, 0].tolist()

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
        steps = theory.weights(mask, X, y, eta, 12)
        torch.testing.assert_close(
            steps, theory.optimiser("online gradient descent", X, y, eta, 12), rtol=0, atol=1e-10
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


def test_a_layered_mask_takes_each_layer_s_own_step(problem):
    """Two layers of boe, then prefix: the same as carrying the labels over by hand."""
    X, y, _, eta = problem

    def late(q, k, layer):
        return STRATEGIES["prefix" if layer > 2 else "boe"](q, k)

    layered = theory.weights(Strategy("late", late), X, y, eta, 5)
    torch.testing.assert_close(layered[:3], theory.weights("boe", X, y, eta, 2), rtol=0, atol=1e-12)
    step, label, w = eta.view(-1, 1), y, torch.zeros_like(X[:, 0])
    for layer in range(1, 6):
        before, gram = label, X @ X.mT
        if layer <= 2:
            gram = gram * torch.eye(X.shape[1], dtype=X.dtype)
        w = w + step * (X.mT @ before.unsqueeze(-1))[..., 0]
        label = before - step * (gram @ before.unsqueeze(-1))[..., 0]
        torch.testing.assert_close(layered[layer], w, rtol=0, atol=1e-10)


def test_whom_the_query_sees_is_what_its_weights_are_made_of(problem):
    X, y, _, eta = problem
    half = Strategy("half", STRATEGIES["boe"].sees, query=lambda q, k: k.example < 4)
    alone = theory.weights("boe", X[:, :4], y[:, :4], eta, 3)
    torch.testing.assert_close(theory.weights(half, X, y, eta, 3), alone, rtol=0, atol=1e-12)
    both = Strategy("both", STRATEGIES["invicl"].sees, copies=2, query=lambda q, k: k.copy >= 0)
    first = theory.weights(both, X, y, eta, 1)[1]
    torch.testing.assert_close(first, 2 * theory.weights("invicl", X, y, eta, 1)[1], rtol=0, atol=1e-12)


def test_records_of_masks_of_ones_own():
    asks = Strategy("asks", lambda q, k: k.is_query & ~q.is_query, sees_query=True)
    records = theory.compare([asks, "boe"], prompts=8, rates=[0.5])
    assert [(r["mask"], r["linear"], r["optimiser"]) for r in records] == [
        ("asks", False, None),
        ("boe", True, "constant gradient"),
    ]
    assert "asks: the context sees the query" in theory.table(records)


def test_command(cli, tmp_path):
    result = cli("theory", "--json", "--plot", "t.png", "--prompts", 20)
    records = json.loads(result.stdout)
    assert {r["mask"] for r in records} == {"prefix", "ar", "nope", "boe", "invicl", "invicl (proof)"}
    assert {r["rate"] for r in records} == {0.1, 0.25, 0.5, 1.0}
    for r in records:
        for key in ("distance", "layers", "from_gradient_descent", "from_optimiser", "optimiser_distance"):
            assert len(r[key]) == 13
    assert (tmp_path / "t.png").exists()
    text = cli("theory", "--masks", ",".join(MASKS), "--prompts", 20).stdout
    assert "prefix is gradient descent at every layer" in text and "not from layer 1 on" in text
    assert "saicl: the context sees the query" in text


def test_flags_of_the_command(cli, tmp_path):
    (tmp_path / "my.py").write_text("def mine(q, k, layer):\n    return (k.example < q.example) & (layer > 1)\n")
    flags = (
        "--mask",
        "ar,my.py:mine",
        "--rates",
        "0.3,0.2",
        "--layers",
        3,
        "--examples",
        4,
        "--n-dims",
        2,
        "--seed",
        5,
    )
    records = json.loads(cli("theory", *flags, "--prompts", 8, "--json").stdout)
    assert [(r["mask"], r["rate"]) for r in records] == [(m, rate) for rate in (0.3, 0.2) for m in ("ar", "my.py:mine")]
    expected = theory.compare(["ar"], prompts=8, n=4, d=2, layers=3, rates=[0.3, 0.2], seed=5)
    assert [r for r in records if r["mask"] == "ar"] == expected


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--layers", 1], ("layers", "at least 2")),
        (["--rates", "0"], ("rates", "above 0")),
        (["--rates", "0.1,much"], ("--rates", "0.1,much", "numbers with commas")),
        (["--masks", ""], ("masks", "at least one")),
        (["--masks", "invcl"], ("did you mean invicl?",)),
        (["--prompts", 2], ("prompts", "at least 8")),
        (["--run", "gone"], ("gone", "no such folder")),
        (["--run", "gone", "--layers", 3], ("--layers", "--run")),
        (["--run", "gone", "--n-dims", 3], ("--n-dims", "--run")),
        (["--plot", "t.xyz"], ("t.xyz", ".png")),
    ],
)
def test_bad_input_is_one_line(cli, argv, words):
    assert_one_line(cli("theory", *argv), *words)


TINY = {"n_dims": 2, "examples": 4, "max_examples": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, "steps": 20}
TINY |= {"save_every": 20, "threads": 1}


def test_which_optimiser_a_run_resembles(cli, tmp_path):
    train_run(Config.make("tiny", **TINY), tmp_path / "run")
    rows = json.loads(cli("theory", "--run", "run", "--prompts", 600, "--json", "--plot", "r.png").stdout)
    assert [r["layer"] for r in rows] == [0, 1, 2]
    assert min(rows[0]["descent"]) == rows[0]["descent"][0], "before the first layer a query knows nothing: no step"
    assert (tmp_path / "r.png").exists()
    assert "nearest Newton" in cli("theory", "--run", "run", "--prompts", 64).stdout


def test_a_run_that_brings_code_needs_trust(cli, tmp_path, forget):
    forget("here")
    (tmp_path / "my.py").write_text("def mine(q, k, layer):\n    return (k.example < q.example) & (layer > 1)\n")
    train_run(Config.make("tiny", mask=f"{tmp_path}/my.py:mine", **TINY), tmp_path / "run")
    forget("elsewhere")
    flags = ("theory", "--run", "run", "--prompts", 64, "--json")
    assert_one_line(cli(*flags), "mask.py", "--trust")
    assert len(json.loads(cli(*flags, "--trust").stdout)) == 3


def test_only_linear_tasks_have_such_optimisers(cli, tmp_path):
    train_run(Config.make("tiny", task="decision_tree", **TINY), tmp_path / "run")
    assert_one_line(cli("theory", "--run", "run"), "task", "decision_tree", "noisy_linear")


def test_newton_s_iteration_ends_at_least_squares():
    X, y, w, largest = theory.problems(prompts=5, n=9, d=3)
    torch.testing.assert_close(theory._newton(X, y, largest, 30)[-1], w, rtol=0, atol=1e-6)
