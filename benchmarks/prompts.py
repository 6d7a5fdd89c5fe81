"""How much faster batched samplers and baselines are than loops over prompts, as ratios measured in one run.

    python benchmarks/prompts.py [--threads 1] [--repeats 10] [--json]

A `torch` loop does one prompt at a time with tensor operations, as the 2022 code's samplers do. A `python` loop does
one point at a time, as one writes a tree down first. The loops only draw: tests check that the numbers are right.
"""

import argparse
import json
import statistics
import warnings

import numpy
import torch
from sklearn.linear_model import Lasso

from minicl.baselines import get_baseline
from minicl.rng import Random
from minicl.tasks import get_task
from minicl.timing import ratio, take_turns

B, POINTS, D = 64, 101, 20
SPARSE, TREE = get_task("sparse_linear"), get_task("decision_tree")


def sparse_loop():
    for _ in range(B):
        xs, w = torch.randn(POINTS, D), torch.zeros(D)
        w[torch.randperm(D)[:3]] = torch.randn(3)
        xs @ w


def sparse_loop_python(random=numpy.random.default_rng(0)):  # noqa: B008
    for _ in range(B):
        w = dict(zip(random.choice(D, 3, replace=False), random.normal(size=3), strict=True))
        for _ in range(POINTS):
            x = random.normal(size=D)
            sum(w[i] * x[i] for i in w)


def tree_loop():
    for _ in range(B):
        xs, nodes, leaves = torch.randn(POINTS, D), torch.randint(D, (15,)), torch.randn(16)
        node = torch.zeros(POINTS, dtype=torch.long)
        for _ in range(4):
            node = 2 * node + 1 + (xs.gather(1, nodes[node].unsqueeze(1))[:, 0] > 0)
        leaves[node - 15]


def tree_loop_python(random=numpy.random.default_rng(0)):  # noqa: B008
    for _ in range(B):
        nodes, leaves = random.integers(D, size=15), random.normal(size=16)
        for _ in range(POINTS):
            x, node = random.normal(size=D), 0
            while node < 15:
                node = 2 * node + (2 if x[nodes[node]] > 0 else 1)
            leaves[node - 15]


def functions_only(task):
    """Draw the functions and evaluate them at given inputs: without the normal numbers, which both sides must draw."""
    xs = torch.randn(B, POINTS, D)
    return lambda: task.function(Random(0, B))(xs)


def sparse_functions_loop(xs=torch.randn(B, POINTS, D)):  # noqa: B008
    for x in xs:
        w = torch.zeros(D)
        w[torch.randperm(D)[:3]] = torch.randn(3)
        x @ w


def tree_functions_loop(xs=torch.randn(B, POINTS, D)):  # noqa: B008
    for x in xs:
        nodes, leaves, node = torch.randint(D, (15,)), torch.randn(16), torch.zeros(POINTS, dtype=torch.long)
        for _ in range(4):
            node = 2 * node + 1 + (x.gather(1, nodes[node].unsqueeze(1))[:, 0] > 0)
        leaves[node - 15]


def baseline_races():
    p = SPARSE.sample(B, 41, seed=0)
    X, Y = p.xs.double().numpy(), p.ys.double().numpy()

    def lasso_loop(alpha):
        for x, y in zip(X, Y, strict=True):
            for n in range(1, 41):
                Lasso(alpha=alpha, fit_intercept=False).fit(x[:n], y[:n])

    def least_squares_loop():
        for x, y in zip(X, Y, strict=True):
            for n in range(1, 41):
                numpy.linalg.lstsq(x[:n], y[:n], rcond=None)[0] @ x[n]

    exact = get_baseline("least_squares")
    yield "least squares, 64 prompts × 40 lengths, numpy loop", least_squares_loop, lambda: exact.curve(p.xs, p.ys)
    for alpha in (1, 0.1, 0.01, 0.001):
        lasso = get_baseline("lasso", alpha=alpha)
        name = f"lasso alpha={alpha}, 64 prompts × 40 lengths, scikit-learn loop"
        yield name, lambda alpha=alpha: lasso_loop(alpha), lambda lasso=lasso: lasso.curve(p.xs, p.ys)


def sampler_races():
    for task, loop, python, functions in (
        (SPARSE, sparse_loop, sparse_loop_python, sparse_functions_loop),
        (TREE, tree_loop, tree_loop_python, tree_functions_loop),
    ):
        yield f"{task.name} sampler, 64 × 101, torch loop", loop, lambda task=task: task.sample(B, POINTS)
        yield f"{task.name} sampler, 64 × 101, python loop", python, lambda task=task: task.sample(B, POINTS)
        yield f"{task.name} functions only, torch loop", functions, functions_only(task)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--repeats", type=int, default=10, help="turns (10)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")  # scikit-learn's Lasso warns where it stops before it has converged
    records = []
    for name, slow, fast in (*sampler_races(), *baseline_races()):
        seconds = take_turns({"loop": slow, "minicl": fast}, args.repeats)
        record = {"race": name, **ratio(seconds["loop"], seconds["minicl"])}
        record |= {f"{who}_ms": 1e3 * statistics.median(times) for who, times in seconds.items()}
        records.append(record)
        if not args.json:
            print(
                f"{name:<62}{record['loop_ms']:9.1f} ms → {record['minicl_ms']:7.2f} ms   "
                f"{record['ratio']:6.1f}×  ({record['low']:.1f}–{record['high']:.1f})",
                flush=True,
            )
    if args.json:
        print(json.dumps(records))


if __name__ == "__main__":
    main()
