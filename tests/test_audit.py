"""The audit's two ways must agree, and say what is known."""

import json

import pytest
import torch
from conftest import EVERY, assert_one_line
from hypothesis import given, settings
from hypothesis import strategies as st

from minicl import draw
from minicl.audit import audit, numeric, shown_after, symbolic
from minicl.masks import STRATEGIES, Strategy, layout
from minicl.propositions import propositions


@pytest.mark.parametrize("layers", [1, 2, 3, 12])
@pytest.mark.parametrize("mask", EVERY)
def test_symbolic_and_numeric_agree(mask, layers):
    found, seen = symbolic(layout(STRATEGIES[mask], 4, 1), layers), numeric(STRATEGIES[mask], layers, 4)
    assert torch.equal(found.depends, seen.depends)
    assert (found.swaps, found.label_swaps) == (seen.swaps, seen.label_swaps)


@pytest.mark.parametrize("positions", ["absolute", "symmetric", "none"])
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("mask", EVERY)
def test_they_agree_on_the_ablations(mask, positions, copies):
    found = symbolic(layout(STRATEGIES[mask], 3, 1, positions, copies), 3)
    assert found.agrees_with(numeric(STRATEGIES[mask], 3, 3, positions, copies))


def random_strategy(n, copies, seed, density):
    """A strategy that is a random table, which no sentence describes."""
    T = 2 * n * copies
    table = torch.rand(T + 1, T + 1, generator=torch.Generator().manual_seed(seed)) < density

    def index(t):
        return torch.where(t.is_query, T, 2 * (t.copy * n + t.example) + t.is_label)

    return Strategy("random", lambda q, k: table[index(q), index(k)], copies=copies, sees_query=bool(seed % 2))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(2, 4),
    copies=st.integers(1, 2),
    seed=st.integers(0, 10**6),
    density=st.sampled_from([0.05, 0.15, 0.3, 0.6]),
    layers=st.sampled_from([1, 2, 3, 12]),
    positions=st.sampled_from(["absolute", "symmetric", "none"]),
)
def test_they_agree_on_random_masks(n, copies, seed, density, layers, positions):
    strategy = random_strategy(n, copies, seed, density)
    found = symbolic(layout(strategy, n, 1, positions), layers)
    seen = numeric(strategy, layers, n, positions, seed=seed)
    assert torch.equal(found.depends, seen.depends)
    assert (found.swaps, found.label_swaps) == (seen.swaps, seen.label_swaps)


def test_the_paper_s_table_1_and_what_it_leaves_open():
    known = {  # invariant, no leak, share of pairs
        "ar": (False, True, 0.5),
        "nope": (False, True, 0.5),
        "prefix": (True, False, 1),
        "boe": (True, True, 0),
        "saicl": (True, False, 1),
        "invicl": (True, True, 1),
        "offdiagonal": (True, False, 1),
    }
    for mask in EVERY:
        r = audit(mask)
        assert (r["invariant"], r["no_leak"], r["interdependent_share"]) == known[mask], mask
        assert r["interdependent"] == (known[mask][2] == 1)
        assert r["agree"]


@pytest.mark.parametrize(
    "mask, depth, path",
    [("prefix", 1, "y1 → x1"), ("saicl", 2, "y1 → query → x1"), ("offdiagonal", 2, "y1 → x2 → x1")],
)
def test_leaks_begin_at_a_depth_and_name_their_path(mask, depth, path):
    assert depth == 1 or audit(mask, layers=depth - 1)["no_leak"]
    record = audit(mask, layers=depth)
    assert not record["no_leak"]
    assert record["counterexamples"]["no_leak"].endswith(f"in {depth} layer(s): {path}")


def test_mask_and_positions_are_both_needed_for_invariance():
    records = {(m, p): audit(m, p) for m in ("ar", "invicl") for p in ("absolute", "symmetric")}
    assert all(r["agree"] for r in records.values())
    grid = {key: r["invariant"] for key, r in records.items()}
    assert grid == {
        ("ar", "absolute"): False,
        ("ar", "symmetric"): False,
        ("invicl", "absolute"): False,
        ("invicl", "symmetric"): True,
    }


