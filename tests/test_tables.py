"""Prompts that look like tables: their columns, functions and noise, with fixed seeds and stated tolerances."""

import pytest
import torch
from test_tasks import near

from minicl import tables
from minicl.baselines import get_baseline
from minicl.checks import InputError
from minicl.rng import Random
from minicl.tasks import get_task

B = 3000


@pytest.fixture(scope="module")
def drawn():
    """A task, its prompts and their columns."""
    task = get_task("tables")
    return task, task.sample(B, 40, seed=1), task.columns(Random(1, B))


@pytest.mark.parametrize("shape", tables.shapes)
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_every_kind_of_column_has_mean_0_and_variance_1(shape, strength):
    z = Random(0, 400).normal("z", 1000)
    values = shape(z, torch.tensor(strength))
    near(values.mean(), 0, 0.01)
    near(values.var(), 1, 0.04)


def test_kinds_are_what_their_names_say():
    z, most = Random(0, 100).normal("z", 1000), torch.tensor(1.0)
    third = {shape.__name__: float(shape(z, most).pow(3).mean()) for shape in tables.shapes}
    fourth = {shape.__name__: float(shape(z, most).pow(4).mean()) for shape in tables.shapes}
    assert third["skewed"] > 2 and third["skewed_left"] < -2 and abs(third["heavy_tailed"]) < 1
    assert fourth["heavy_tailed"] > 10
    assert len(tables.binary(z, most).unique()) == 2 and 3 <= len(tables.stepped(z, most).unique()) <= 8


def test_number_of_columns(drawn):
    """From 1 to d, the smaller of two uniform draws; those that a table lacks are 0, and come last."""
    _, p, columns = drawn
    there = (p.xs != 0).any(1)
    counts = there.sum(1)
    assert torch.equal(counts, columns.count[:, 0]) and (there.cummin(1).values == there).all()
    shares = torch.bincount(counts, minlength=21)[1:] / B
    near((shares - (2 * (20 - torch.arange(20)) - 1) / 400).abs().max(), 0, 0.015)


def test_columns_are_those_of_a_table_that_few_rows_have_standardised(drawn):
    _, p, columns = drawn
    there = (columns.scale > 0)[:, 0]
    means, scales = columns.mean[:, 0][there], columns.scale[:, 0][there]
    near(means.mean(), 0, 0.01)
    near(means.std(), tables.DRIFT, 0.01)
    near(scales.square().mean(), 1, 0.03)
    near(scales.log().std(), tables.DRIFT, 0.01)
    values = ((p.xs - columns.mean) / columns.scale)[there.unsqueeze(1).expand_as(p.xs)]
    near(values.mean(), 0, 0.01)
    near(values.var(), 1, 0.03)


def test_some_columns_are_correlated():
    x = get_task("tables", odd=0.0).inputs(Random(2, 300), 400)
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).clamp_min(1e-6)
    correlation = (x.mT @ x / 399)[:, 0, 1]
    correlation = correlation[correlation != 0]
    assert 0.03 < (correlation.abs() > 0.5).float().mean() < 0.4 and correlation.abs().max() > 0.8
    near(correlation.mean(), 0, 0.06)


def test_labels_and_noise(drawn):
    """Labels have mean square about 1, the signal's share of it is uniform, and targets are without the noise."""
    task, p, _ = drawn
    near(p.ys.mean(), 0, 0.03)
    near(p.ys.square().mean(), 1 + tables.DRIFT**2, 0.1)
    near(p.targets.square().mean() / task.normaliser, 1, 0.1)
    noise = (p.ys - p.targets).std(1)
    expected = task.noise_scale(Random(1, B))[:, 0]
    near((noise / expected).mean(), 1, 0.02)
    share = task.signal(Random(1, B))
    assert 0 < share.min() < 0.01 and 0.99 < share.max() < 1
    near(share.mean(), 0.5, 0.02)


def test_weights_are_dense_to_sparse_and_only_of_columns_that_are_there(drawn):
    task, _, columns = drawn
    f = task.line(Random(1, B))
    w = f(torch.eye(20).expand(B, -1, -1))
    assert (w[(columns.scale == 0)[:, 0]] == 0).all()
    used, count = (w != 0).sum(1), columns.count[:, 0]
    assert (used >= 1).all()
    many = count >= 8
    assert (used[many] == 1).any() and (used[many] == count[many]).any()
    near(w.norm(dim=1).mean(), 1, 1e-3)


def residual(task):
    """Errors of least squares with 130 examples of noiseless functions: 0 for linear ones."""
    p = task.sample(200, 150, seed=3)
    xs = torch.cat([p.xs, torch.ones(200, 150, 1)], dim=-1)
    answers = get_baseline("least_squares").predict(xs[:, :130], p.targets[:, :130], xs[:, 130:])
    return ((answers - p.targets[:, 130:]).square().mean(1) / p.targets.var(1)).sqrt()


def test_share_of_bent_functions():
    assert (residual(get_task("tables", bent=0.0, odd=0.0)) < 1e-2).all()
    bent = (residual(get_task("tables", bent=0.4, odd=0.0)) > 2e-2).float().mean()
    near(bent, 0.4, 0.12)
    with pytest.raises(InputError, match=r"bent: got 1\.5, allowed: a number from 0 to 1"):
        get_task("tables", bent=1.5)


def test_a_prompt_alone_and_in_a_batch(drawn):
    task, p, _ = drawn
    for i in (0, 7, 2999):
        one = task.sample(1, 40, seed=1, start=i)
        torch.testing.assert_close(one.xs[0], p.xs[i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.ys[0], p.ys[i], rtol=1e-4, atol=1e-4)
    short = task.sample(5, 12, seed=1)
    torch.testing.assert_close(short.xs, p.xs[:5, :12], rtol=1e-5, atol=1e-5)


def test_ridge_cv_is_scikit_learn_s():
    linear_model = pytest.importorskip("sklearn.linear_model")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    p = get_task("tables").sample(30, 60, seed=3)
    for n in (5, 15, 50):
        answers = get_baseline("ridge_cv").predict(p.xs[:, :n], p.ys[:, :n], p.xs[:, 50:])
        for answer, x, y in zip(answers, p.xs.double().numpy(), p.ys.double().numpy(), strict=True):
            method = make_pipeline(StandardScaler(), linear_model.RidgeCV()).fit(x[:n], y[:n])
            torch.testing.assert_close(answer, torch.tensor(method.predict(x[50:])).float(), rtol=1e-4, atol=1e-5)
    alone = get_baseline("ridge_cv").predict(p.xs[:, :1], p.ys[:, :1], p.xs[:, 1:3])
    torch.testing.assert_close(alone, p.ys[:, :1].expand(-1, 2))
