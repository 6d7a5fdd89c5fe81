"""The study: from one command to pictures and verdicts, with real runs at scale smoke."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import assert_one_line
from training_helpers import numbers, wait_for

from minicl import load
from minicl.checkpoint import checkpoints, read
from minicl.cli import main
from minicl.cost import mean_flops
from minicl.study import claims
from minicl.study.evidence import Evidence, ratio
from minicl.study.figures import make_run
from minicl.study.numbers import Shelf

DRAWN = (6, 10)  # for these two runs are enough; others are drawn below, or from the committed numbers
ONLY = ("--only", ",".join(map(str, DRAWN)))


def folders(folder):
    return ("--scale", "smoke", "--out", folder / "out", "--runs", folder / "runs")


def shelf_of(folder, **changes):
    """The numbers in a folder, of scale smoke with changes."""
    shelf = Shelf(folder / "out", folder / "runs", "smoke")
    shelf.scale = replace(shelf.scale, **changes)
    return shelf


def start(folder, *extra):
    command = [sys.executable, "-m", "minicl", "study", *map(str, folders(folder)), *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=400):
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The study at scale smoke, interrupted once and continued."""
    folder = tmp_path_factory.mktemp("smoke")
    process = start(folder, *ONLY, "--jobs", "1")
    wait_for(lambda: numbers(folder))
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.returncode == 143 and "the same command goes on" in stopped.stderr
    before = numbers(folder)
    assert main(["study", *map(str, folders(folder)), *ONLY]) == 0
    assert before.items() <= numbers(folder).items(), "what was there is not done again"
    return folder


def test_everything_is_drawn_and_toys_are_not_judged(whole):
    pictures = {f.name for f in (whole / "out").glob("*.png")}
    assert pictures == {f"figure{n}.png" for n in DRAWN}
    assert all((whole / "out" / p).stat().st_size > 5000 for p in pictures)
    text = (whole / "out" / "claims.md").read_text()
    assert text.count("*Rule.*") == text.count("\n**not judged**: ") == len(claims.CLAIMS)


def test_real_numbers_are_judged(whole):
    text = claims.of_shelf(shelf_of(whole, judged=True))
    for number, word in {"6": "not decided", "9": "not decided", "11": "not run"}.items():
        assert re.search(rf"\n## {number}\..*\n\n\*\*{word}\*\*", text), "one seed decides nothing"


def test_models_for_demonstrations_stay_with_the_numbers(whole):
    for mask in ("ar", "invicl"):
        folder = whole / "out" / "models" / mask
        (original,) = (f for f in (whole / "runs").glob(f"linear-{mask}-0-*") if f.is_dir())
        ours, theirs = load(folder).state_dict(), load(original).state_dict()
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        (state,) = map(read, checkpoints(folder).values())
        assert state["optimizer"] is None and len(checkpoints(original)) > 1
    flags = ["evaluate", str(folder), "--prompts", "8", "--baselines", "none"]
    assert main(flags) == 0, "as a run folder does"


def test_all_seeds_that_there_are_count(whole, tmp_path, cli):
    """Also where one strategy has more than others, and when fewer are asked for now."""
    shutil.copytree(whole / "out", tmp_path / "out")
    first = next((tmp_path / "out" / "numbers").glob("linear-invicl-0-*"))
    content = json.loads(first.read_text())
    content["depends_on"]["config"]["train"]["seed"] = 1
    first.with_name("linear-invicl-1-00000000.json").write_text(json.dumps(content))
    text = claims.of_shelf(shelf_of(tmp_path, judged=True))
    assert re.search(r"noise, early, training length: .* invicl .* 2 seeds\), ar \S+ \(1 seed\)", text)
    result = cli("study", "--only", 6, "--seeds", 1, *folders(tmp_path))
    assert result.returncode == 0 and re.search(r"\n  ar +1 .*\n  invicl +2 ", result.stdout), result.stdout


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(tmp_path, cli):
    (tmp_path / "runs").write_text("")
    assert_one_line(cli("study", "--only", 5, "--masks", "ar", "--json", *folders(tmp_path)), "runs", "folder")