def test_full_attention_with_symmetric_positions_cannot_tell_whose_label_is_whose():
    paired = {mask: audit(mask)["paired"] for mask in EVERY}
    assert [mask for mask, yes in paired.items() if not yes] == ["prefix"]
    record = audit("prefix")
    assert record["counterexamples"]["paired"].startswith("swapping labels 1 and 2 alone does not")
    assert audit("prefix", "absolute")["paired"] and not audit("prefix", copies=2)["paired"]
    assert not audit("boe", layers=1)["paired"] and audit("boe", layers=2)["paired"], "y must first have seen its x"
    every_other = Strategy("every other", lambda q, k: ~q.is_query & (q.example % 2 == k.example % 2))
    found, seen = symbolic(layout(every_other, 4, 1, "symmetric"), 3), numeric(every_other, 3, 4, "symmetric")
    assert found.alike == seen.alike == [(0, 2), (1, 3)], "neighbours are told apart, others are not"


def test_doubling_the_input_makes_ar_and_boe_leak():
    assert not audit("ar", copies=2)["no_leak"]
    assert not audit("boe", copies=2)["no_leak"]
    assert audit("invicl", copies=3)["no_leak"]
    assert audit("boe", copies=2)["agree"]


@pytest.mark.parametrize("n", [2, 3, 7, 15])
def test_costs_in_examples_and_in_tokens(n):
    units = {mask: audit(mask, layers=1, examples=n)["units"] for mask in ("ar", "boe", "prefix", "invicl")}
    assert units == {
        "ar": n * (n + 1) // 2 + n + 1,
        "boe": n + n + 1,
        "prefix": n**2 + n + 1,  # the paper's n² + 1 does not count what the query sees
        "invicl": n**2 + 2 * n + 1,
    }
    ar = audit("ar", layers=1, examples=n)
    assert ar["units_paper"] == ar["units"] and ar["pairs"] == ar["pairs_computed"] == (2 * n + 1) * (n + 1)
    record = audit("invicl", copies=2, layers=1, examples=n)
    assert record["units_paper"] == record["units"]
    # copy 0: 3 in each example; copy 1: that, and 4 for each of the others; the query: copy 1 and itself
    assert record["pairs"] == 3 * n + n * (3 + 4 * (n - 1)) + 2 * n + 1
    assert record["pairs_computed"] == (4 * n + 1) ** 2


def test_attention_sees_proportions_not_counts():
    assert shown_after([[0], [1, 0], [0, 1, 2]], [0, 1, 2], [0, 0, 0], {0: 1, 1: 0}, 3) == 2
    # Tokens 0 and 1 are copies of one input, 2 and 3 of another; 4 is the query. Each pair has the same share of each
    # input, but 1 sees one token where 3 sees two that are alike.
    alike = [[0], [0], [2], [2, 3], [1, 3, 4]]
    assert shown_after(alike, [0, 0, 1, 1, 2], [0, 0, 0, 0, 0], {0: 1, 1: 0}, 4) is None
    # Here 1 sees itself and two alike, 3 itself and one: other shares, which show.
    unlike = [[0], [0, 2, 1], [2], [2, 0, 1, 3], [1, 3, 4]]
    assert shown_after(unlike, [0, 0, 1, 1, 2], [0, 0, 0, 0, 0], {0: 1, 1: 0}, 4) == 2


def test_proportions_matter_in_a_real_strategy():
    def uneven(q, k):
        """The third copy of an example sees the other's x, of one copy or of two."""
        both = (q.example == 1) & (k.copy == 1)
        return (q.copy == 2) & ~k.is_label & (k.example == 1 - q.example) & ((k.copy == 0) | both)

    strategy = Strategy("uneven", uneven, copies=3)
    assert symbolic(layout(strategy, 2, 1), 2).swaps == numeric(strategy, 2, 2).swaps == (0,)


def test_dependence_on_a_label_alone_counts():
    """Interdependence asks for the example, so y_j is enough."""

    def labels_only(q, k):
        return (k.example != q.example) & k.is_label & (q.copy == 1) & (k.copy == 0)

    strategy = Strategy("labels", labels_only, copies=2)
    found = symbolic(layout(strategy, 3, 1), 1)
    assert not found.depends[0, 2] and found.depends[0, 3] and found.apart == []


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


def test_the_story_of_the_propositions(cli):
    result = cli("audit", "--propositions")
    assert result.returncode == 0
    rows = [line.split()[:6] for line in result.stdout.splitlines() if line[:1] == "4"]
    assert [row[3:5] for row in rows] == [["65536", "65536"], ["4", "11664"], ["4", "8784"], ["4", "8688"]]
    assert {row[5] for row in rows} == {str(543 * 2**4)}, "acyclic graphs on four nodes, times the diagonals"
    assert "holds at: 3 examples and 3 layers; 4 examples and 4 layers" in result.stdout
    assert "not in the list, from 2 layers on: empty" in result.stdout


