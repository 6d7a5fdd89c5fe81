"""Intervals and means over seeds."""

import numpy

from minicl import stats
from minicl.stats import bootstrap


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    random = numpy.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap(random.exponential(size=(60, 1)), seed=trial)
        hits += bool(low[0] <= 1 <= high[0])
    assert 160 <= hits <= 196  # of 200, at 90 %


def test_the_interval_in_words_is_the_constant(monkeypatch):
    assert stats.percent() == "90 %"
    monkeypatch.setattr(stats, "INTERVAL", 0.5)
    errors = numpy.random.default_rng(0).exponential(size=(50, 1))
    low, high = bootstrap(errors)
    assert stats.percent() == "50 %" and stats.basis()["interval"] == 0.5
    monkeypatch.setattr(stats, "INTERVAL", 0.9)
    assert bootstrap(errors)[0] < low < high < bootstrap(errors)[1]
