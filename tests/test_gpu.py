"""What a GPU needs of a training step, as far as it can be seen without one."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from training_helpers import TINY, finish, flags, start, tiny_config, trainer

from minicl import checkpoint
from minicl.masks import STRATEGIES, layout
from minicl.tasks import TASKS
from minicl.training import train_run

FAULTS = {
    "reads back": "DataDependentOutputException",
    "decides by a value": "DataDependentOutputException",
    "picks by a condition": "DynamicOutputShapeException",
    "makes a tensor on the CPU": "AssertionError",
    "copies to the GPU": "AssertionError",
    "copies to the CPU": "AssertionError",
}


def steps(*cases):
    """What tests/gpu_step.py says of training steps on fake tensors."""
    result = finish(start(sys.executable, Path(__file__).with_name("gpu_step.py"), json.dumps(cases)))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_step_stays_on_the_gpu_under_every_mask_and_on_every_task():
    tiny = TINY | {"at": 7, "n_layer": 2, "n_dims": 3}
    cases = [tiny | {"mask": mask} for mask in STRATEGIES] + [tiny | {"task": task} for task in TASKS]
    cases += [tiny | {"lengths": "curriculum", "optimizer": "muon", "clip": 1.0}, tiny | {"at": 8, "loss": "query"}]
    for case, kernels in zip(cases, steps(*cases), strict=True):
        assert isinstance(kernels, dict), (case, kernels)
        assert kernels["_scaled_dot_product_efficient_attention"] == 2, "the step was taken"


def test_what_must_not_happen_in_a_step_is_noticed():
    found = steps(*({**TINY, "at": 7, "fault": fault} for fault in FAULTS))
    for (fault, error), what in zip(FAULTS.items(), found, strict=True):
        assert isinstance(what, str) and what.startswith(error), (fault, what)


def test_a_mask_costs_no_kernels_in_each_layer():
    ar, invicl, deep = steps(*({"preset": "paper", "at": 300_000} | case for case in (
        {"mask": "ar"}, {"mask": "invicl"}, {"mask": "invicl", "n_layer": 24})))  # fmt: skip
    assert sum(invicl.values()) - sum(ar.values()) < 6
    assert deep["masked_fill_"] == invicl["masked_fill_"] == 1
    assert "index" not in invicl and "index_put_" not in invicl


def emulated(folder, *commands):
    """These commands, one after the other, on the GPU of tests/emulated_gpu.py."""
    commands = [list(map(str, command)) for command in commands]
    program = Path(__file__).with_name("emulated_gpu.py").resolve()
    return finish(start(sys.executable, program, json.dumps(commands), cwd=folder))


@pytest.mark.parametrize("mask", ["ar", "invicl", "batchicl"])
def test_commands_say_the_same_on_a_gpu(mask, tmp_path, cli):
    """Trained there, stopped, resumed, saved, loaded and measured; and measured once more on the CPU."""
    train = ["train", "--mask", mask, "--out", "run", *flags(n_layer=2)]
    measure = [["evaluate", "run", "--prompts", 40, "--shifts", "none,skewed"], ["evaluate", "run", "--order"],
               ["probe", "run", "--prompts", 32, "--lengths", "2"]]  # fmt: skip
    there = emulated(tmp_path, [*train, "--steps", 10], [*train, "--steps", 20], *([*m, "--json"] for m in measure))
    assert there.returncode == 0, there.stderr
    assert "extended from 10 to 20 steps" in there.stderr
    shutil.rmtree(tmp_path / "run" / "evaluation")
    here = [json.loads(cli(*m, "--json").stdout) for m in measure]
    for ours, theirs in zip(here, map(json.loads, there.stdout.splitlines()), strict=True):
        assert _numbers(ours) == pytest.approx(_numbers(theirs), rel=1e-3, abs=1e-5)


def _numbers(records):
    return [v for r in records for value in r.values() for v in (value if isinstance(value, list) else [value])
            if isinstance(v, float)]  # fmt: skip


def test_a_tensor_in_the_wrong_place_is_noticed(tmp_path):
    """The emulated GPU refuses what CUDA would."""
    (tmp_path / "my.py").write_text(
        "import torch\nfrom minicl.tasks import Task\n\n\nclass here(Task):\n    def function(self, random):\n"
        "        return lambda xs: xs.sum(-1) * torch.ones(xs.shape[1])\n"
    )
    result = emulated(tmp_path, ["train", "--task", "my.py:here", "--out", "run", *flags()])
    assert result.returncode and "all tensors to be on one device" in result.stderr


@pytest.mark.parametrize("mask", ["ar", "invicl"])
def test_few_graphs_are_compiled_for_all_lengths(mask, monkeypatch):
    compiled, compile_ = [], torch.compile

    def counting(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda f, **given: compile_(f, backend=counting))
    fast, plain = (trainer(mask=mask, examples=7, lengths="uniform", compile=c, steps=80) for c in (True, False))
    for _ in range(50):
        fast.update()
        plain.update()
    assert 1 < len(compiled) <= 5, "the first length, all others, none, one"
    assert float(fast.loss_sum) == pytest.approx(float(plain.loss_sum), rel=1e-4)


def test_cuda_graphs_are_asked_of_the_compiler(monkeypatch, cli):
    modes = []
    monkeypatch.setattr(torch, "compile", lambda f, mode=None: modes.append(mode) or f)
    trainer(compile=True, cuda_graphs=True)
    trainer(compile=True)
    assert modes == ["reduce-overhead", None]
    result = cli("train", "--cuda-graphs")
    assert result.returncode == 2 and "cuda_graphs: got True, allowed: only with --compile" in result.stderr


def test_products_are_quick_in_training_and_exact_elsewhere(monkeypatch):
    for precision in ("high", "highest"):
        training, seen = trainer(matmul=precision), []
        forward = training.model.propagate
        monkeypatch.setattr(
            training.model,
            "propagate",
            lambda *given, f=forward, seen=seen: seen.append(torch.backends.cuda.matmul.allow_tf32) or f(*given),
        )
        training.update()
        training.validate()
        assert seen == [precision == "high", False, False] and not torch.backends.cuda.matmul.allow_tf32


def test_prompts_are_made_by_exact_products(monkeypatch):
    training, seen = trainer(matmul="high"), []
    batch, matmul = training.batch, torch.backends.cuda.matmul
    monkeypatch.setattr(training, "batch", lambda step: seen.append(matmul.allow_tf32) or batch(step))
    training.update()
    assert seen == [False]


def test_the_bias_is_the_mask_with_rows_at_multiples_of_eight():
    for n in range(6):
        built = layout("invicl", n, 2)
        bias = built.bias(torch.float32)
        assert torch.equal(bias == 0, built.mask) and bias[~built.mask].eq(-torch.inf).all()
        assert bias.stride(0) % 8 == 0 and bias.stride(1) == 1


def test_a_layout_on_another_device_is_the_same():
    built = layout("invicl", 3, 2)
    moved = built.to(torch.device("meta"))
    assert moved.mask.device.type == "meta" and moved.mask.shape == built.mask.shape and moved.causal is built.causal
    assert layout("nope", 3, 1).to(torch.device("meta")).positions is None


def test_a_checkpoint_is_of_the_moment_when_it_was_asked_for(tmp_path):
    training = trainer()
    training.update()
    expected = {name: p.clone() for name, p in training.model.state_dict().items()}
    with checkpoint.Writer() as writer:
        writer.save(tmp_path, training.state())
        training.update()
    saved = checkpoint.newest(tmp_path)
    assert saved["step"] == 1 and all(torch.equal(saved["model"][name], p) for name, p in expected.items())


def test_a_checkpoint_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with checkpoint.Writer() as writer:
        writer.save(tmp_path, trainer().state())
        with pytest.raises(OSError, match="No space left"):
            writer.wait()
        writer.wait()  # said once
        writer.save(tmp_path, trainer().state())
        with pytest.raises(OSError, match="No space left"):
            writer.save(tmp_path, trainer().state())
        monkeypatch.undo()
        writer.save(tmp_path, trainer().state())
    assert checkpoint.newest(tmp_path)


def test_one_failed_write_does_not_lose_the_run(tmp_path, monkeypatch):
    plain, failures = checkpoint.write_atomically, iter([True])

    def once(path, data):
        if next(failures, False):
            raise OSError(28, "No space left on device")
        plain(path, data)

    monkeypatch.setattr(checkpoint, "write_atomically", once)
    train_run(tiny_config(steps=11, save_every=6), tmp_path / "run")
    assert checkpoint.newest(tmp_path / "run")["step"] == 11
