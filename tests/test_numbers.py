"""The study's numbers: found by what they are, whatever settings minicl has learnt since; and its plan."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from minicl import config, stats
from minicl.cli import main
from minicl.cost import flops, mean_flops
from minicl.schedule import prompt_size
from minicl.study import plan
from minicl.study.compare import compare, tables
from minicl.study.evidence import Evidence, ratio
from minicl.study.figures import figures, make_run, make_runs, measured
from minicl.study.numbers import Shelf

ROOT = Path(__file__).parent.parent


@pytest.fixture
def shelf(tmp_path):
    """The committed numbers, in a copy."""
    shutil.copytree(ROOT / "results" / "study" / "numbers", tmp_path / "out" / "numbers")
    return Shelf(tmp_path / "out", tmp_path / "runs", "study")


def states(shelf, capsys):
    flags = ["study", "--dry-run", "--json", "--out", str(shelf.out), "--runs", str(shelf.folder)]
    assert main(flags) == 0
    return [r["state"] for r in json.loads(capsys.readouterr().out)]


def edit(shelf, change):
    """Change what every stored run says of itself."""
    for file in shelf.store.folder.glob("*.json"):
        content = json.loads(file.read_text())
        if "config" in content["depends_on"]:
            change(content["depends_on"])
            file.write_text(json.dumps(content))


def test_all_numbers_that_are_kept_are_those_of_a_run(shelf, capsys):
    runs = make_runs(shelf.scale, figures(shelf.scale))
    for file in shelf.store.folder.glob("*.json"):
        depends_on = json.loads(file.read_text())["depends_on"]
        if "config" in depends_on:
            assert any(not run.config.differences(depends_on["config"]) for run in runs), f"{file.name}: of no run"
    assert "done" in states(shelf, capsys)


def test_a_new_setting_with_a_default_changes_nothing(shelf, capsys, monkeypatch):
    """A class with one more field, as a later version has; and one field less in what is stored, which is the same."""
    before = states(shelf, capsys)
    more = dataclasses.make_dataclass(
        "TrainConfig", [("dropout", float, config.setting(0.0, "a new one", least=0))], bases=(config.TrainConfig,),
        frozen=True,
    )  # fmt: skip
    monkeypatch.setitem(config.GROUPS, "train", more)
    monkeypatch.setitem(config.GROUP_OF, "dropout", "train")
    run = make_run(shelf.scale, "linear", "ar+blind", 0)
    assert run.config.train.dropout == 0 and run.config.to_json()["train"]["dropout"] == 0
    assert states(shelf, capsys) == before
    settings = {"mask": "ar", "blind_query": True}
    other = dataclasses.replace(run, config=config.Config.make("small", **settings, dropout=0.5))
    assert shelf.read(run) and shelf.read(other) is None


def test_a_setting_that_differs_is_noticed(shelf, capsys):
    edit(shelf, lambda depends_on: depends_on["config"]["train"].update(lr=0.5))
    assert "done" not in states(shelf, capsys)


def test_a_changed_default_is_noticed(shelf, capsys, monkeypatch):
    monkeypatch.setitem(config.PRESETS["small"], "beta2", 0.9)
    assert "done" not in states(shelf, capsys)


def test_another_interval_is_another_result(shelf, capsys, monkeypatch):
    monkeypatch.setattr(stats, "INTERVAL", 0.5)
    assert "done" not in states(shelf, capsys)


def test_more_measures_than_needed_are_enough_and_fewer_are_not(shelf):
    run = make_run(shelf.scale, "linear", "ar+blind", 0)
    assert shelf.read(run) and not run.measures
    assert shelf.read(dataclasses.replace(run, measures=frozenset({"order"}))) is None
    full = make_run(shelf.scale, "linear", "ar", 0)
    assert shelf.read(dataclasses.replace(full, measures=frozenset({"shifts"})))


def test_a_begun_run_is_found_by_its_settings(shelf):
    run = make_run(shelf.scale, "linear", "ar", 0)
    folder = shelf.training(run)
    begun = folder.with_name("linear-ar-0-00000000")
    begun.mkdir(parents=True)
    stored = run.config.to_json()
    del stored["train"]["clip"], stored["model"]["blind_query"]
    (begun / "config.json").write_text(json.dumps(stored))
    assert shelf.training(run) == folder, "its clip is not the default"
    stored["train"]["clip"] = 1.0
    (begun / "config.json").write_text(json.dumps(stored))
    assert shelf.training(run) == begun, "the rest is read with today's defaults"


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "3", '{"curv', '{"depends_on": 0, "result": {}}', '{"depends_on": {"measured": 1}, "result": 2}'],
)
def test_numbers_that_are_not_whole_are_refused_and_kept(tmp_path, capsys, content):
    shelf = Shelf(tmp_path, tmp_path, "smoke")
    run = make_run(shelf.scale, "linear", "ar", 0)
    file = shelf.store.file(shelf.name(run), shelf.depends_on(run))
    file.parent.mkdir()
    assert shelf.read(run) is None
    file.write_text(content)
    with pytest.raises(SystemExit) as exit:
        main(["study", "--scale", "smoke", "--only", "5", "--out", str(tmp_path), "--runs", str(tmp_path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert exit.value.code == 2 and file.name in line and "restore it" in line
    assert file.read_text() == content


@pytest.mark.parametrize("result", [{}, [], 3, {"curves": [{}]}, {"curves": [{"step": 16}], "seconds": 1}])
def test_results_that_lack_something_are_refused(tmp_path, capsys, result):
    shelf = Shelf(tmp_path, tmp_path, "smoke")
    run = make_run(shelf.scale, "linear", "ar", 0)
    shelf.store.write(shelf.name(run), shelf.depends_on(run), result)
    with pytest.raises(SystemExit) as exit:
        main(["study", "--scale", "smoke", "--only", "5", "--out", str(tmp_path), "--runs", str(tmp_path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert exit.value.code == 2 and "linear, ar, seed 0" in line and "restore it" in line


def test_the_matrix():
    """Every figure's runs exist at every scale, and at paper scale they are the published recipe."""
    for scale in plan.SCALES.values():
        runs = make_runs(scale, figures(scale))
        assert all(r.early in r.config.train.keep for r in runs if r.name in plan.PAPER_MASKS)
        first = [r.seed for r in runs]
        assert scale.order or first == sorted(first), "a first seed of everything comes first"
    paper = make_run(plan.SCALES["paper"], "linear", "ar", 0)
    assert (paper.early, paper.late, paper.config.train.optimizer, paper.config.train.lr) == (
        50_000,
        200_000,
        "adam",
        1e-4,
    )
    counts = {}
    for r in make_runs(plan.SCALES["study"], figures(plan.SCALES["study"])):
        counts[r.task, r.name] = counts.get((r.task, r.name), 0) + 1
    assert counts["linear", "ar"] == counts["noisy_linear", "pfn"] == 5, "masks that learn have the most seeds"
    assert counts["decision_tree", "invicl"] == counts["linear", "ar+×2"] == 3 and counts["linear", "ar+blind"] == 2
    queries = {name: make_run(plan.SCALES["study"], "linear", name, 0).config.data.queries for name in plan.ALL}
    assert {name for name, q in queries.items() if q == 16} == {"prefix", "boe", "pfn", "prefix_others", "batchicl"}
    assert set(queries.values()) == {4, 16}, "about as many terms of the loss, but for saicl, whose queries cost most"


def test_other_shifts_are_another_result(shelf, capsys, monkeypatch):
    monkeypatch.setattr("minicl.study.numbers.SHIFTS", ("noise", "scale", "skewed"))
    assert "done" not in states(shelf, capsys)


def test_a_path_with_a_plus_is_no_control(tmp_path):
    """Controls are called ar+×2; a mask of one's own may lie in a folder a+b."""
    (tmp_path / "a+b").mkdir()
    (tmp_path / "a+b" / "my.py").write_text("def near(q, k):\n    return k.example == q.example - 1\n")
    run = make_run(plan.SCALES["smoke"], "linear", f"{tmp_path}/a+b/my.py:near", 0)
    assert run.measures == {"steps", "shifts", "normed_probes", "order", "window"}


def test_scale_d20_makes_whole_figures_one_after_the_other():
    """The runs of its plan and no others, each with its measures; a mask that was found joins them."""
    scale = plan.SCALES["d20"]
    runs = make_runs(scale, figures(scale))
    assert [(r.task, r.name, r.seed) for r in runs] == list(scale.planned())
    assert [(r.name, r.seed) for r in runs[:6]] == [
        *((m, 0) for m in ("ar", "invicl", "pfn", "nope", "boe")),
        ("ar", 1),
    ]
    assert {r.name for r in runs} == {*plan.LEARN, "prefix", "saicl", "batchicl", plan.AR_BEYOND}
    assert {"steps", "shifts", "order", "normed_probes"} <= frozenset.intersection(
        *(r.measures for r in runs if r.task == "linear")
    )
    for r in runs:
        data, model, train = r.config.data, r.config.model, r.config.train
        assert (model.n_layer, model.n_dims, data.examples, model.max_examples) == (12, 20, 40, 100)
        assert len({*train.keep, train.steps}) == 6 and r.early in train.keep
    invicl = mean_flops(runs[1].config, 50)
    assert max(mean_flops(r.config, 50) for r in runs if r.seed == 0) < 1.1 * invicl, "none takes longer than invicl"
    found = "two:x1-X0Y0,y1-X0"
    more = dataclasses.replace(scale, extra=(found,))
    planned = [(r.task, r.name, r.seed) for r in make_runs(more, figures(more))]
    assert planned == list(more.planned()) and planned[15:18] == [("linear", found, seed) for seed in range(3)]
    assert {n for n, f in figures(more).items() if ("linear", found) in f.runs} == {1, 3, 4, 5, 6, 11, 12, 13, 17}
    assert make_run(more, "linear", found, 0).measures == runs[0].measures
    own = ["ar", "my.py:window"]
    assert ("sparse_linear", own[1]) in figures(scale, own)[2].runs, "one's own may be compared on any task"