def test_record_draws_the_mask_the_right_way_round():
    record = audit("ar", layers=1, examples=2)
    assert record["sees"] == ["10000", "11000", "11100", "11110", "11111"]
    assert record["tokens"] == ["x1", "y1", "x2", "y2", "query"] and record["position_ids"] == [0, 1, 2, 3, 4]
    (axes,) = draw.masks([record]).axes
    cells = axes.collections[0].get_array().reshape(5, 5)
    assert [(row > 0).tolist() for row in cells] == [[c == "1" for c in row] for row in record["sees"]]
    assert axes.get_ylim() == (5, 0), "the first token is at the top"


def test_leak_counts_of_the_propositions_are_those_of_a_model():
    """A three-cycle leaks with three layers and not with two, by gradients."""

    def cycle(q, k):
        return (k.example == (q.example + 1) % 3) & ~q.is_query & ~k.is_query

    strategy = Strategy("cycle", cycle)
    assert [bool(numeric(strategy, layers, 3).leaks) for layers in (1, 2, 3)] == [False, False, True]


def test_command_prints_one_record_a_strategy(cli, tmp_path):
    result = cli("audit", "--mask", "ar", "invicl", "--layers", 2, "--examples", 3, "--json", "--plot", "m.png")
    records = json.loads(result.stdout)
    assert [r["mask"] for r in records] == ["ar", "invicl"]
    for key in ("mask", "positions", "invariant", "no_leak", "interdependent", "interdependent_share", "pairs"):
        assert key in records[0]
    assert result.stderr == "wrote m.png\n" and result.returncode == 0
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_command_takes_a_mask_of_ones_own(cli, tmp_path):
    (tmp_path / "my.py").write_text("def previous(q, k):\n    return k.example == q.example - 1\n")
    (record,) = json.loads(cli("audit", "--mask", "my.py:previous", "--json").stdout)
    assert (record["mask"], record["invariant"], record["no_leak"]) == ("my.py:previous", False, True)
    assert 0 < record["interdependent_share"] < 1
    table = cli("audit", "--mask", "my.py:previous").stdout
    assert "my.py:previous" in table and "partly (50%)" in table


def test_table_says_what_the_records_say(cli):
    lines = {line.split()[0]: line.split() for line in cli("audit", "--layers", 3).stdout.splitlines() if line}
    for mask in EVERY:
        r = audit(mask, layers=3)
        assert lines[mask][1:4] == [r["positions"], *("yes" if r[k] else "no" for k in ("invariant", "no_leak"))]


def test_a_disagreement_is_reported(monkeypatch, capsys):
    from minicl import audit as module
    from minicl.cli import main

    wrong = numeric(STRATEGIES["prefix"], 2, 4)
    monkeypatch.setattr(module, "numeric", lambda *a, **k: wrong)
    assert main(["audit", "--mask", "ar", "--layers", "2"]) == 1
    assert "contradict" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, words",
    [
        (["audit", "--mask", "arr"], ("mask", "'arr'", "did you mean ar?")),
        (["audit", "--mask", "my.py:f"], ("there is no file 'my.py'",)),
        (["audit", "--layers", "0"], ("layers", "0", "at least 1")),
        (["audit", "--layers", "deep"], ("--layers", "deep")),
        (["audit", "--examples", "1"], ("examples", "1", "at least 2")),
        (["audit", "--positions", "odd"], ("--positions", "odd", "absolute")),
        (["audit", "--mask", "invicl", "--copies", "1"], ("copies", "at least 2")),
        (["audit", "--plot", "m.xyz", "--mask", "ar"], ("m.xyz", ".png")),
        (["audit", "--plot", "no/such/m.png", "--mask", "ar"], ("no/such/m.png", "No such file")),
        (["audit", "--propositions", "--mask", "ar"], ("--mask", "--propositions")),
        (["audit", "--propositions", "--layers", "3"], ("--layers", "--propositions")),
        (["audit", "--copies", "0"], ("copies", "0", "at least 1")),
        (["audit", "--examples", "99999999"], ("examples", "99999999", "at most 40")),
        (["audit", "--layers", "99999999"], ("layers", "at most 1000")),
        (["audit", "--copies", "100000", "--mask", "ar"], ("tokens", "at most")),
        (["audit", "--plot", ""], ("picture", ".png")),
        (["audit", "--mask", "a\nb.py:f"], ("there is no file",)),
        (["audit", "--colour"], ("--colour",)),
        (["dance"], ("dance", "audit")),
        ([], ("command",)),
    ],
)
def test_bad_input_is_one_line(cli, argv, words):
    assert_one_line(cli(*argv), *words)
