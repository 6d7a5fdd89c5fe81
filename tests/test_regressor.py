"""A run as an estimator: what it answers, what it refuses, and scikit-learn's own checks."""

import re
import types

import numpy
import pytest
import torch
from conftest import loud_model

from minicl import Regressor, regressor
from minicl.tasks import get_task


def table(rows=12, columns=3, seed=0):
    random = numpy.random.default_rng(seed)
    X = random.normal(size=(rows, columns))
    return X, X @ random.normal(size=columns) + random.normal(size=rows)


@pytest.fixture
def of(monkeypatch):
    """Regressors of loud float64 models, which notice whatever differs in their prompt."""

    def make(mask="invicl", examples=20, max_examples=20, n_dims=4, **settings):
        model = loud_model(mask, n_dims=n_dims, max_examples=max_examples, n_layer=2)
        config = types.SimpleNamespace(
            task=get_task("linear", n_dims=n_dims),
            data=types.SimpleNamespace(examples=examples),
            model=model.config,
        )
        monkeypatch.setattr(regressor, "load_run", lambda *_, **__: (model, config))
        return Regressor("loud", **settings)

    return make


def test_the_model_is_shown_standardised_columns_and_labels_of_its_task_s_size(of):
    X, y = table()
    new = table(5, seed=1)[0]
    model = of(views=1).fit(5 + 3 * X, 7 + 2 * y)

    def prepared(values):
        return torch.tensor(numpy.pad((values - X.mean(0)) / X.std(0), ((0, 0), (0, 1))))[None]

    labels = torch.tensor(2 * (y - y.mean()) / y.std())[None]  # functions of 4 dimensions have standard deviation 2
    with torch.no_grad():
        answers = model.model_(prepared(X), labels, prepared(new)).query[0].numpy()
    expected = 7 + 2 * (y.mean() + answers / 2 * y.std())
    numpy.testing.assert_allclose(model.predict(5 + 3 * new), expected, rtol=1e-6)


def test_views_show_the_same_table_with_other_columns_and_signs(of):
    X, y = table(columns=4)
    new = table(5, 4, seed=1)[0]
    several = of(views=3, seed=5).fit(X, y)
    assert several.columns_[0].tolist() == [0, 1, 2, 3] and (several.signs_[0] == 1).all()
    assert len({*map(tuple, several.columns_)}) > 1 and (several.signs_ < 0).any()
    each = []
    for columns, signs, (sign,) in zip(several.columns_, several.signs_, several.y_signs_, strict=True):
        one = of(views=1).fit(X[:, columns] * signs, sign * y)
        each.append(sign * one.predict(new[:, columns] * signs))
    numpy.testing.assert_allclose(several.predict(new), numpy.mean(each, 0), rtol=1e-6)
    with pytest.raises(ValueError, match="views: got 0, allowed: a whole number of at least 1"):
        of(views=0).fit(X, y)


def test_a_trained_run(runs):
    X, y = table()
    model = Regressor(str(runs / "invicl")).fit(X, y)
    assert model.predict(X).shape == (12,) and model.predict(X).dtype == numpy.float64
    numpy.testing.assert_array_equal(model.predict(X), Regressor(str(runs / "invicl")).fit(X, y).predict(X))
    file = next((runs / "invicl" / "checkpoints").glob("step-*30.pt"))
    numpy.testing.assert_array_equal(model.predict(X), Regressor(file).fit(X, y).predict(X))
    assert Regressor("a").set_params(step=3).get_params() == {
        "run": "a", "step": 3, "trust": False, "features": "all", "views": 4, "seed": 0,
    }  # fmt: skip
    assert repr(Regressor("a", seed=2)) == "Regressor(run='a', seed=2)" and repr(Regressor()) == "Regressor()"


