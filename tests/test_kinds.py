"""The class of masks that treat all examples alike: names, certificates and counts, against the audit on tokens."""

import json
import pickle
import random

import numpy
import pytest
import torch
from conftest import assert_one_line, loud_model, random_prompt

from minicl import kinds
from minicl.auditing import audit, symbolic
from minicl.checks import InputError
from minicl.masks import get_strategy, layout

SAME = {  # built-in strategies that are in the class
    "boe": "one:", "pfn": "one:y-Y", "prefix": "one:x-XyY,y-XY", "prefix_others": "one:x-XY,y-XY",
    "invicl": kinds.INVICL,
}  # fmt: skip


@pytest.mark.parametrize("mask", SAME)
def test_names_mean_the_masks_that_they_describe(mask):
    for n in (0, 1, 4):
        assert torch.equal(layout(mask, n, 2).mask, layout(SAME[mask], n, 2).mask)
    strategy = get_strategy(SAME[mask])
    assert strategy.name == SAME[mask] and strategy.positions == "symmetric"
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    model, other = loud_model(mask), loud_model(SAME[mask])
    torch.testing.assert_close(model(*random_prompt(2, 3, 2)).query, other(*random_prompt(2, 3, 2)).query)


def test_names_round_trip():
    for copies in (1, 2):
        free = len(kinds.choices(copies))
        assert free == {1: 5, 2: 18}[copies]
        masks = range(1 << free) if copies == 1 else random.Random(0).sample(range(1 << free), 500)
        assert all(kinds.parse(kinds.name_of(mask, copies)) == (mask, copies) for mask in masks)
    assert kinds.parse("two:y1-Y0X0,x1-Y0X0") == kinds.parse(kinds.INVICL), "in any order"
    assert get_strategy("two:y1-Y0X0,x1-Y0X0").name == kinds.INVICL, "but there is one name for each"


def findings(name, n):
    """What the audit's graph finds on tokens: no leak, informed, interdependent, paired; and that it is invariant."""
    built = layout(name, n, 1)
    found = symbolic(built, 12)
    assert not found.swaps, "invariant, all of them"
    return (not found.depends.leaks, found.depends.informed, not found.independent, not found.unpaired)


@pytest.mark.parametrize("n", [3, 4])
def test_the_certificates_of_one_copy_are_those_of_the_audit(n):
    certified = kinds.certify(numpy.arange(32), 1)
    for mask in range(32):
        assert tuple(bool(c[mask]) for c in certified) == findings(kinds.name_of(mask, 1), n), kinds.name_of(mask, 1)


@pytest.mark.parametrize("n", [3, 4])
def test_the_certificates_of_a_thousand_masks_are_those_of_the_audit(n):
    masks = numpy.array(sorted(random.Random(n).sample(range(1 << 18), 1000)))
    # Most masks leak; take also the neighbours of some that do not, where a mistake would show.
    close = [kinds.parse(kinds.INVICL)[0] ^ 1 << bit for bit in range(18)]
    masks = numpy.array([*masks, *close])
    certified = kinds.certify(masks, 2)
    assert 0 < certified.no_leak.sum() < len(masks) and (~certified.paired).sum() > 0
    for i, mask in enumerate(masks.tolist()):
        assert tuple(bool(c[i]) for c in certified) == findings(kinds.name_of(mask, 2), n), kinds.name_of(mask, 2)


def test_random_models_agree_with_the_certificates():
    for mask in random.Random(5).sample(range(1 << 18), 12):
        name = kinds.name_of(mask, 2)
        record, certified = audit(name, layers=8, examples=3), kinds.certify(numpy.array([mask]), 2)
        assert record["agree"] and record["invariant"]
        assert (record["no_leak"], record["paired"]) == (bool(certified.no_leak[0]), bool(certified.paired[0])), name


def test_counts():
    one, two = kinds.count(1), kinds.count(2)
    by_audit = [findings(kinds.name_of(mask, 1), 3) for mask in range(32)]
    assert one["masks"] == 32 and one["leak_free"] == sum(f[0] for f in by_audit)
    assert one["paired"] == sum(f[3] for f in by_audit) and one["informed"] == sum(f[0] and f[1] for f in by_audit) == 0
    assert two["masks"] == 262_144 and two["functions"] <= two["masks"]
    assert kinds.INVICL in two["containing_invicl"] and two["contain_invicl"] == len(two["containing_invicl"])


def test_nothing_can_be_added_to_a_maximal_mask():
    for copies in (1, 2):
        names = kinds.count(copies)["maximal"]
        for name in names:
            mask, _ = kinds.parse(name)
            assert findings(name, 3)[0]
            for bit in range(len(kinds.choices(copies))):
                if not mask >> bit & 1:
                    assert not findings(kinds.name_of(mask | 1 << bit, copies), 3)[0], "one more choice leaks"


def test_masks_that_reduce_to_one_another_are_the_same_function():
    rng = random.Random(2)
    masks = numpy.array(rng.sample(range(1 << 18), 4000))
    smaller = kinds.reduced(masks, 2)
    changed = [(int(a), int(b)) for a, b in zip(masks, smaller, strict=True) if a != b]
    prompt = random_prompt(2, 3, 1)
    assert changed
    for a, b in changed[:8]:
        one, other = (loud_model(kinds.name_of(mask, 2), n_layer=3)(*prompt) for mask in (a, b))
        torch.testing.assert_close(one.query, other.query, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.context, other.context, rtol=0, atol=1e-12)


def test_a_mask_may_change_with_depth():
    name = "one:y-Y/2/one:x-XY"
    model = loud_model(name, n_layer=4)
    built = model.layout(3, 1)
    assert torch.equal(built.mask[1], layout("pfn", 3, 1).mask)
    assert torch.equal(built.mask[2], layout("one:x-XY", 3, 1).mask)
    assert get_strategy(name).name == name and audit(name, layers=4, examples=3)["agree"]


@pytest.mark.parametrize(
    "name",
    [
        "one:z-Y",
        "one:x-Q",
        "one:y-x",
        "two:x-Y",
        "two:x0-x1",
        "one:y",
        "one:y-Y/2",
        "one:y-Y/2/two:",
        "one:/1/one:/2/one:",
    ],
)
def test_what_is_no_mask_is_refused(name, cli):
    with pytest.raises(InputError, match="mask"):
        get_strategy(name)
    assert_one_line(cli("audit", "--masks", name), "mask")


def test_counts_and_masks_on_the_command_line(cli):
    one = json.loads(cli("search", "--count", "--copies", 1, "--json").stdout)
    assert {"masks", "leak_free", "informed", "paired", "functions", "maximal"} <= set(one) and one["masks"] == 32
    text = cli("search", "--count", "--copies", 1).stdout
    assert "one:x-X,y-XY" in text and "different functions" in text
    shown = cli("search", "--show", kinds.INVICL).stdout
    assert "x1 sees itself; x0 and y0 of every other example." in shown and "no leak: yes" in shown
    record = json.loads(cli("search", "--show", "one:x-y", "--json").stdout)
    assert not record["no_leak"] and "y1 → x1" in record["counterexamples"]["no_leak"]
    several = json.loads(cli("audit", "--masks", f"boe,{kinds.INVICL},one:x-X,y-XY", "--json").stdout)
    assert [r["mask"] for r in several] == ["boe", kinds.INVICL, "one:x-X,y-XY"], "names with commas in a list"
    assert_one_line(cli("search"), "search", "--budget MINUTES", "--steps N")
    assert_one_line(cli("search", "--count", "--show", "one:"), "search", "one of them")
    assert_one_line(cli("search", "--show", "ar"), "mask", "ar")
    assert_one_line(cli("search", "--show", "one:", "--copies", 2), "show: got --copies beside it")
