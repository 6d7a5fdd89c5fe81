"""The audit's two ways must agree, and say what is known."""

import json

import pytest
from conftest import EVERY, MASKS, assert_one_line, random_table
from hypothesis import given, settings
from hypothesis import strategies as st

from minicl import audit, draw_masks, strategy
from minicl.auditing import numeric, symbolic
from minicl.masks import STRATEGIES, Strategy, layout


def assert_both_ways_agree(strategy, layers, n, positions=None, copies=None, seed=0):
    """The findings of both, which must be the same entry by entry."""
    proved = symbolic(layout(strategy, n, 1, positions, copies, layers), layers)
    measured = numeric(strategy, layers, n, positions, copies, seed)
    for mine, other in zip(proved.depends, measured.depends, strict=True):
        assert mine.tolist() == other.tolist()
    assert proved[1:] == measured[1:]
    assert proved.agrees_with(measured)
    return proved


@pytest.mark.parametrize("layers", [1, 2, 3, 12])
@pytest.mark.parametrize("mask", MASKS)
def test_symbolic_and_numeric_agree(mask, layers):
    assert_both_ways_agree(STRATEGIES[mask], layers, 4)


@pytest.mark.parametrize("positions", ["absolute", "symmetric", "none"])
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_they_agree_on_the_ablations(mask, positions, copies):
    assert_both_ways_agree(STRATEGIES[mask], 3, 3, positions, copies)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    n=st.integers(2, 4),
    copies=st.integers(1, 2),
    seed=st.integers(0, 10**6),
    density=st.sampled_from([0.05, 0.15, 0.3, 0.6]),
    layers=st.sampled_from([1, 2, 3, 12]),
    positions=st.sampled_from(["absolute", "symmetric", "none"]),
    layered=st.booleans(),
    query=st.booleans(),
)
def test_they_agree_on_random_masks(n, copies, seed, density, layers, positions, layered, query):
    assert_both_ways_agree(random_table(n, copies, seed, density, layered, query), layers, n, positions, seed=seed)


def test_the_paper_s_table_1_and_what_it_leaves_open():
    known = {  # invariant, no leak, share of pairs
        "ar": (False, True, 0.5),
        "nope": (False, True, 0.5),
        "prefix": (True, False, 1),
        "boe": (True, True, 0),
        "pfn": (True, True, 0),
        "batchicl": (True, True, 0),
        "saicl": (True, False, 1),
        "invicl": (True, True, 1),
        "prefix_others": (True, False, 1),
    }
    for mask, expected in known.items():
        r = audit(mask)
        assert (r["invariant"], r["no_leak"], r["interdependent_share"]) == expected, mask
        assert r["interdependent"] == (expected[2] == 1)
        assert r["agree"]


@pytest.mark.parametrize(
    "mask, depth, path",
    [("prefix", 1, "y1 → x1"), ("saicl", 2, "y1 → query → x1"), ("prefix_others", 2, "y1 → x2 → x1")],
)
def test_leaks_begin_at_a_depth_and_name_their_path(mask, depth, path):
    assert depth == 1 or audit(mask, layers=depth - 1)["no_leak"]
    record = audit(mask, layers=depth)
    assert not record["no_leak"]
    assert record["counterexamples"]["no_leak"].endswith(f"in {depth} layer(s): {path}")


def test_the_record_of_a_leak_tells_its_path_layer_by_layer():
    """Each step of the path is one that the layer's mask allows, from a token that has heard of the label before."""
    for record in (
        audit("prefix"),
        audit("saicl"),
        audit("boe", copies=2),
        audit(late, layers=5),
        audit("prefix_others"),
    ):
        path, tokens = record["leak"]["path"], record["tokens"]
        assert tokens[path[0]].startswith("y1") and tokens[path[-1]].startswith("x1")
        heard = {i for i, token in enumerate(tokens) if token.startswith("y1")}
        for step in record["leak"]["steps"]:
            assert all(step["sees"][h["token"]][h["from"]] == "1" and h["from"] in heard for h in step["hears"])
            heard |= {h["token"] for h in step["hears"]}
        assert path[-1] in heard and path[-1] in {h["token"] for h in step["hears"]}
    assert [step["layer"] for step in audit(late, layers=5)["leak"]["steps"]] == [1, 2, 3]
    assert audit("invicl")["leak"] is None and audit("batchicl")["leak"] is None


def test_leaks_are_drawn_and_their_absence_is_said(cli, tmp_path):
    result = cli("audit", "--masks", "prefix_others,boe", "--layers", 2, "--leak-plot", "leak.png", "--json")
    said = "boe: no label reaches its own prediction in 2 layer(s): there is no leak to draw\n"
    assert result.returncode == 0 and result.stderr == said + "wrote leak.png\n"
    assert [bool(r["leak"]) for r in json.loads(result.stdout)] == [True, False]
    assert (tmp_path / "leak.png").stat().st_size > 5000
    alone = cli("audit", "--mask", "boe", "--layers", 2, "--leak-plot", "none.png")
    assert alone.returncode == 0 and alone.stderr == said and not (tmp_path / "none.png").exists()
    assert_one_line(cli("audit", "--mask", "prefix", "--leak-plot", "leak.txt"), "leak.txt", ".png")


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
    findings = assert_both_ways_agree(every_other, 3, 4, "symmetric")
    assert findings.unpaired == [(0, 2), (1, 3)], "neighbours are told apart, others are not"


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


