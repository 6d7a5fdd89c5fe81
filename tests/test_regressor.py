"""A run as an estimator: what it answers, and scikit-learn's own checks."""

import numpy
import pytest
import torch
from conftest import loud_model

from minicl import Regressor


def test_regressor(runs):
    X, y = numpy.random.default_rng(0).normal(size=(4, 2)), numpy.arange(4.0)
    model = Regressor(str(runs / "invicl")).fit(X, y)
    padded = numpy.pad(X, ((0, 0), (0, 1)))
    tensors = (torch.tensor(v, dtype=torch.float32)[None] for v in (padded, y, padded))
    numpy.testing.assert_allclose(model.predict(X), model.model_(*tensors).query[0].detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="got 4 features, allowed: at most the 3 dimensions"):
        Regressor(str(runs / "invicl")).fit(numpy.zeros((2, 4)), [0, 1])
    with pytest.raises(ValueError, match="not fitted"):
        Regressor(str(runs / "invicl")).predict(X)
    assert Regressor("a").set_params(step=3).get_params() == {"run": "a", "step": 3, "trust": False}


class Wide(Regressor):
    """The same estimator, to be given a model that is wide enough for the data of scikit-learn's checks."""

    def __init__(self, run="wide", step=None, trust=False):
        super().__init__(run, step, trust)


def test_regressor_passes_scikit_learn_s_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    wide = loud_model("invicl", n_dims=20, n_layer=1, n_head=1, n_embd=8)  # float64, as the checks' tolerances are

    import minicl.regressor

    original, minicl.regressor.load = minicl.regressor.load, lambda run, step, trust: wide
    excluded = {
        "check_supervised_y_2d": "a column of labels is taken as it is, without scikit-learn's own class of warning",
    }
    try:
        results = checks.check_estimator(Wide(), on_fail=None, on_skip=None)
    finally:
        minicl.regressor.load = original
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert set(failed) == set(excluded), {k: repr(v)[:300] for k, v in failed.items() if k not in excluded}
    assert sum(r["status"] == "passed" for r in results) > 30
