"""Regressor beside scikit-learn's methods on real tables that come inside PyPI packages (see real_tables.py).

    python benchmarks/tables.py train --masks ar,boe,pfn,invicl --seeds 2     # trains what is missing; resumes
    python benchmarks/tables.py measure --only development                    # classical methods; --models for runs
    python benchmarks/tables.py measure --models runs/tables/*                # all tables; keeps what it has measured
    python benchmarks/tables.py report --write docs/tables.md                 # tables and a picture from what is kept

How it is measured, decided before any result:

- 20 splits of each table. A split is a random order of its rows: the first n are given to `fit`, for n = 10, 20, 40, 80
  and 160, and the last ones, at most 500, are predicted, the same ones for every n and method. An n that leaves fewer
  than 40 rows to predict is left out.
- A cell is a table and an n. Its error is the mean over splits of the mean squared error, over the variance of y in the
  whole table. Linear methods and nearest neighbours get standardised columns; all settings are scikit-learn's defaults.
- A method's ratio in a cell is its error over RidgeCV's. The median is over cells, its interval from drawing tables
  with replacement. "Best" is the least error, averaged over n = 10 and 20, of all methods of the report.

Every process works with one thread. Numbers are kept in results/tables, one file for each method.
"""

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path

import numpy
import real_tables
import tables_report
import torch
from sklearn import dummy, ensemble, linear_model, neighbors, pipeline, preprocessing
from tables_report import ROWS
from threadpoolctl import threadpool_limits

from minicl import Regressor, runs, train
from minicl.checkpoint import checkpoints, write_atomically
from minicl.checks import InputError, check, choose
from minicl.cli import Parser
from minicl.text import names
from minicl.training import Failure

SPLITS, MOST_TEST, LEAST_TEST = 20, 500, 40
KEPT = Path(__file__).parent.parent / "results" / "tables"


def scaled(method):
    return pipeline.make_pipeline(preprocessing.StandardScaler(), method)


CLASSICAL = {
    "mean": dummy.DummyRegressor,
    "least squares": lambda: scaled(linear_model.LinearRegression()),
    "RidgeCV": lambda: scaled(linear_model.RidgeCV()),
    "LassoCV": lambda: scaled(linear_model.LassoCV()),
    "kNN": lambda: scaled(neighbors.KNeighborsRegressor()),
    "random forest": lambda: ensemble.RandomForestRegressor(random_state=0),
    "gradient boosting": lambda: ensemble.GradientBoostingRegressor(random_state=0),
}


def splits(y: numpy.ndarray) -> Iterable[tuple[numpy.ndarray, numpy.ndarray]]:
    """(rows to learn from, rows to predict) of every split; the first n of the former are given to `fit`."""
    most = max(n for n in ROWS if len(y) - n >= LEAST_TEST)
    for split in range(SPLITS):
        order = numpy.random.default_rng(split).permutation(len(y))
        yield order[:most], order[most:][:MOST_TEST]


def errors(make: Callable, X: numpy.ndarray, y: numpy.ndarray) -> dict[str, list[float]]:
    """{n: errors of the splits} of a method on a table."""
    measured = {}
    for learn, test in splits(y):
        for n in (n for n in ROWS if n <= len(learn)):
            answers = make().fit(X[learn[:n]], y[learn[:n]]).predict(X[test])
            error = float(((answers - y[test]) ** 2).mean() / y.var())
            measured.setdefault(str(n), []).append(error)
    return measured


def measure(
    method: str, make: Callable, tables: Iterable[str], depends_on: dict, folder: Path, about: Callable = dict
) -> None:
    """Measure a method on the tables that its file lacks; the file is written after each. `about()` is kept beside."""
    file = folder / f"{method.replace(' ', '-').lower()}.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if kept.get("depends_on") != depends_on:
        kept = {"method": method, "depends_on": depends_on, **about(), "tables": {}}
    for table in tables:
        if table not in kept["tables"]:
            print(f"{method}: {table}", file=sys.stderr, flush=True)
            kept["tables"][table] = errors(make, *real_tables.read(table))
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(file, (json.dumps(kept) + "\n").encode())


