"""Helpers that several tests share: a model far from its quiet start, and a prompt for it."""

import os
import subprocess
import sys

# Some virtual machines advertise AMX and then do not allow it: bfloat16 would end in an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

from minicl import ModelConfig, Transformer
from minicl.masks import STRATEGIES

torch.set_num_threads(1)
EVERY = tuple(STRATEGIES)


def loud_model(mask, seed=0, n_dims=3, n_layer=4, n_head=4, n_embd=32, **settings):
    """A float64 model with weights large enough for every dependency to show."""
    config = ModelConfig(n_dims=n_dims, mask=mask, n_layer=n_layer, n_head=n_head, n_embd=n_embd, **settings)
    model = Transformer(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def random_prompt(B, n, m, d=3, seed=0, dtype=torch.double):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=generator, dtype=dtype) for s in ((B, n, d), (B, n), (B, m, d)))


@pytest.fixture
def cli(tmp_path):
    """Run `minicl …` as a real process in an empty folder."""

    def run(*argv, cwd=tmp_path, **options):
        return subprocess.run(
            [sys.executable, "-m", "minicl.cli", *map(str, argv)], cwd=cwd, capture_output=True, text=True, **options
        )

    return run


def assert_one_line(result, *words, status=2):
    """The process failed as a person expects: its status, one line on standard error, nothing on standard output."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr
