"""The paper's propositions by exhaustion."""

import json

import pytest
from conftest import assert_one_line

from minicl.auditing import numeric
from minicl.masks import Strategy
from minicl.propositions import propositions


def test_propositions_by_exhaustion():
    one, two, three = propositions(3)
    assert [r["masks"] for r in (one, two, three)] == [512] * 3
    assert one["invariant"] == 512, "with one layer the query sees examples that have not seen each other"
    assert sorted(two["invariant_masks"]) == ["0", "M1", "M2", "empty"] == sorted(three["invariant_masks"])
    assert two["overlooked"] == ["empty"]
    assert (two["no_leak"], three["no_leak"]) == (216, 200)
    assert three["triangular"] == 25 * 2**3, "acyclic graphs on three nodes, times the diagonals"
    assert (two["proposition_2"], three["proposition_2"]) == (False, True)
    assert sorted(three["both_masks"]) == ["M1", "empty"] and three["diagonal"] == 8


def test_the_command_tells_the_story(cli):
    result = cli("audit", "--propositions")
    assert result.returncode == 0
    rows = [line.split()[:6] for line in result.stdout.splitlines() if line[:1] == "4"]
    assert [row[3:5] for row in rows] == [["65536", "65536"], ["4", "11664"], ["4", "8784"], ["4", "8688"]]
    assert {row[5] for row in rows} == {str(543 * 2**4)}, "acyclic graphs on four nodes, times the diagonals"
    assert "holds at: 3 examples and 3 layers; 4 examples and 4 layers" in result.stdout
    assert "not in the list, from 2 layers on: empty" in result.stdout


def test_the_command_prints_records(cli, monkeypatch):
    from minicl import propositions as module

    monkeypatch.setattr(module, "propositions", lambda n: propositions(n - 1))  # 3 examples instead of 4: in no time
    records = json.loads(cli("audit", "--propositions", "--json").stdout)
    assert [(r["examples"], r["layers"]) for r in records] == [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3)]


def test_leak_counts_of_the_propositions_are_those_of_a_model():
    """A three-cycle leaks with three layers and not with two, by gradients."""

    def cycle(q, k):
        return (k.example == (q.example + 1) % 3) & ~q.is_query & ~k.is_query

    strategy = Strategy("cycle", cycle)
    assert [bool(numeric(strategy, layers, 3).depends.leaks) for layers in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize("argv", [("--mask", "ar"), ("--layers", 3), ("--copies", 2), ("--plot", "m.png")])
def test_what_does_not_go_with_propositions_is_one_line(cli, argv):
    assert_one_line(cli("audit", "--propositions", *argv), argv[0], "--propositions")