def test_the_paper_s_count_is_only_for_the_paper_s_masks():
    assert audit("invicl", copies=3, layers=1)["units_paper"] is None, "another number of copies"
    assert audit(Strategy("ar", STRATEGIES["boe"].sees), layers=1)["units_paper"] is None, "another mask of that name"


def test_proportions_matter_in_a_real_strategy():
    def uneven(q, k):
        """The third copy of an example sees the other's x, of one copy or of two."""
        both = (q.example == 1) & (k.copy == 1)
        return (q.copy == 2) & ~k.is_label & (k.example == 1 - q.example) & ((k.copy == 0) | both)

    assert assert_both_ways_agree(Strategy("uneven", uneven, copies=3), 2, 2).swaps == (0,)


def test_interdependence_through_only_labels():
    def labels_only(q, k):
        return (k.example != q.example) & k.is_label & (q.copy == 1) & (k.copy == 0)

    assert assert_both_ways_agree(Strategy("labels", labels_only, copies=2), 1, 3).independent == []


@strategy
def late(q, k, layer):
    """Each example alone in layers 1 and 2, all of the context after them."""
    return STRATEGIES["prefix"](q, k) if layer > 2 else STRATEGIES["boe"](q, k)


def test_a_mask_that_differs_from_layer_to_layer_is_judged_by_all_its_layers():
    shallow, deep = audit(late, layers=2), audit(late, layers=5)
    boe = audit("boe", layers=2)
    same = ("invariant", "no_leak", "interdependent_share", "paired", "pairs", "units", "sees")
    assert {k: shallow[k] for k in same} == {k: boe[k] for k in same}
    assert (shallow["layers_differ"], shallow["by_layer"]) == (False, [])
    assert deep["agree"] and deep["invariant"] and deep["interdependent"] and not deep["no_leak"]
    assert deep["paired"], "labels meet their x before all are mixed: not so under prefix"
    assert deep["counterexamples"]["no_leak"] == "label reaches its own prediction in 3 layer(s): y1 → x1"


def test_a_layered_record_has_one_mask_for_each_group_of_layers():
    prefix, boe = audit("prefix", layers=1), audit("boe", layers=1)
    record = audit(late, layers=5)
    assert record["layers_differ"] and record["sees"] == boe["sees"]
    assert record["by_layer"] == [{"layers": "1–2", "sees": boe["sees"]}, {"layers": "3–5", "sees": prefix["sees"]}]
    assert record["pairs"] == pytest.approx((2 * boe["pairs"] + 3 * prefix["pairs"]) / 5)
    assert record["units"] == pytest.approx((2 * boe["units"] + 3 * prefix["units"]) / 5)
    assert record["pairs_computed"] == 9 * 9
    odd = Strategy("odd", lambda q, k, layer: STRATEGIES["ar" if layer in (1, 2, 4) else "boe"](q, k))
    assert [part["layers"] for part in audit(odd, layers=5)["by_layer"]] == ["1–2, 4", "3, 5"]


def test_a_leak_through_layers_counts_layers_not_hops():
    """Labels are shown to other examples in layer 1, and examples to each other again only in layer 4."""
    relay = Strategy("relay", lambda q, k, layer: STRATEGIES["prefix_others" if layer in (1, 4) else "boe"](q, k))
    assert audit(relay, layers=3)["no_leak"]
    assert audit(relay, layers=4)["counterexamples"]["no_leak"].endswith("in 4 layer(s): y1 → x2 → x1")


def test_whom_the_query_sees_decides_what_it_can_tell():
    boe = STRATEGIES["boe"].sees
    only_labels = audit(Strategy("labels", boe, query=lambda q, k: k.is_label))
    assert only_labels["agree"] and only_labels["invariant"] and only_labels["paired"]
    assert only_labels["sees"][-1] == "010101011"
    only_xs = audit(Strategy("xs", boe, query=lambda q, k: ~k.is_label))
    assert only_xs["agree"] and not only_xs["paired"], "no label reaches the query"
    first_half = audit(Strategy("half", boe, query=lambda q, k: k.example < 2))
    assert first_half["agree"] and not first_half["invariant"]
    both_copies = audit(Strategy("both", STRATEGIES["invicl"].sees, copies=2, query=lambda q, k: k.copy >= 0))
    assert both_copies["agree"] and both_copies["pairs"] == audit("invicl")["pairs"] + 2 * 4
    by_layer = audit(Strategy("turns", boe, query=lambda q, k, layer: k.example < layer), layers=4)
    assert by_layer["agree"] and not by_layer["invariant"] and len(by_layer["by_layer"]) == 4


