"""Products by oneDNN: the same numbers as torch's, forward and backward, and a choice that a run keeps."""

import json

import pytest
import torch
from conftest import EVERY, assert_one_line
from torch import nn
from training_helpers import assert_same_run, flags, trainer

from minicl import ModelConfig, Transformer, devices, training
from minicl.checkpoint import checkpoints
from minicl.linear import LEAD, OneDNNLinear, faster, use_onednn

LIBRARIES = ("torch", "onednn")


@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (5, 3, 64), (2, 0, 64)])
@pytest.mark.parametrize("outputs", [1, 16, 192])
def test_a_layer_equals_torch_s(shape, outputs):
    torch.manual_seed(0)
    plain, fast = nn.Linear(64, outputs), OneDNNLinear(64, outputs)
    fast.load_state_dict(plain.state_dict())
    grad = torch.randn(*shape[:-1], outputs)
    results = []
    for layer in (plain, fast):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        answer = layer(x)
        answer.backward(grad)
        results.append((answer, x.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", EVERY)
def test_a_model_equals_torch_s(mask):
    torch.manual_seed(0)
    config = ModelConfig(n_dims=4, mask=mask, n_layer=3, n_head=2, n_embd=32, init_std=0.2)
    plain, fast = Transformer(config), Transformer(config)
    fast.load_state_dict(plain.state_dict())
    use_onednn(fast)
    assert sum(isinstance(m, OneDNNLinear) for m in fast.modules()) == 4 * 3 + 2
    prompt = torch.randn(6, 5, 4), torch.randn(6, 5), torch.randn(6, 2, 4)
    for model in (plain, fast):
        out = model(*prompt)
        (out.query.square().sum() + out.context.square().sum()).backward()
    for (name, p), q in zip(plain.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5 * float(p.grad.abs().max()), msg=name)


def test_it_compiles_to_one_graph():
    torch._dynamo.reset()
    model = Transformer(ModelConfig(n_dims=3, n_layer=2, n_head=2, n_embd=16))
    use_onednn(model)
    layout = model.layout(4, 1)
    assert layout.causal
    prompt = torch.randn(2, 4, 3), torch.randn(2, 4), torch.randn(2, 1, 3)
    explained = torch._dynamo.explain(model.propagate)(*prompt, layout)
    assert explained.graph_break_count == 0 and explained.graph_count == 1


def test_the_race_needs_a_clear_lead(monkeypatch):
    for lead, winner in ((1.0, "torch"), (LEAD * 0.99, "torch"), (LEAD * 1.01, "onednn"), (0.5, "torch")):
        times = {"torch": [lead, 9.0], "onednn": [1.0, 9.0]}
        monkeypatch.setattr("minicl.linear.take_turns", lambda calls, times=times, **_: times)
        assert faster(8, 4) == winner
    monkeypatch.undo()
    assert faster(8, 4) in ("torch", "onednn")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_keeps_its_library_and_resumes_exactly(cli, tmp_path, monkeypatch, library):
    auto = flags(linear="auto", steps=20, log_every=5, save_every=5)
    monkeypatch.setattr(devices, "faster", lambda width, rows: library)
    assert cli("train", *auto, "--out", "whole").returncode == 0
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["machine"]["linear"] == library

    class Enough(Exception):
        pass

    def stop(self):
        if self.step == 12:
            raise Enough
        return update(self)

    update = training.Training.update
    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "update", stop)
        with pytest.raises(Enough):
            cli("train", *auto, "--out", "cut")
    other = {"torch": "onednn", "onednn": "torch"}[library]
    monkeypatch.setattr(devices, "faster", lambda width, rows: other)
    assert max(checkpoints(tmp_path / "cut")) == 10
    assert cli("train", *auto, "--out", "cut").returncode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_it_is_used_where_it_is_asked_for():
    counts = [
        sum(isinstance(m, OneDNNLinear) for m in trainer(linear=library).model.modules()) for library in LIBRARIES
    ]
    assert counts[0] == 0 and counts[1] > 0


def test_bad_choices_are_one_line(cli):
    assert_one_line(cli("train", *flags(linear="onednn", precision="bf16")), "linear", "bf16")
    assert_one_line(cli("train", *flags(linear="mkl")), "linear", "onednn")


@pytest.mark.parametrize("content", ["[]", "null", "5", '{"machine": null}', "{"])
def test_a_config_that_is_none_is_one_line(cli, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(content)
    assert_one_line(cli("train", *flags(linear="auto"), "--out", "run"), "config")


def test_the_race_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    faster(8, 4)
    assert torch.rand(1) == expected
