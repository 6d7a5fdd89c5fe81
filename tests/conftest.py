"""Helpers that several tests share: a model far from its quiet start, and a prompt for it."""

import contextlib
import io
import os
import subprocess
from pathlib import Path

# Some virtual machines advertise AMX and then do not allow it: bfloat16 would end in an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

from minicl import ModelConfig, Transformer
from minicl.cli import main
from minicl.masks import PER_EXAMPLE, STRATEGIES, Strategy

torch.set_num_threads(1)
EVERY = tuple(STRATEGIES)
MASKS = tuple(name for name, s in STRATEGIES.items() if not s.average)  # what a mask says all about


def pytest_collection_modifyitems(items):
    """The longest files first, so that no process is left alone with one at the end."""
    first = ("test_study.py", "test_devices.py", "test_propositions.py", "test_notebook.py")
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))


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


def random_table(n, copies, seed, density, layered=False, query=False):
    """A strategy that is a random table (one per layer, if layered), which no sentence describes."""
    T = PER_EXAMPLE * n * copies
    generator = torch.Generator().manual_seed(seed)
    tables = torch.rand(16, T + 1, T + 1, generator=generator) < density

    def index(t):
        return torch.where(t.is_query, T, PER_EXAMPLE * (t.copy * n + t.example) + t.is_label)

    def asked(q, k, layer):
        return tables[layer % 16][index(q), index(k)]

    def sees(q, k, layer):
        return asked(q, k, layer) & ~q.is_query

    def same(predicate):
        return predicate if layered else lambda q, k: predicate(q, k, 0)

    settings = {"copies": copies, "sees_query": bool(seed % 2), "query": same(asked) if query else None}
    return Strategy("random", same(sees), **settings)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory):
    """What minicl remembers outside of run folders lies in a folder of the tests, never in the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def forget(tmp_path, monkeypatch):
    """A function after which this process is one of a user who has trained nothing yet."""

    def run(name="state"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        monkeypatch.setattr("minicl.plugins._trained_now", set())

    return run


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A small uninterrupted run. Tests read it, copy it, or compare with it."""
    from training_helpers import TINY

    from minicl import train

    return Path(train(out=tmp_path_factory.mktemp("whole") / "run", **TINY)["run"])


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Tiny runs that tests only read: ar with two seeds, invicl; and one on sparse prompts."""
    from minicl import train

    small = {"n_dims": 3, "examples": 4, "max_examples": 12, "n_layer": 2, "n_head": 2, "n_embd": 16, "batch_size": 16}
    small |= {"steps": 30, "log_every": 10, "save_every": 10, "validate": 16, "threads": 1, "keep": (10,)}
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in {
        "ar": {"mask": "ar"},
        "ar1": {"mask": "ar", "seed": 1},
        "invicl": {"mask": "invicl"},
        "sparse": {"task": "sparse_linear", "sparsity": 1},
    }.items():
        train(out=folder / name, **(small | settings))
    return folder


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
