"""What strategies cost: records, tables, and ratios of candidates that take turns."""

import json
import sys

import pytest
from conftest import assert_one_line

from minicl import bench
from minicl.timing import quartiles, ratio, take_turns

SIZES = ["--examples", 6, "--n-layer", 1, "--n-embd", 16, "--n-head", 2, "--n-dims", 2, "--repeats", 3]
LAYERED = "def deep(q, k, layer):\n    return (k.example < q.example) & (layer > 1) & ~q.is_query\n"


def test_a_forward_pass_of_each_strategy(cli):
    records = json.loads(cli("bench", "--inference", "--masks", "ar,invicl", *SIZES, "--json").stdout)
    assert [r["mask"] for r in records] == ["ar", "invicl"]
    assert records[0]["ratio"]["ratio"] == 1 and records[1]["tokens"] == 25 and records[1]["pairs"] == 169
    assert [r["pairs_computed"] for r in records] == [13 * 14 // 2, 25 * 25]
    for r in records:
        assert r["low"] <= r["milliseconds"] <= r["high"] and (r["examples"], r["n_embd"]) == (6, 16)
    assert "time ÷ ar" in cli("bench", "--inference", "--mask", "ar", *SIZES).stdout


def test_memory_is_that_of_the_pass_itself():
    sizes = bench.SIZES["small"] | {"n_layer": 1, "repeats": 2, "device": "cpu"}
    small, large = (bench.inference(["prefix"], sizes | {"batch_size": B})[0]["memory_bytes"] for B in (16, 512))
    assert small is not None and large > small, "counted in a process of its own, which Linux allows"
    assert large > 512 * 21 * 4 * 64 * 4, "at least the hidden layer of the MLP, in bytes"


def test_a_mask_of_ones_own_that_differs_from_layer_to_layer(cli, tmp_path):
    (tmp_path / "my.py").write_text(LAYERED)
    deep = [*SIZES, "--n-layer", 2]
    (record,) = json.loads(cli("bench", "--inference", "--masks", "my.py:deep", *deep, "--json").stdout)
    own = 6 * 3 + 13  # y sees x and itself, x itself; the query all
    assert record["pairs"] == own + 15 * 4 / 2, "half of the layers see the 15 pairs of examples, 4 tokens each"
    table = cli("bench", "--inference", "--masks", "my.py:deep", *deep).stdout
    assert "time ÷ deep" in table and "my.py" not in table


def test_training_steps(cli):
    rows = json.loads(cli("bench", *SIZES, "--json").stdout)
    compared = ["invicl", "Hugging Face GPT-2", "ar with oneDNN"]
    assert [r["row"].split(" step")[0] for r in rows] == [*compared, "ar", "invicl"]
    assert all(r["low"] <= r["ratio"] <= r["high"] for r in rows)
    assert ["milliseconds" in r for r in rows] == [False, False, False, True, True]
    text = cli("bench", *SIZES).stdout
    assert "share of the multiply rate" in text and "training steps of 16 prompts with 6 examples" in text


def test_without_transformers_its_row_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    sizes = bench.SIZES["small"] | {"batch_size": 2, "examples": 2, "n_layer": 1, "repeats": 2, "device": "cpu"}
    rows = [r["row"] for r in bench.training(sizes)]
    assert len(rows) == 4 and not any("Hugging Face" in row for row in rows)


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--masks", "ar"], ("masks", "--inference or --quality")),
        (["--inference", "--masks", ","], ("masks", "no name")),
        (["--inference", "--repeats", 1], ("repeats", "at least 2")),
        (["--inference", "--threads", 0], ("threads", "0")),
        (["--inference", "--mask", "arr"], ("arr", "did you mean ar?")),
        (["--inference", "--plot", "x.png"], ("plot", "with --quality")),
        (["--inference", "--quality", "race"], ("--inference and --quality", "one of them")),
        (["--size", "large"], ("--size", "large", "paper", "small")),
        (["--quality", "race", "--size", "small"], ("size", "without --quality")),
        (["--quality", "race", "--minutes", 0], ("minutes", "0", "above 0")),
        (["--quality", "race", "--target", -1], ("target", "-1", "above 0")),
        (["--quality", "race", "--seeds", 0], ("seeds", "0", "at least 1")),
        (["--quality", "race", "--plot", "x.gif"], ("x.gif", ".png")),
        (["--quality", ""], ("quality", "empty")),
        (["--quality", __file__], ("quality", "a folder")),
    ],
)
def test_bad_flags_are_one_line(cli, tmp_path, argv, words):
    assert_one_line(cli("bench", *argv), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_does_not_fit_is_one_line(cli):
    assert_one_line(cli("bench", "--inference", "--batch-size", 4 * 10**18), "not enough memory", status=1)


def test_the_middle_half_lies_within_what_was_measured():
    assert ratio([1, 10], [1, 1]) == {"low": 3.25, "ratio": 5.5, "high": 7.75}
    assert ratio([4], [2]) == {"low": 2, "ratio": 2, "high": 2}
    assert quartiles([5, 1, 3]) == [2, 3, 4]


def test_candidates_take_turns():
    calls = []
    seconds = take_turns({name: lambda name=name: calls.append(name) for name in "ab"}, repeats=3, warmup=2)
    assert calls == ["a", "b"] * 5 and {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
