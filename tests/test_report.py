"""The table of an evaluation, and when it calls a method's error the least."""

import math

import numpy
from conftest import assert_one_line

from minicl import stats
from minicl.report import _cell, least


def test_the_table(cli, runs):
    text = cli("evaluate", runs / "ar", runs / "invicl", "--prompts", 60).stdout
    assert "4 examples" in text and "10 examples" in text and "mean over 0–10" in text
    (row,) = (line for line in text.splitlines() if "least error  " in line)
    assert row.split()[2:] == ["undecided"] * 3, "one seed each decides nothing"
    assert text.splitlines()[-1].startswith("least error: ") and "90 % interval" in text.splitlines()[-1]
    alone = cli("evaluate", runs / "ar", runs / "ar1", "--prompts", 60).stdout
    assert "least error" not in alone and "range over 2 seeds" in alone, "two seeds of one method are not compared"
    assert_one_line(cli("evaluate", runs / "ar", "--prompts", 1), "prompts")


def test_only_a_perfect_answer_is_printed_as_0():
    assert _cell(1e-9, 0.0, 1e-8) == "0" and _cell(math.nan, math.nan, math.nan).startswith("nan")


def models(**errors):
    """A method's seeds, each with errors (prompts, 1) at 4 examples."""
    return {name: [({"lengths": [4]}, e) for e in seeds] for name, seeds in errors.items()}


def test_the_least_error_must_lead_by_more_than_chance():
    random = numpy.random.default_rng(0)
    base, noise = random.exponential(size=(200, 1)), random.normal(size=(200, 1))
    best, near, far = [base, base + 0.01], [base + 0.1 + 0.01 * noise] * 2, [base + 1, base + 2]
    assert least(models(far=far, best=best, near=near), [4]) == "best"
    assert least(models(best=best, near=[base + 0.02 + noise] * 2), [4]) == "undecided", "the interval crosses 0"
    assert least(models(best=[base, base + 0.2], near=near), [4]) == "undecided", "a seed disagrees"
    assert least(models(best=best[:1], far=far), [4]) == "undecided", "the best of one seed against two"
    assert least(models(best=best, far=far[:1]), [4]) == "undecided"


def test_the_best_of_three_seeds_does_not_win_against_one():
    random = numpy.random.default_rng(1)
    luck = [random.exponential(size=(100, 1)) + shift for shift in (0.0, 0.5, 1.0)]
    assert least(models(three=luck, one=[luck[0] + 0.1]), [4]) == "undecided"
    assert not stats.leads(numpy.array([luck[0][:, 0]]), numpy.array([luck[2][:, 0]]))
