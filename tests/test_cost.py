"""What a run would cost: FLOPs as torch counts them, and a dry run that leaves nothing behind."""

import json
import statistics

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training_helpers import TINY, flags, tiny_config, trainer

from minicl import cost
from minicl.cost import flops, mean_flops
from minicl.schedule import prompt_size

LAYERED = "def deep(q, k, layer):\n    return (k.example < q.example) & (layer > 1) & ~q.is_query\n"


def counted(training):
    # The fused kernel of the CPU would not be counted.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        training.loss(0)
    return counter.get_total_flops()


@pytest.mark.parametrize("mask", ["prefix", "boe", "saicl", "invicl", "my.py:deep"])
@pytest.mark.parametrize("queries", [1, 2])
def test_flops_are_those_that_torch_counts(mask, queries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(LAYERED)
    training = trainer(mask=mask, queries=queries, lengths="fixed", n_embd=32, n_layer=2, examples=5)
    assert flops(training.config, 5) / 3 == pytest.approx(counted(training), rel=0.01)


def test_a_causal_mask_saves_half_of_the_attention():
    ar, prefix = (tiny_config(mask=mask, queries=1, n_layer=3, n_embd=16) for mask in ("ar", "prefix"))
    T = 2 * 5 + 1
    saved = (T * T - T * (T + 1) // 2) * 4 * 16 * 3  # pairs, multiply-adds of two products, layers
    assert flops(prefix, 5) - flops(ar, 5) == 3 * ar.train.batch_size * saved


def test_mean_flops_follow_the_lengths_of_the_run():
    config = tiny_config(lengths="uniform", steps=200)
    every_step = statistics.mean(flops(config, prompt_size(config, step)[0]) for step in range(200))
    assert mean_flops(config) == pytest.approx(every_step)
    fixed = tiny_config(lengths="fixed")
    assert mean_flops(fixed) == pytest.approx(flops(fixed, TINY["examples"])) and mean_flops(fixed) > every_step


def test_a_dry_run_measures_a_training():
    training = trainer(mask="invicl")
    record = cost.dry_run(training, measured=3)
    assert training.step == 3 and record["config"] == training.config.to_json()
    assert record["parameters"] == sum(p.numel() for p in training.model.parameters())
    assert record["flops_per_step"] == mean_flops(training.config)
    assert record["seconds"] == pytest.approx(training.config.train.steps * record["seconds_per_step"])
    assert record["seconds"] > 0 and record["memory_bytes"] > 1e6


def test_a_dry_run_writes_nothing(cli, tmp_path):
    command = ["train", *flags(), "--out", "run", "--dry-run"]
    record = json.loads(cli(*command, "--json").stdout)
    assert record["parameters"] == sum(p.numel() for p in trainer().model.parameters())
    assert record["seconds"] > 0 and record["memory_bytes"] > 1e6
    text = cli(*command).stdout
    assert "parameters" in text and "GFLOP per step" in text and "in all" in text
    assert "None" not in text and "()" not in text, "only what was chosen is listed"
    assert list(tmp_path.iterdir()) == []