def test_record_draws_the_mask_the_right_way_round():
    record = audit("ar", layers=1, examples=2)
    assert record["sees"] == ["10000", "11000", "11100", "11110", "11111"]
    assert record["tokens"] == ["x1", "y1", "x2", "y2", "query"] and record["position_ids"] == [0, 1, 2, 3, 4]
    (axes,) = draw_masks.masks([record]).axes
    cells = axes.collections[0].get_array().reshape(5, 5)
    assert [(row > 0).tolist() for row in cells] == [[c == "1" for c in row] for row in record["sees"]]
    assert axes.get_ylim() == (5, 0), "the first token is at the top"


def test_layers_that_differ_are_drawn_side_by_side():
    first, second = draw_masks.masks([audit(late, layers=5)]).axes
    assert "1–2" in first.get_title() and "3–5" in second.get_title()


def test_command_prints_one_record_for_each_strategy(cli, tmp_path):
    for flags in (("--masks", "ar,invicl"), ("--mask", "ar,invicl"), ("--mask", "ar", "--mask", "invicl")):
        result = cli("audit", *flags, "--layers", 2, "--examples", 3, "--json", "--plot", "m.png")
        records = json.loads(result.stdout)
        assert [r["mask"] for r in records] == ["ar", "invicl"]
    contract = (
        "mask",
        "positions",
        "invariant",
        "no_leak",
        "interdependent",
        "interdependent_share",
        "paired",
        "pairs",
    )
    assert all(key in records[0] for key in contract)
    assert records[0] == audit("ar", layers=2, examples=3)
    assert result.stderr == "wrote m.png\n" and result.returncode == 0
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_command_takes_a_mask_of_ones_own(cli, tmp_path):
    (tmp_path / "my.py").write_text("def previous(q, k):\n    return k.example == q.example - 1\n")
    (record,) = json.loads(cli("audit", "--mask", "my.py:previous", "--json").stdout)
    assert (record["mask"], record["invariant"], record["no_leak"]) == ("my.py:previous", False, True)
    assert 0 < record["interdependent_share"] < 1
    lines = [line for line in cli("audit", "--mask", "my.py:previous").stdout.splitlines() if "partly (50%)" in line]
    assert [line.split()[0] for line in lines] == ["previous"]


def test_table_says_what_the_records_say(cli):
    lines = {line.split()[0]: line.split() for line in cli("audit", "--layers", 3).stdout.splitlines() if line}
    for mask in EVERY:
        r = audit(mask, layers=3)
        assert lines[mask][1:4] == [r["positions"], *("yes" if r[k] else "no" for k in ("invariant", "no_leak"))]


def test_table_says_where_layers_differ(cli, tmp_path):
    code = "def late(q, k, layer):\n    return (k.example < q.example) & ~q.is_query & (layer > 2)\n"
    (tmp_path / "my.py").write_text(code)
    text = cli("audit", "--mask", "my.py:late", "--layers", 3).stdout
    assert "late: layers 1–2 and layer 3 have different masks" in text


def test_a_disagreement_is_reported(monkeypatch, capsys):
    from minicl import auditing
    from minicl.cli import main

    wrong = numeric(STRATEGIES["prefix"], 2, 4)
    monkeypatch.setattr(auditing, "numeric", lambda *a, **k: wrong)
    assert main(["audit", "--mask", "ar", "--layers", "2"]) == 1
    assert "contradict" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, words",
    [
        (["audit", "--mask", "arr"], ("mask", "'arr'", "did you mean ar?")),
        (["audit", "--mask", "my.py:f"], ("there is no file 'my.py'",)),
        (["audit", "--masks", ""], ("masks", "no name", "invicl")),
        (["audit", "--layers", "0"], ("layers", "0", "at least 1")),
        (["audit", "--layers", "deep"], ("--layers", "deep")),
        (["audit", "--examples", "1"], ("examples", "1", "at least 2")),
        (["audit", "--positions", "odd"], ("--positions", "odd", "absolute")),
        (["audit", "--mask", "invicl", "--copies", "1"], ("copies", "at least 2")),
        (["audit", "--plot", "m.xyz", "--mask", "ar"], ("m.xyz", ".png")),
        (["audit", "--plot", "no/such/m.png", "--mask", "ar"], ("no/such/m.png", "a folder that exists")),
        (["audit", "--copies", "0"], ("copies", "0", "at least 1")),
        (["audit", "--examples", "99999999"], ("examples", "99999999", "at most 40")),
        (["audit", "--layers", "99999999"], ("layers", "at most 1000")),
        (["audit", "--copies", "100000", "--mask", "ar"], ("tokens", "at most")),
        (["audit", "--plot", ""], ("picture", ".png")),
        (["audit", "--mask", "a\nb.py:f"], ("there is no file",)),
        (["audit", "--colour"], ("--colour",)),
        (["dance"], ("dance", "audit")),
    ],
)
def test_bad_input_is_one_line(cli, argv, words):
    assert_one_line(cli(*argv), *words)