def test_a_second_call_only_redraws_and_answers(whole, cli):
    before = numbers(whole)
    (whole / "out" / "figure6.png").unlink()
    result = cli("study", *ONLY, *folders(whole))
    assert result.returncode == 0 and "seed 0" not in result.stderr + result.stdout
    assert numbers(whole) == before and (whole / "out" / "figure6.png").exists()
    rows = re.findall(r"\n  (ar|invicl) +1 +\S+", result.stdout)
    assert rows == ["ar", "invicl", "ar", "invicl"], "a row for each mask at both lengths"


def test_what_is_there_is_drawn_without_training(whole, tmp_path, cli):
    shutil.copytree(whole / "out" / "numbers", tmp_path / "out" / "numbers")
    before = numbers(tmp_path)
    result = cli("study", "--only", "6,7", "--draw", *folders(tmp_path))
    assert result.returncode == 0 and "runs in" not in result.stderr and numbers(tmp_path) == before
    drawn = {f.name for f in (tmp_path / "out").iterdir() if f.is_file()}
    assert drawn == {"figure6.png", "figure7.png", "claims.md"} and not list((tmp_path / "runs").glob("*/"))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A mask in a file."""
    file = tmp_path_factory.mktemp("own") / "my.py"
    file.write_text("def window(q, k):\n    return (k.example < q.example) & (q.example - k.example <= 2)\n")
    return f"{file}:window"


def test_a_mask_or_a_seed_more_trains_only_what_is_new(whole, own, cli):
    flags = ["study", *folders(whole), "--only", "1,4,5,6,17", "--masks", f"ar,invicl,{own}"]
    runs = json.loads(cli(*flags, "--dry-run", "--json").stdout)
    assert [(r["name"].rpartition(":")[2], r["seed"]) for r in runs if r["state"] == "missing"] == [("window", 0)]
    assert all((r["flops_left"] > 0) == (r["state"] == "missing") for r in runs)
    more = cli(*flags, "--seeds", 2, "--dry-run").stdout
    assert re.search(r"4 of 6 runs to do.*\n\S+ FLOP, which is .* on one GPU", more)
    claimed = (whole / "out" / "claims.md").stat().st_mtime_ns
    result = cli(*flags)
    assert result.returncode == 0, result.stderr
    assert re.search(r"1 of 3 runs to do.*\n.*\n\nlinear, 4 examples.*\n  mask  ", result.stdout), "plan, then answer"
    for number in (1, 4, 5, 6, 17):
        assert (whole / "out" / f"figure{number}-ar-invicl-window.png").stat().st_size > 5000
    assert (whole / "out" / "claims.md").stat().st_mtime_ns == claimed, "the paper's claims are about its own masks"


def test_the_answer_compares_with_ar_and_invicl(whole, own, cli):
    """In words and as records, though only one mask is asked for; from one seed there is no interval over seeds."""
    flags = ["study", "--only", 1, "--masks", own, *folders(whole)]
    (record,) = json.loads(cli(*flags, "--json").stdout)
    assert (record["task"], record["mask"], record["lengths"]) == ("linear", own, {"training": 4, "longest": 10})
    shelf = shelf_of(whole)
    runs = {name: make_run(shelf.scale, "linear", name, 0) for name in ("ar", "invicl", own)}
    evidence = Evidence(shelf, runs.values())
    for where in ("training", "longest"):
        mine = evidence.error(own, "late", where)
        assert record["error"][where]["mean"] == pytest.approx(mine.means[0])
        for name in ("ar", "invicl"):
            expected = ratio(mine, evidence.error(name, "late", where))
            assert record["ratio"][name][where] == {
                "middle": pytest.approx(expected.middle),
                "over_prompts": list(expected.prompts),
                "over_seeds": None,
            }
    audited = record["audit"]
    assert [audited[what] for what in ("invariant", "no_leak", "interdependent", "paired")] == [
        False,
        True,
        False,
        True,
    ]
    spent = [mean_flops(runs[name].config) for name in (own, "ar")]
    assert record["flops_ratio"] == pytest.approx(spent[0] / spent[1])
    text = cli(*flags).stdout
    rows = re.findall(r"\n  window +1 +\S+ +\S+ \(\S+–\S+\) +\S+ \(\S+–\S+\) +\d\.\d\d\n", text)
    assert len(rows) == 2 and re.search(rf"\n  window +no +yes +partly \(\d+%\) +yes +{audited['pairs']}\n", text)


def test_a_failing_run_does_not_stop_the_rest(whole, tmp_path, cli):
    """The other new run is made, and every picture that shows it; what a figure does not show is named."""
    shutil.copytree(whole / "out", tmp_path / "out")
    shelf, pictures = shelf_of(tmp_path), {n: tmp_path / "out" / f"figure{n}-ar-nope-boe.png" for n in (1, 3)}
    pictures[5] = tmp_path / "out" / "figure5-ar.png"
    for picture in pictures.values():
        picture.touch()  # as if it had been drawn before
    blocked = make_run(shelf.scale, "linear", "boe", 0)
    (tmp_path / "runs").mkdir()
    shelf.training(blocked).write_text("in the way")
    result = cli("study", "--only", "3,6", "--masks", "ar,nope,boe", "--json", *folders(tmp_path))
    assert result.returncode == 1 and "figure 6: it does not show nope, boe\n" in result.stderr
    assert [r["mask"] for r in json.loads(result.stdout)] == ["ar", "nope"]
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("failed: linear, boe, seed 0: ") and "which is a file" in last
    assert [n for n, picture in pictures.items() if picture.stat().st_size] == [1, 3]


def test_costs_of_a_forward_pass_need_no_run(tmp_path, cli, monkeypatch):
    """They are measured once."""
    monkeypatch.setattr("minicl.bench._memory", lambda mask, sizes: 2**20)  # else a process for each mask
    flags = ["study", "--only", 9, "--json", *folders(tmp_path)]
    assert (cli(*flags).returncode, len(numbers(tmp_path))) == (0, 1)
    monkeypatch.setattr("minicl.bench.inference", None)
    (tmp_path / "out" / "figure9.png").unlink()
    result = cli(*flags)
    assert result.returncode == 0 and json.loads(result.stdout) == []
    assert (tmp_path / "out" / "figure9.png").stat().st_size > 5000


def test_no_run_outlives_a_killed_study(tmp_path):
    process = start(tmp_path, "--only", "1")

    def left():
        """How many processes were told of this folder, this study itself included."""
        found = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout
        return found.count(f"{tmp_path}/runs")

    wait_for(lambda: left() == 3)
    process.kill()
    process.communicate()
    wait_for(lambda: left() == 0)
    assert not numbers(tmp_path), "they did not run to their end"


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--only", "0"], "only: got 0"),
        (["--only", "x"], "only"),
        (["--jobs", "0"], "jobs"),
        (["--seeds", "0"], "seeds"),
        (["--masks", "none"], "mask"),
        (["--masks", "ar", "--only", "7"], "figures 1, 2, 3, 4, 5, 6, 12, 13, 14, 11, 17 with these masks"),
        (["--masks", "boe,nope", "--only", "6"], "figures 1, 2, 3, 12, 13, 14, 11, 17 with these masks"),
        (["--masks", ""], "mask"),
        (["--only", ""], "only"),
        (["--scale", "smoke", "--only", "5", "--out", "/dev/null/x"], "out"),
        (["--scale", "huge"], "scale"),
    ],
)
def test_bad_flags_are_one_line(flags, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["study", *flags])
    text = capsys.readouterr().err
    assert stop.value.code == 2 and text.count("\n") == 1 and word in text and not os.listdir(tmp_path)
