"""A trained run as an estimator with scikit-learn's conventions, which scikit-learn is not needed for.

Whatever the table, the model is shown what it was trained on: columns with mean 0 and variance 1 by the rows that were
given to `fit`, labels of the size that its task has, and not many more rows than in training. It is shown the table in
several views, which say the same: with columns in another order, and some of them, or the labels, with the other sign.
A perfect model would answer all of them alike; the mean of a real one's answers is better than each of them.
"""

import math
from pathlib import Path

import numpy
import torch
from numpy.typing import ArrayLike

from minicl.checks import InputError, check_int, choose
from minicl.masks import TABLES
from minicl.runs import load_run

DEFAULT = Path(__file__).parent / "models" / "tables"  # what Regressor() uses
LONGER = 4  # prompts may be so many times as long as in training; more rows are dealt out to several prompts
QUERIES = 256  # that are asked at once, in each view
FAR = 1e6  # standard deviations: what is further away is shown there, so that no answer overflows
FEATURES = ("all", "correlated")


class Regressor:
    """`Regressor().fit(X, y).predict(X)`: fitting remembers the examples, predicting puts them into the prompt.

    `run` is a run folder or a checkpoint; None is the model that comes with minicl. Columns and labels are standardised
    by the rows given to `fit`. With fewer columns than the model's dimensions the rest is 0. With more, `features`
    decides: "all" refuses, "correlated" keeps those that correlate most with y. The answers to several `views` of the
    table are averaged; the first shows its columns as they are. The order of the rows does not matter: in each view
    they are put into one that depends on their values and on `seed`, which a mask that is not invariant needs. Rows
    beyond four times the training length are dealt out to several prompts, whose answers are averaged too. `trust` lets
    code run that came with the run's folder: a mask or a task of somebody's own.
    """

    _estimator_type = "regressor"

    def __init__(
        self,
        run: str | Path | None = None,
        step: int | None = None,
        trust: bool = False,
        features: str = "all",
        views: int = 4,
        seed: int = 0,
    ):
        self.run = run
        self.step = step
        self.trust = trust
        self.features = features
        self.views = views
        self.seed = seed

    def get_params(self, deep: bool = True) -> dict:
        return {name: getattr(self, name) for name in ("run", "step", "trust", "features", "views", "seed")}

    def set_params(self, **params) -> "Regressor":
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"parameter: got {name!r}, allowed: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> "Regressor":
        if y is None:
            raise ValueError("this Regressor requires y to be passed, but the target y is None")
        names, X = _names(X), _matrix(X)
        y = _labels(y, len(X))
        if len(X) == 0:
            raise ValueError("X: got 0 samples, allowed: at least 1")
        choose("features", self.features, FEATURES)
        check_int("views", self.views, least=1)
        check_int("seed", self.seed, least=0)
        model, config = load_run(DEFAULT if self.run is None else self.run, self.step, trust=self.trust)
        self.model_ = model.double()  # so that rounding shows neither which rows are asked together, nor their order
        self.n_features_in_, self._names = X.shape[1], names
        (self.mean_, self.scale_), (self.y_mean_, self.y_scale_) = _moments(X), _moments(y)
        self.y_size_, random = config.task.label_size, numpy.random.default_rng(self.seed)
        self.columns_, self.signs_, self.y_signs_ = self._draw_views(self._keep(X, y), random)
        most = config.model.max_examples if self.model_.positions in TABLES else LONGER * config.data.examples
        self.prompts_ = self._deal(X, y, math.ceil(len(X) / most), random)
        return self

    def _keep(self, X, y):
        """The columns that enter the prompt, in their order. A constant one says nothing."""
        most, kept = self.model_.config.n_dims, numpy.flatnonzero(self.scale_)
        if len(kept) <= most:
            return kept
        if self.features == "all":
            offer = f'Regressor(features="correlated") keeps the {most} that correlate most with y'
            raise InputError(f"X: got {len(kept)} features, allowed: at most the model's {most} dimensions; {offer}")
        related = numpy.abs((y - self.y_mean_) @ ((X - self.mean_) * _inverse(self.scale_)))[kept]
        return numpy.sort(kept[numpy.argsort(-related, kind="stable")[:most]])

    def _draw_views(self, kept, random):
        """For each view the columns (V, k) and their signs (V, k), and the sign of the labels (V, 1)."""
        signs = random.choice([-1.0, 1.0], size=(self.views, len(kept) + 1))
        columns = numpy.stack([random.permutation(kept) for _ in range(self.views)])
        signs[0], columns[0] = 1, kept
        return columns, signs[:, 1:], signs[:, :1]

    def _deal(self, X, y, parts, random):
        """The prompts: (V, n, d) and (V, n) of each. The order of the rows of a table does not change them."""
        sorted_rows = numpy.lexsort((*X.T, y))
        orders = numpy.stack([sorted_rows[random.permutation(len(X))] for _ in range(self.views)])
        xs, view = self._shown(X), numpy.arange(self.views)[:, None]
        ys = torch.tensor(self.y_signs_ * self.y_size_ * (y - self.y_mean_) * _inverse(self.y_scale_), dtype=xs.dtype)
        return [(xs[view, rows], ys[view, rows]) for rows in (orders[:, part::parts] for part in range(parts))]

    def _shown(self, X):
        """(V, rows, d): rows as the model sees them in each view."""
        X = numpy.clip((X - self.mean_) * _inverse(self.scale_), -FAR, FAR)
        shown = X[:, self.columns_].swapaxes(0, 1) * self.signs_[:, None]
        missing = self.model_.config.n_dims - shown.shape[2]
        return torch.tensor(numpy.pad(shown, ((0, 0), (0, 0), (0, missing))), dtype=torch.double)

    def predict(self, X: ArrayLike) -> numpy.ndarray:
        if not hasattr(self, "model_"):
            raise _not_fitted(self)
        names, X = _names(X), _matrix(X)
        if names and self._names and names != self._names:
            raise ValueError("The feature names should match those that were passed during fit, in the same order")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but Regressor is expecting {self.n_features_in_} features as input"
            )
        queries = self._shown(X).split(QUERIES, dim=1)  # they do not see each other: any number at a time will do
        with torch.inference_mode():
            answers = sum(torch.cat([self.model_(*p, part).query for part in queries], dim=1) for p in self.prompts_)
        mean = (answers.numpy() * self.y_signs_).mean(0) / len(self.prompts_)
        return self.y_mean_ + self.y_scale_ / self.y_size_ * mean

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """The share of y's variance that is explained (R²); of a constant y 1 if it is met exactly, else 0."""
        answers = self.predict(X)
        y = _labels(y, len(answers))
        rest, all_of_it = ((y - answers) ** 2).sum(), ((y - y.mean()) ** 2).sum()
        return float(1 - rest / all_of_it) if all_of_it else float(rest == 0)

    def __repr__(self):
        usual = Regressor().get_params()
        given = {k: v for k, v in self.get_params().items() if v != usual[k]}
        return f"Regressor({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def __sklearn_tags__(self):
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            input_tags=InputTags(),
            regressor_tags=RegressorTags(poor_score=True),
        )


def _moments(values):
    """Mean and standard deviation of each column, the latter 0 where only rounding makes it differ from 0."""
    size = numpy.abs(values).max(0)
    unit = numpy.where(size > 0, size, 1.0)  # squares of very large or very small values would leave float64
    mean, scale = unit * (values / unit).mean(0), unit * (values / unit).std(0)
    return mean, numpy.where(scale > 1e-12 * numpy.abs(mean), scale, 0.0)


def _inverse(scale):
    """1 / scale, and 0 for what is constant."""
    return numpy.divide(1.0, scale, out=numpy.zeros_like(scale), where=scale > 0)


def _names(X):
    """The names of a data frame's columns, if they are all text; else none."""
    names = list(getattr(X, "columns", ()))
    return names if all(isinstance(name, str) for name in names) else []


def _labels(y, n):
    """y as n numbers; a single column will do."""
    y = numpy.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ValueError(f"y: got shape {y.shape}, allowed: ({n},), one value for each row of X")
    return _numbers("y", y)


def _matrix(X):
    if hasattr(X, "toarray"):
        raise TypeError("X: got a sparse matrix, allowed: dense data; convert it with X.toarray()")
    X = numpy.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"X: got {X.ndim} dimension(s), allowed: 2. Reshape your data with X.reshape(-1, 1)")
    if X.shape[1] == 0:
        raise ValueError(f"0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return _numbers("X", X)


def _numbers(what, values):
    if numpy.iscomplexobj(values):
        raise ValueError(f"{what}: Complex data not supported")
    values = values.astype(float)  # text: "could not convert string to float", as in scikit-learn
    if numpy.isnan(values).any():
        raise ValueError(f"Input {what} contains NaN: fill in missing values first, or leave their rows out")
    if not numpy.isfinite(values).all():
        raise ValueError(f"Input {what} contains infinity, or a value too large for float64")
    return values


def _not_fitted(estimator):
    message = f"this {type(estimator).__name__} is not fitted yet: call fit before predict"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(message)
    return NotFittedError(message)
