"""Random numbers: their distribution, with fixed seeds and stated tolerances, and what they depend on."""

import math

import pytest
import torch

from minicl.rng import Random


def near(value, expected, tolerance):
    assert abs(float(value) - expected) < tolerance, f"{float(value)} is not {expected} ± {tolerance}"


def test_random_numbers_look_random():
    random = Random(0, 1000)
    z, u = random.normal("z", 1001), random.uniform("u", 1000)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        near((z.double() ** power).mean(), moment, 5 * math.sqrt(math.prod(range(1, 2 * power, 2)) / z.numel()))
    near(u.mean(), 1 / 2, 0.002)
    near(u.var(), 1 / 12, 0.002)
    assert u.min() > 0 and u.max() < 1
    rows = torch.corrcoef(z[:200])  # prompts, and within them neighbours, are uncorrelated
    near((rows - torch.eye(200)).abs().max(), 0, 0.18)
    near((z[:, 1:] * z[:, :-1]).mean(), 0, 0.005)
    near((z * Random(1, 1000).normal("z", 1001)).mean(), 0, 0.005)
    near((z * random.normal("other", 1001)).mean(), 0, 0.005)
    counts = random.integers("i", 7, 1000).flatten().bincount(minlength=7)
    assert len(counts) == 7 and (counts / 1e6 - 1 / 7).abs().max() < 0.002


def test_a_choice_is_distinct_and_uniform():
    chosen = Random(0, 20_000).choice("c", 7, 3)
    assert chosen.shape == (20_000, 3) and all(len(set(row)) == 3 for row in chosen[:500].tolist())
    shares = chosen.flatten().bincount(minlength=7) / 20_000
    near((shares - 3 / 7).abs().max(), 0, 0.02)
    assert sorted(Random(5, 1).choice("c", 4, 4)[0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: r.normal("a", 3, 5),
        lambda r: r.uniform("a", 3),
        lambda r: r.integers("a", 99, 3),
        lambda r: r.choice("a", 50, 5),
    ],
)
def test_a_draw_depends_on_seed_name_and_prompt_only(draw):
    random = Random((7, 1), 9)
    whole = draw(random)
    assert torch.equal(draw(random), whole), "there is no state: the same name gives the same numbers again"
    assert torch.equal(draw(Random((7, 1), 4)), whole[:4])
    assert torch.equal(draw(Random((7, 1), 2, start=5)), whole[5:7])
    assert not torch.equal(draw(Random((1, 7), 9)), whole) and not torch.equal(draw(Random(7, 9)), whole)
    assert len({tuple(row.flatten().tolist()) for row in whole}) == 9, "prompts differ"


def test_names_are_told_apart_and_more_numbers_begin_with_the_same_ones():
    random = Random(3, 4)
    assert not torch.equal(random.normal("a", 6), random.normal("b", 6))
    for draw in (random.normal, random.uniform):
        assert torch.equal(draw("a", 4), draw("a", 9)[:, :4])
    assert torch.equal(random.normal("a", 2, 3).flatten(1), random.normal("a", 6)), "the shape is only a view"


@pytest.mark.parametrize(
    "seed, batch_size, word", [(-1, 2, "seed"), (0.5, 2, "seed"), ((1, -1), 2, "seed"), (0, 0, "batch_size")]
)
def test_bad_arguments_are_named(seed, batch_size, word):
    with pytest.raises(ValueError, match=f"{word}: got"):
        Random(seed, batch_size)
