"""The benchmark on real tables: its splits, what it keeps, and what its report makes of numbers."""

import json
import sys
import types

import numpy
import pytest

pytest.importorskip("sklearn")

import real_tables
import tables as benchmark
import tables_report as report

import minicl
from minicl.checkpoint import checkpoints
from minicl.checks import InputError


def test_splits_are_nested_and_predict_rows_that_no_method_saw():
    y = numpy.arange(230.0)
    first, again = (list(benchmark.splits(y)) for _ in range(2))
    assert len(first) == 20
    for (learn, test), (same, _) in zip(first, again, strict=True):
        assert (learn == same).all() and len(learn) == 160 and len(test) == 70 and not set(learn) & set(test)
    assert not (first[0][0] == first[1][0]).all()
    assert {len(learn) for learn, _ in benchmark.splits(y[:120])} == {80}, "at least 40 rows are left to predict"
    assert {len(test) for _, test in benchmark.splits(numpy.arange(5000.0))} == {500}


def test_what_was_measured_is_kept(tmp_path, capsys):
    made = []

    def make():
        made.append(1)
        return benchmark.CLASSICAL["mean"]()

    for times in (1, 2):
        benchmark.measure("mean", make, ["diabetes"], {"splits": 20}, tmp_path)
        assert len(made) == 100, times
    kept = json.loads((tmp_path / "mean.json").read_text())
    assert {n: len(e) for n, e in kept["tables"]["diabetes"].items()} == dict.fromkeys(
        ["10", "20", "40", "80", "160"], 20
    )
    assert all(0.95 < numpy.mean(e) < 1.2 for e in kept["tables"]["diabetes"].values())
    benchmark.measure("mean", make, ["diabetes"], {"splits": 20, "weights": "others"}, tmp_path)
    assert len(made) == 200, "numbers of other weights are not taken"


def test_a_run_that_is_not_finished_is_refused(tmp_path, monkeypatch, capsys):
    settings = {
        "n_dims": 3,
        "max_examples": 6,
        "examples": 4,
        "n_layer": 1,
        "n_embd": 8,
        "n_head": 1,
        "batch_size": 4,
        "fewest": 1,
    }
    run = tmp_path / "run"
    minicl.train("tables", run, steps=2, warmup=1, keep=(1,), threads=1, **settings)
    next(iter(checkpoints(run).values())).unlink()  # as if it had been stopped after step 1
    monkeypatch.setattr(sys, "argv", ["tables.py", "measure", "--models", str(run), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        benchmark.main()
    assert stop.value.code == 2 and "at step 1, allowed: runs that finished: 2" in capsys.readouterr().err


def test_rules_of_reading(monkeypatch):
    columns = {
        "id": ["1", "2", "3"], "size": ["1.5", "NA", "2"], "sold": ["yes", "no", "yes"], "town": ["a", "b", "c"],
        "price": ["1", "2", "4"],
    }  # fmt: skip
    monkeypatch.setitem(real_tables.READERS, "made up", lambda path: columns)
    monkeypatch.setitem(real_tables.TABLES, "houses", real_tables.Source("made up", "", "price", "id"))
    monkeypatch.setattr(real_tables, "FEWEST_ROWS", 2)
    X, y = real_tables.read("houses")
    assert X.tolist() == [[1.5, 1], [2, 1]] and y.tolist() == [1, 4]
    assert len(real_tables.DEVELOPMENT) == 5 and len(real_tables.TEST) >= 20
    assert not set(real_tables.DEVELOPMENT) & set(real_tables.TEST)


CELLS = [(table, n) for table in ("a", "b", "c") for n in (10, 20, 80, 160)]


def made_up(value):
    return {cell: value(*cell) for cell in CELLS}


def test_figures_of_the_report():
    methods = {
        "mean": made_up(lambda table, n: 1.0),
        "RidgeCV": made_up(lambda table, n: 0.5),
        "pfn": made_up(lambda table, n: {"a": 0.4, "b": 0.45, "c": 0.6}[table] + (0.6 if n == 160 else 0)),
    }
    ratio, low, high = report.median_ratio(methods["pfn"], methods["RidgeCV"], [c for c in CELLS if c[1] <= 80])
    assert (ratio, low, high) == pytest.approx((0.9, 0.8, 1.2))
    assert report.best_with_few(methods, CELLS) == pytest.approx({"mean": 0, "RidgeCV": 1 / 3, "pfn": 2 / 3})
    text = "\n".join(report.summary(methods, CELLS))
    assert "| pfn | 0.900 (0.800–1.200) |" in text and "| 8.3% | 67% |" in text, "one of 12 cells: 1.2 at n = 160"


def test_paired_test():
    assert report.sign_flips(numpy.full(20, 0.1)) < 0.001
    assert report.sign_flips(numpy.array([1.0, -1.0] * 10)) > 0.5


def test_a_report_is_written_between_its_marks(tmp_path, monkeypatch):
    random, numbers = numpy.random.default_rng(0), tmp_path / "numbers"
    numbers.mkdir()
    for method, mask in (("mean", None), ("RidgeCV", None), ("pfn-0", "pfn"), ("pfn-1", "pfn"), ("ar-0", "ar")):
        tables = {"diabetes": {n: random.uniform(size=20).tolist() for n in ("10", "20", "80")}}
        about = {"depends_on": {"mask": mask}, "synthetic": {"10": 0.3}} if mask else {"depends_on": {}}
        (numbers / f"{method}.json").write_text(json.dumps({"method": method, **about, "tables": tables}))
    (tmp_path / "doc.md").write_text("before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
    picture = tmp_path / "p.png"
    args = types.SimpleNamespace(
        only="development", out=numbers, write=tmp_path / "doc.md", plot=str(picture), partial=False
    )
    with pytest.raises(InputError, match="without 4 of 5 tables"):
        report.run(args)
    args.partial = True
    report.run(args)
    text = (tmp_path / "doc.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| pfn | 2 | 0.3000 |" in text and "| ar | pfn |" in text.replace("| pfn | ar |", "| ar | pfn |")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_slips_are_one_line(monkeypatch, tmp_path, capsys):
    for argv, words in (
        (["report"], "without RidgeCV, mean"),
        (["measure", "--only", "diabets"], "did you mean diabetes"),
    ):
        monkeypatch.setattr(sys, "argv", ["tables.py", *argv, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as stop:
            benchmark.main()
        assert stop.value.code == 2
        assert len((line := capsys.readouterr().err).splitlines()) == 1 and words in line