def measure_all(args) -> None:
    groups = {"development": real_tables.DEVELOPMENT, "test": real_tables.TEST, "all": real_tables.TABLES}
    tables = groups.get(args.only) or [choose("only", t, (*real_tables.TABLES, *groups)) for t in names(args.only)]
    for method in names(args.methods) if args.methods else () if args.models else CLASSICAL:
        make = CLASSICAL[choose("methods", method, tuple(CLASSICAL))]
        measure(method, make, tables, {"splits": SPLITS}, args.out)
    for run in args.models or ():
        config = runs.read_config(run)
        step, file = next(iter(checkpoints(run).items()), (0, None))
        check(
            step == config.train.steps, "models", f"{run} at step {step}", f"runs that finished: {config.train.steps}"
        )
        weights = hashlib.sha256(file.read_bytes()).hexdigest()
        given = {"splits": SPLITS, "weights": weights, "mask": config.method, "seed": config.train.seed}
        given |= {"views": Regressor().views}
        measure(Path(run).name, partial(Regressor, run), tables, given, args.out, lambda run=run: about_model(run))


@torch.inference_mode()
def about_model(run: str, prompts: int = 512) -> dict[str, dict[str, float]]:
    """{n: error over that of answering 0} of a model on prompts of its own task, which no model was trained on."""
    (model, config), measured = runs.load_run(run), {}
    for n in (n for n in ROWS if n <= config.data.examples):
        p = config.task.sample(prompts, n + 16, seed=(2,))
        answers = model(p.xs[:, :n], p.ys[:, :n], p.xs[:, n:]).query
        measured[str(n)] = float((answers - p.targets[:, n:]).square().mean()) / config.task.normaliser
    return {"synthetic": measured}


def train_all(args) -> None:
    """One run after the other, each up to its last step; what is finished is passed over."""
    failed = []
    for seed, mask in product(range(args.seeds), names(args.masks)):
        try:
            train("tables", args.runs / f"{mask}-{seed}", mask=mask, seed=seed, threads=1)
        except Failure as failure:
            print(f"{mask}, seed {seed}: {failure}", file=sys.stderr)
            failed.append(f"{mask}-{seed}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("train", help="train preset tables under several masks")
    command.add_argument("--masks", default="ar,boe,pfn,invicl", help="separated by commas (ar,boe,pfn,invicl)")
    command.add_argument("--seeds", type=int, default=2, help="runs of each mask (2)")
    command.add_argument("--runs", type=Path, default=Path("runs/tables"), help="folder of the runs (runs/tables)")
    command.set_defaults(do=train_all)
    command = commands.add_parser("measure", help="measure methods and models, and keep the numbers")
    command.add_argument("--only", default="all", help="development, test, all, or names of tables (all)")
    command.add_argument("--methods", help="classical methods (all; none if models are given)")
    command.add_argument("--models", nargs="+", metavar="RUN", help="run folders")
    command.set_defaults(do=measure_all)
    command = commands.add_parser("report", help="tables and a picture from the numbers that are kept")
    command.add_argument("--only", default="test", help="development, test or all (test)")
    command.add_argument("--write", type=Path, metavar="FILE", help="replace the results in this Markdown file")
    command.add_argument("--plot", metavar="FILE", help="draw the ratios")
    command.add_argument("--partial", action="store_true", help="only the tables on which all methods were measured")
    command.set_defaults(do=tables_report.run)
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, default=KEPT, help="folder of the numbers (results/tables)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # LassoCV warns where it stops before it has converged
    try:
        with threadpool_limits(1):
            args.do(args)
    except InputError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # what is done is kept: the same command goes on from there
        sys.exit(130)


if __name__ == "__main__":
    main()