@pytest.mark.parametrize("mask", ["invicl", "pfn", "boe", "batchicl", "ar", "nope"])
def test_the_order_of_the_rows_does_not_matter(of, mask):
    """By the mask's own invariance; or by orders that depend on the rows' values, one for each view."""
    X, y = table(columns=1)
    shuffled = numpy.random.default_rng(1).permutation(len(X))
    model = of(mask).fit(X, y)
    numpy.testing.assert_allclose(model.predict(X), of(mask).fit(X[shuffled], y[shuffled]).predict(X), atol=1e-4)
    first, second = (of(mask, views=1, seed=seed).fit(X, y).predict(X) for seed in (1, 2))
    assert numpy.allclose(first, second, atol=1e-6) == (mask not in ("ar", "nope")), "the seed chooses the order"


def test_many_rows_are_dealt_out_to_prompts(of):
    X, y = table(5000)
    model = of("pfn", examples=50, views=2).fit(X, y)
    assert [tuple(ys.shape) for _, ys in model.prompts_] == [(2, 200)] * 25, "four times the training length"
    all_labels = torch.cat([ys for _, ys in model.prompts_], dim=1) * torch.tensor(model.y_signs_)
    expected = numpy.tile(numpy.sort(2 * (y - y.mean()) / y.std()), (2, 1))
    numpy.testing.assert_allclose(all_labels.sort(1).values, expected, rtol=1e-6, err_msg="each row once in each view")
    few = X[:3]
    with torch.no_grad():
        each = [model.model_(*prompt, model._shown(few)).query.numpy() * model.y_signs_ for prompt in model.prompts_]
    numpy.testing.assert_allclose(model.predict(few), y.mean() + numpy.mean(each, (0, 1)) / 2 * y.std(), rtol=1e-6)
    order = numpy.random.default_rng(2).permutation(5000)
    again = of("pfn", examples=50, views=2).fit(X[order], y[order])
    numpy.testing.assert_allclose(model.predict(few), again.predict(few), atol=1e-4)
    assert [ys.shape[1] for _, ys in of("ar", max_examples=7).fit(X[:13], y[:13]).prompts_] == [7, 6]


def test_queries_are_asked_a_part_at_a_time(of, monkeypatch):
    X, y = table(30)
    whole = of().fit(X, y).predict(X)
    monkeypatch.setattr(regressor, "QUERIES", 7)
    numpy.testing.assert_allclose(of().fit(X, y).predict(X), whole, rtol=1e-10)


def test_bad_tables(of):
    X, y = table()
    new = table(5, seed=1)[0]
    answers = of().fit(X, y).predict(new)
    numpy.testing.assert_allclose(of().fit(1e6 * X, 1e6 * y).predict(1e6 * new), 1e6 * answers, rtol=1e-6)
    numpy.testing.assert_allclose(of().fit(X + 1e6, y - 1e6).predict(new + 1e6), answers - 1e6, rtol=1e-6)
    twice = of().fit(numpy.repeat(X, 2, axis=0), numpy.repeat(y, 2)).predict(new)
    assert numpy.isfinite(twice).all()
    numpy.testing.assert_array_equal(of().fit(X[:1], y[:1]).predict(new), y[:1].repeat(5))
    constant = of().fit(X, numpy.full(12, 3.5))
    numpy.testing.assert_array_equal(constant.predict(new), numpy.full(5, 3.5))
    assert constant.score(X, numpy.full(12, 3.5)) == 1 and constant.score(X, numpy.zeros(12)) == 0
    one = of().fit(X[:, :1], y)
    assert one.predict(new[:, :1]).shape == (5,)
    more = of().fit(numpy.column_stack([X, numpy.full(12, 0.1)]), y).predict(numpy.column_stack([new, new[:, 0]]))
    numpy.testing.assert_allclose(more, answers, rtol=1e-9, err_msg="a constant column says nothing")


