"""Order sensitivity, against what it is by hand."""

import json
from types import SimpleNamespace

import pytest
from conftest import MASKS, assert_one_line, loud_model

from minicl import order
from minicl.tasks import get_task


def test_order_sensitivity():
    task = get_task("linear", n_dims=3)
    spread = {}
    for mask in MASKS:
        for positions in ("absolute", "symmetric"):
            model = loud_model(mask, positions=positions).float()
            found = order.sensitivity(model, task, 6, prompts=20, permutations=5)
            spread[mask, positions] = found["spread"]
            assert found["frequency"] == 0 or found["largest"] > found["tolerance"]
    still = {key for key, value in spread.items() if value < 1e-5}
    assert still == {(m, "symmetric") for m in ("prefix", "boe", "pfn", "saicl", "invicl", "prefix_others")}
    assert all(value > 1e-3 for key, value in spread.items() if key not in still)


def test_order_sensitivity_by_hand():
    """A model that answers with the first label of its context."""
    task = get_task("linear", n_dims=3)

    def first_label(xs, ys, queries):
        return SimpleNamespace(query=ys[:, :1])

    found = order.sensitivity(first_label, task, 5, prompts=2000, permutations=60, tolerance=0.5)
    p = task.sample(2000, 6, 0)
    scale = 3**0.5
    assert found["spread"] == pytest.approx(float(p.ys[:, :5].var(1, unbiased=False).mean().sqrt()) / scale, rel=0.03)
    moved = ((p.ys[:, :5] - p.ys[:, :1]).abs() / scale > 0.5).float().mean()
    assert found["frequency"] == pytest.approx(float(moved), abs=0.01)
    assert found["error"] == pytest.approx(float((p.ys[:, 0] - p.targets[:, 5]).square().mean() / 3), rel=1e-4)


@pytest.mark.parametrize("flag", ["--permutations", "--tolerance"])
def test_its_flags_are_not_for_curves(cli, runs, flag):
    assert_one_line(cli("evaluate", runs / "ar", flag, 3), flag[2:], "with --order")


@pytest.mark.parametrize("flag", ["--shifts", "--baselines", "--lengths"])
def test_flags_of_curves_are_not_for_it(cli, runs, flag):
    assert_one_line(cli("evaluate", runs / "ar", "--order", flag, "3"), "order", f"{flag} beside it")


def test_order_command(cli, runs, tmp_path):
    result = cli("evaluate", runs / "ar", runs / "invicl", "--order", "--json", "--plot", "o.png")
    ar, invicl = json.loads(result.stdout)
    assert invicl["spread"] < 1e-5 and invicl["frequency"] == 0 and ar["spread"] > invicl["spread"]
    assert (tmp_path / "o.png").exists()
    assert "16 random orders" in cli("evaluate", runs / "ar", "--order").stdout
