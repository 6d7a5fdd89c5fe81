"""Linear probes: they find what is there, and their controls find nothing."""

import json

import pytest
import torch
from conftest import assert_one_line, loud_model
from torch.nn import functional as F

from minicl import probe
from minicl.config import Config
from minicl.model import ModelConfig, Transformer
from minicl.selection import choose_lengths
from minicl.tasks import get_task


@pytest.mark.parametrize("fit", [probe.fit_ridge, probe.fit_gradient])
def test_a_probe_finds_a_linear_map(fit):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 9, generator=generator).double() * torch.logspace(-1, 1, 9)
    w, b = torch.randn(9, 2, generator=generator).double(), torch.tensor([3.0, -1.0]).double()
    found = fit(x[:400], x[:400] @ w + b, (x[400:], x[400:] @ w + b))
    torch.testing.assert_close(found, torch.cat([w, b[None]]), rtol=0.02, atol=0.05)


def test_ridge_chooses_its_regulariser_on_held_out_prompts():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 25, generator=generator).double(), torch.randn(30, 1, generator=generator).double()
    other, aim = torch.randn(500, 25, generator=generator).double(), torch.zeros(500, 1).double()
    assert (probe.with_one(other) @ probe.fit_ridge(x, y, (other, aim))).square().mean() < 0.1, "noise is not fitted"


def test_probe_controls_and_the_last_layer():
    """The last layer's probe does what the read-out does; from shuffled targets or untrained states nothing is read."""
    torch.manual_seed(0)
    task = get_task("linear", n_dims=2)
    model = Transformer(ModelConfig(n_dims=2, mask="invicl", n_layer=2, n_head=2, n_embd=16, init_std=0.25)).eval()
    teach(model, task)
    untrained = Transformer(model.config).eval()
    rows = {(r["probe"], r["layer"]): r["mean"] for r in probe.probe(model, untrained, task, [4], [0, 2], prompts=600)}
    p = task.sample(150, 5, (probe.SEEDS["test"],))
    zero = float(p.targets[:, 4].square().mean() / 2)
    assert rows["model", None] < 0.7 * zero
    assert rows["target", 2] < 1.2 * rows["model", None]
    for layer in (0, 2):
        assert rows["shuffled", layer] > 0.95 * zero
        assert rows["untrained", layer] > 0.9 * zero
    assert rows["target", 0] > 0.9 * zero, "before the first layer the query knows nothing of the context"
    assert rows["weights", 2] < rows["weights", 0]


def teach(model, task, steps=300):
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(steps):
        p = task.sample(64, 6, (99, step))
        loss = (model(p.xs[:, :4], p.ys[:, :4], p.xs[:, 4:]).query - p.ys[:, 4:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_probe_command(cli, runs, tmp_path):
    result = cli(
        "probe", runs / "ar", "--at-layers", "0,2", "--lengths", "0,4", "--prompts", 64, "--json", "--plot", "p.png"
    )
    records = json.loads(result.stdout)
    kinds = {(r["probe"], r["layer"], r["examples"]) for r in records}
    assert {("model", None, 4), ("target", 2, 4), ("untrained", 0, 0), ("shuffled", 2, 0), ("weights", 2, 4)} <= kinds
    at = {(r["probe"], r["layer"], r["examples"]): r["mean"] for r in records}
    assert at["target", 2, 4] != at["untrained", 2, 4]
    assert (tmp_path / "p.png").exists()
    assert "layer" in cli("probe", runs / "ar", "--lengths", "4", "--prompts", 64, "--fit", "gradient").stdout
    assert_one_line(cli("probe", runs / "ar", "--at-layers", "3"), "at-layers", "3", "0 to 2")
    assert_one_line(cli("probe", runs / "ar", "--max-examples", "99"), "99", "at most 12")
    assert_one_line(cli("probe", runs / "ar", "--checkpoints", "11"), "checkpoints", "11", "10, 20, 30")


def test_every_checkpoint_can_be_probed(cli, runs):
    flags = ["--checkpoints", "all", "--lengths", "4", "--prompts", 32, "--threads", 1]
    records = json.loads(cli("probe", runs / "ar", *flags, "--json").stdout)
    own = {r["step"]: r["mean"] for r in records if r["probe"] == "model"}
    assert list(own) == [10, 20, 30] and len(set(own.values())) == 3
    assert "step 10" in cli("probe", runs / "ar", *flags).stdout


@pytest.mark.parametrize("mask", ["ar", "invicl", "saicl"])
def test_states_are_those_of_a_pass_for_each_length(mask, monkeypatch):
    """Prompt by prompt, length by length, from nothing but the model and the prompts."""
    monkeypatch.setattr("minicl.answers.CHUNK", {"cpu": 64})  # few prompts at a time
    task, model = get_task("linear", n_dims=3), loud_model(mask, n_layer=2)
    model = model.float()
    for n, sets in probe.read(model, task, [0, 3, 7], [0, 2], prompts=40).items():
        p = task.sample(40, n + 1, (probe.SEEDS["fit"],))
        out = model(p.xs[:, :n], p.ys[:, :n], p.queries[:, n:], hidden=[0, 2])
        for layer in (0, 2):
            expected = F.layer_norm(out.hidden[layer].query[:, 0].detach().double(), (32,))
            torch.testing.assert_close(sets["fit"].hidden[layer], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sets["fit"].target[:, 0], p.targets[:, n].double())
        torch.testing.assert_close(sets["fit"].answer[:, 0], out.query[:, 0].detach().double(), rtol=1e-4, atol=1e-4)


def test_the_usual_lengths_are_few_and_hold_the_training_length():
    config = Config.make("paper", mask="invicl")
    lengths = choose_lengths("run", config, None, None, 11)
    assert lengths == (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    odd = choose_lengths("run", Config.make("small", examples=9, mask="boe"), None, None, 5)
    assert odd == (0, 6, 9, 11, 16, 22) and choose_lengths("run", config, [3], None, 11) == (3,)
    assert choose_lengths("run", Config.make("tiny", examples=2, mask="boe"), None, None, 11) == (0, 1, 2, 3, 4, 5)