def test_more_features_than_dimensions(of):
    X, y = table(40, 7)
    with pytest.raises(ValueError, match=r"got 7 features, allowed: at most the model's 4 dimensions; .*correlated"):
        of().fit(X, y)
    related = numpy.abs([numpy.corrcoef(column, y)[0, 1] for column in X.T])
    kept = numpy.sort(numpy.argsort(related)[3:])
    answers = of(features="correlated").fit(1e3 * X, y).predict(1e3 * X)
    numpy.testing.assert_allclose(answers, of().fit(X[:, kept], y).predict(X[:, kept]), rtol=1e-6)
    with pytest.raises(ValueError, match=r"features: got 'corelated'.*did you mean correlated"):
        of(features="corelated").fit(X, y)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda X, y: (numpy.where(X > 1, numpy.nan, X), y), "Input X contains NaN"),
        (lambda X, y: (X, numpy.where(y > 1, numpy.nan, y)), "Input y contains NaN"),
        (lambda X, y: (numpy.where(X > 1, numpy.inf, X), y), "Input X contains infinity"),
        (lambda X, y: (numpy.where(X > 1, "red", X.astype(str)), y), "could not convert string to float"),
        (lambda X, y: (X, y[:3]), "one value for each row"),
        (lambda X, y: (X[:0], y[:0]), "got 0 samples"),
        (lambda X, y: (X[0], y), "Reshape your data"),
    ],
)
def test_what_is_refused_is_one_line(of, spoil, words):
    with pytest.raises(ValueError, match=words) as error:
        of().fit(*spoil(*table()))
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="not fitted"):
        of().predict(table()[0])


def test_regressor_passes_scikit_learn_s_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    excluded = {
        "check_supervised_y_2d": "a column of labels is taken as it is, without scikit-learn's own class of warning",
    }
    results = checks.check_estimator(Regressor(), on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert set(failed) == set(excluded), {k: repr(v)[:300] for k, v in failed.items() if k not in excluded}
    assert sum(r["status"] == "passed" for r in results) > 30


def test_the_model_that_comes_with_minicl():
    """On a table that it was not trained on it is better than the mean, and takes the rows in any order."""
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_diabetes(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(X))
    learn, test = order[:40], order[40:]
    model = Regressor().fit(X[learn], y[learn])
    answers = model.predict(X[test])
    assert ((answers - y[test]) ** 2).mean() < 0.8 * ((y[learn].mean() - y[test]) ** 2).mean()
    shuffled = Regressor().fit(X[learn[::-1]], y[learn[::-1]]).predict(X[test])
    assert numpy.abs(shuffled - answers).max() < 1e-4 * y.std()
    assert sum(f.stat().st_size for f in regressor.DEFAULT.rglob("*") if f.is_file()) < 4e6


def test_an_installed_package_carries_the_model():
    carried = {file for pattern in _package_data() for file in regressor.DEFAULT.parent.parent.glob(pattern)}
    needed = {regressor.DEFAULT / "config.json", *(regressor.DEFAULT / "checkpoints").iterdir()}
    assert len(needed) == 2 and needed <= carried


def _package_data():
    setup = (regressor.DEFAULT.parent.parent.parent / "setup.py").read_text(encoding="utf-8")
    return re.findall(r'"(models/[^"]+)"', setup)


def test_labels_in_a_column_and_absurd_rows(monkeypatch):
    """A column of labels scores as a row of them does; one absurd row does not spoil the answers to others."""
    X = numpy.random.default_rng(0).normal(size=(20, 3))
    y = X @ [1.0, 2.0, 3.0]
    model = Regressor(views=1).fit(X, y[:, None])
    assert model.score(X, y[:, None]) == model.score(X, y) > 0.5
    usual = model.predict(X[:1])
    numpy.testing.assert_allclose(model.predict([[1e160, 0, 0], X[0]])[1:], usual)
    for scale in (1e200, 1e-200):
        again = Regressor(views=1).fit(scale * X, scale * y).predict(scale * X[:1])
        numpy.testing.assert_allclose(again / scale, usual, rtol=1e-6)
    with pytest.raises(ValueError, match="seed"):
        Regressor(seed=-1).fit(X, y)


class Frame:
    """What a data frame is to others: named columns, and an array of their values."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)


def test_columns_of_a_data_frame_must_stay_in_their_order():
    X, y = table()
    model = Regressor(views=1).fit(Frame(X, ["a", "b", "c"]), y)
    usual = model.predict(X)
    numpy.testing.assert_array_equal(model.predict(Frame(X, ["a", "b", "c"])), usual)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(Frame(X[:, ::-1], ["c", "b", "a"]))