def test_scale_class_is_a_quarter_of_an_hour(tmp_path, cli):
    """Sixteen small runs on linear prompts; a mask of one's own adds its two seeds there and nothing else."""
    scale = plan.SCALES["class"]
    runs = make_runs(scale, figures(scale))
    assert [r.seed for r in runs] == [0] * 8 + [1] * 8 and {r.task for r in runs} == {"linear"}
    assert all(figure.runs or n == 9 for n, figure in figures(scale).items())
    for r in runs:
        assert (r.config.model.n_layer, r.config.train.steps, r.config.data.examples) == (4, 1200, 6)
        assert r.early in r.config.train.keep
    (tmp_path / "my.py").write_text("def window(q, k):\n    return k.example == q.example - 1\n")
    flags = ["--scale", "class", "--masks", "ar,invicl,my.py:window", "--dry-run", "--json"]
    added = json.loads(cli("study", *flags).stdout)
    expected = {("linear", name, seed) for seed in (0, 1) for name in ("ar", "invicl", "window")}
    assert {(r["task"], r["name"].rpartition(":")[2], r["seed"]) for r in added} == expected and len(added) == 6


def test_the_answer_has_both_intervals(shelf):
    """Each task has its tables and each mask its row; a run that is only in the plan has none."""
    names = [("linear", "ar"), ("linear", "invicl"), ("sparse_linear", "ar"), ("sparse_linear", "pfn")]
    runs = [make_run(shelf.scale, *name, seed) for name in names for seed in range(5)]
    for file in shelf.store.folder.glob("sparse-linear-pfn-*"):
        file.unlink()
    records = compare(shelf, runs)
    assert [(r["task"], r["mask"]) for r in records] == names[:3]
    errors = [Evidence(shelf, runs).error(name, "late", "longest") for name in ("invicl", "ar")]
    expected, found = ratio(*errors), records[1]["ratio"]["ar"]["longest"]
    assert found["over_prompts"] == list(expected.prompts) and found["over_seeds"] == list(expected.over_seeds)
    assert records[1]["flops_ratio"] > 1 and records[0]["flops_ratio"] == 1
    text = tables(records)
    for what in ("linear, 10 examples", "linear, 25 examples", "sparse_linear, 16 examples", "sparse_linear, 40 exam"):
        assert what in text
    low, high = found["over_seeds"]
    assert f"; {low:.2g}–{high:.2g})  1  " in text and "invicl  yes        yes      yes             yes     81" in text
    for file in shelf.store.folder.glob("linear-ar-*"):
        file.unlink()
    (alone,) = compare(shelf, runs[5:10])
    assert alone["ratio"]["ar"] is None and re.search(r"  invicl +\d +\S+ +– +1 +1\.\d\d\n", tables([alone]))


def test_curves_at_some_lengths(tmp_path, cli, monkeypatch):
    """They are what the numbers depend on, and the lengths that rules ask about are among them."""
    monkeypatch.setitem(plan.SCALES, "smoke", dataclasses.replace(plan.SCALES["smoke"], lengths=(0, 7, 12)))
    flags = ["--scale", "smoke", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert cli("study", "--run", "linear,boe,0", *flags).returncode == 0
    shelf = Shelf(tmp_path / "out", tmp_path / "runs", "smoke")
    run = make_run(shelf.scale, "linear", "boe", 0)
    assert {tuple(r["lengths"]) for r in shelf.read(run)["curves"]} == {(0, 1, 4, 7, 10)}
    monkeypatch.setitem(plan.SCALES, "smoke", dataclasses.replace(plan.SCALES["smoke"], lengths=()))
    assert Shelf(tmp_path / "out", tmp_path / "runs", "smoke").read(run) is None


def test_error_against_cost(shelf):
    """The picture's lines end where the numbers say: steps times the time of one, and the FLOPs of all updates."""
    numbers = {run: n for run, n in measured(shelf, [17]).items() if run.name == "pfn"}
    (run, kept), *_ = numbers.items()
    picture = figures(shelf.scale)[17].draw(shelf, {run: kept})
    last, ends = kept["training"][-1], [axes.lines[0].get_xydata()[-1] for axes in picture.axes]
    error = list(last["error"].values())[-1]
    spent = sum(flops(run.config, prompt_size(run.config, step)[0]) for step in range(run.late))
    timed = [json.loads(f.read_text())["result"] for f in shelf.out.glob("numbers/training-steps-*.json")]
    (seconds,) = (result["pfn"] for result in timed if set(result) == {"pfn"})  # other tests time more masks
    assert ends[0] == pytest.approx([run.late * seconds / 60, error]) and ends[1] == pytest.approx([spent, error])
