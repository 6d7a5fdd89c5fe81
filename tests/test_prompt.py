"""One prompt in one dimension: the answers along x, what shuffling moves, and how far the optimum is."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import assert_one_line

from minicl import load, prompt, train
from minicl.baselines import get_baseline
from minicl.tasks import get_task

LINE = {"task": "noisy_linear", "bias": True, "noise": 0.3, "n_dims": 1, "examples": 5, "max_examples": 8}
LINE |= {"n_layer": 2, "n_head": 2, "n_embd": 16, "batch_size": 16, "steps": 20, "validate": 16, "threads": 1}
LINE |= {"init_std": 0.3}  # far from its quiet start, so that the order of the examples shows


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Tiny runs on noisy lines: ar and invicl."""
    folder = tmp_path_factory.mktemp("lines")
    for mask in ("ar", "invicl"):
        train(out=folder / mask, mask=mask, **LINE)
    return folder


def test_answers_by_hand():
    """A model that answers with x plus the first label of its context."""
    xs, ys, grid = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 3.0, -2.0]), torch.tensor([0.0, 1.0])

    def first_label(xs, ys, queries):
        return SimpleNamespace(query=queries[..., 0] + ys[:, :1])

    found = prompt.answer(first_label, xs, ys, grid, permutations=40, seed=1)
    assert found["curve"] == [1.0, 2.0] and len(found["shuffled"]) == 40
    assert {tuple(line) for line in found["shuffled"]} == {(1.0, 2.0), (3.0, 4.0), (-2.0, -1.0)}
    assert found["moved"] == 3.0
    assert prompt.answer(first_label, xs, ys, grid, 40, seed=1) == found
    assert prompt.answer(first_label, xs, ys, grid, 40, seed=2)["shuffled"] != found["shuffled"]


def test_the_axis_reaches_around_all_examples():
    near, far = prompt.axis(torch.tensor([0.1])), prompt.axis(torch.tensor([-7.0, 3.0]))
    assert (float(near[0]), float(near[-1])) == (-2.5, 2.5) and (float(far[0]), float(far[-1])) == (-7.0, 3.0)
    assert len(prompt.axis(torch.empty(0))) == prompt.POINTS


def test_the_command_answers_the_same_prompt_with_every_run(cli, lines, tmp_path):
    flags = ["--lengths", "0,3,8", "--seed", 4, "--permutations", 6, "--prompt-plot", "p.png"]
    result = cli("evaluate", lines / "ar", lines / "invicl", *flags, "--json")
    records = json.loads(result.stdout)
    assert [(r["method"], r["examples"]) for r in records] == [(m, n) for m in ("ar", "invicl") for n in (0, 3, 8)]
    p = get_task("noisy_linear", n_dims=1, bias=True, noise=0.3).sample(1, 9, seed=4)
    for r in records:
        n, grid = r["examples"], torch.tensor(r["grid"])[None, :, None]
        xs, ys = p.xs[:, :n], p.ys[:, :n]
        assert r["xs"] == xs.flatten().tolist() and r["ys"] == ys.flatten().tolist() and r["trained_on"] == 5
        curve = load(lines / r["method"])(xs, ys, grid).query[0].detach()
        torch.testing.assert_close(torch.tensor(r["curve"]), curve, rtol=1e-4, atol=1e-4)
        best = get_baseline("optimal", task=get_task("noisy_linear", n_dims=1, bias=True, noise=0.3))
        optimum = best.predict(xs, ys, grid)[0]
        torch.testing.assert_close(torch.tensor(r["baselines"]["optimal"]), optimum)
        assert r["distance"]["optimal"] == pytest.approx(float((curve - optimum).square().mean().sqrt()), rel=1e-3)
        assert len(r["shuffled"]) == 6
        assert (r["moved"] > 1e-3) == (r["method"] == "ar" and n > 0) and (r["method"] == "ar" or r["moved"] < 1e-5)
    assert (tmp_path / "p.png").stat().st_size > 5000
    text = cli("evaluate", lines / "ar", "--prompt-plot", "q.png", "--baselines", "none").stdout
    assert "16 random orders" in text and "from" not in text and " 5 " in text, "the training length, no baseline"
    shifted = json.loads(cli("evaluate", lines / "ar", "--prompt-plot", "q.png", "--shifts", "scale", "--json").stdout)
    assert [r["shift"] for r in shifted] == ["scale"]
    assert max(map(abs, shifted[0]["xs"])) == pytest.approx(
        3 * float(get_task("linear", n_dims=1).sample(1, 6).xs[:, :5].abs().max())
    )


def test_bad_input_is_one_line(cli, lines, runs):
    assert_one_line(cli("evaluate", runs / "ar", "--prompt-plot", "p.png"), "prompt-plot", "n_dims = 3", "n_dims = 1")
    flags = {
        ("p.gif",): ("p.gif", ".png"),
        ("p.png", "--order"): ("prompt-plot", "--order beside it"),
        ("p.png", "--plot", "q.png"): ("prompt-plot", "--plot beside it"),
        ("p.png", "--max-examples", "3"): ("prompt-plot", "--max-examples beside it"),
        ("p.png", "--prompts", "9"): ("prompt-plot", "--prompts beside it"),
        ("no/p.png",): ("no/p.png", "a folder that exists"),
        ("p.png", "--permutations", "0"): ("permutations", "0", "at least 1"),
        ("p.png", "--lengths", "9"): ("examples for", "9", "at most 8"),
        ("p.png", "--lengths", ""): ("lengths", "at least one"),
        ("p.png", "--baselines", "greed"): ("baselines", "'greed'"),
    }
    for given, words in flags.items():
        assert_one_line(cli("evaluate", lines / "ar", "--prompt-plot", *given), *words)
