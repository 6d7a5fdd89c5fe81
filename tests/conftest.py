"""Helpers that several tests share: a model far from its quiet start, and a prompt for it."""

import contextlib
import io
import os
import subprocess

# Some virtual machines advertise AMX and then do not allow it: bfloat16 would end in an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

from minicl import ModelConfig, Transformer
from minicl.cli import main
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
def cli(tmp_path, monkeypatch):
    """Run `minicl …` in an empty folder, in this process: a new one spends seconds on importing torch."""

    def run(*argv, cwd=tmp_path):
        out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
        try:
            with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                patch.chdir(cwd)
                status = main([str(part) for part in argv])
        except SystemExit as stop:
            status = stop.code
        finally:
            torch.set_num_threads(threads)
        return subprocess.CompletedProcess(argv, status or 0, out.getvalue(), err.getvalue())

    return run


def assert_one_line(result, *words, status=2):
    """The process failed as a person expects: its status, one line on standard error, nothing on standard output."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr
