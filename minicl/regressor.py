"""A trained run as an estimator with scikit-learn's conventions, which scikit-learn is not needed for."""

import numpy
import torch
from numpy.typing import ArrayLike

from minicl.checks import InputError
from minicl.runs import load


class Regressor:
    """`Regressor(run).fit(X, y).predict(X)`: fitting remembers the examples, predicting puts them into the prompt.

    Fewer features than the model's dimensions are padded with zeros; more are refused. `trust` lets code run that came
    with the run's folder: a mask or a task of somebody's own.
    """

    _estimator_type = "regressor"

    def __init__(self, run: str, step: int | None = None, trust: bool = False):
        self.run = run
        self.step = step
        self.trust = trust

    def get_params(self, deep: bool = True) -> dict:
        return {"run": self.run, "step": self.step, "trust": self.trust}

    def set_params(self, **params) -> "Regressor":
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"parameter: got {name!r}, allowed: {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> "Regressor":
        if y is None:
            raise ValueError("this Regressor requires y to be passed, but the target y is None")
        X, y = _matrix(X), numpy.asarray(y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1 or len(y) != len(X):
            raise ValueError(f"y: got shape {y.shape}, allowed: ({len(X)},), one value for each row of X")
        y = _numbers("y", y)
        if len(X) == 0:
            raise ValueError("X: got 0 samples, allowed: at least 1")
        self.model_ = load(self.run, self.step, trust=self.trust)
        most = self.model_.config.n_dims
        if X.shape[1] > most:
            raise InputError(f"X: got {X.shape[1]} features, allowed: at most the {most} dimensions of {self.run}")
        self.n_features_in_ = X.shape[1]
        self.X_, self.y_ = self._pad(X), torch.tensor(y, dtype=self._dtype)
        return self

    def predict(self, X: ArrayLike) -> numpy.ndarray:
        if not hasattr(self, "model_"):
            raise _not_fitted(self)
        X = _matrix(X)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but Regressor is expecting {self.n_features_in_} features as input"
            )
        with torch.inference_mode():
            parts = self._pad(X).split(256)  # queries do not see each other, so any number at a time will do
            answers = [self.model_(self.X_[None], self.y_[None], part[None]).query[0] for part in parts]
        return torch.cat(answers).double().numpy()

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """The share of y's variance that is explained (R²)."""
        y = numpy.asarray(y, dtype=float)
        return 1 - ((y - self.predict(X)) ** 2).sum() / ((y - y.mean()) ** 2).sum()

    def _pad(self, X):
        missing = self.model_.config.n_dims - X.shape[1]
        return torch.tensor(numpy.pad(X, ((0, 0), (0, missing))), dtype=self._dtype)

    @property
    def _dtype(self):
        return self.model_.read_in.weight.dtype

    def __repr__(self):
        given = {k: v for k, v in self.get_params().items() if k == "run" or v}
        return f"Regressor({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def __sklearn_tags__(self):
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            input_tags=InputTags(),
            regressor_tags=RegressorTags(poor_score=True),
        )


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
    values = values.astype(float)
    if not numpy.isfinite(values).all():
        raise ValueError(f"{what}: got NaN or infinity, allowed: finite numbers")
    return values


def _not_fitted(estimator):
    message = f"this {type(estimator).__name__} is not fitted yet: call fit before predict"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(message)
    return NotFittedError(message)
