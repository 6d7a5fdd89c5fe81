"""Learning rates, lengths and curricula are pure functions of (config, step)."""

import dataclasses

import pytest
from training_helpers import trainer

from minicl.config import Config
from minicl.schedule import learning_rate, prompt_size


def test_the_curriculum_is_that_of_2022():
    config = Config.make("paper")
    for stage in range(15):
        for step in (2000 * stage, 2000 * stage + 1999):
            assert prompt_size(config, step) == (10 + 2 * stage, 5 + stage)
    assert prompt_size(config, 30_000) == prompt_size(config, 10**6) == (40, 20)
    training = trainer(lengths="curriculum", n_dims=4, examples=8, curriculum_steps=30)
    xs, ys, _, _ = training.batch(0)
    assert xs.shape[1] == 2 and (xs[..., 1:] == 0).all() and (xs[..., 0] != 0).all() and (ys != 0).any()


def test_prompts_do_not_shrink_when_a_run_is_extended():
    config = Config.make("paper", steps=20_000)
    extended = dataclasses.replace(config.train, steps=200_000, extended=(20_000,))
    longer = dataclasses.replace(config, train=extended)
    assert prompt_size(config, 19_999) == prompt_size(longer, 19_999) == prompt_size(longer, 20_000) == (40, 20)
    assert prompt_size(config, 1500) == prompt_size(longer, 1500) != (40, 20)


@pytest.mark.parametrize("lengths", ["fixed", "long"])
def test_dimensions_grow_whatever_the_lengths(lengths):
    grown, plain = (Config.make("tiny", n_dims=20, lengths=lengths, curriculum_steps=steps) for steps in (150, None))
    sizes = [prompt_size(grown, step) for step in range(300)]
    assert [d for _, d in sizes] == [5 + min(step // 10, 15) for step in range(300)]
    assert [(n, 20) for n, _ in sizes] == [prompt_size(plain, step) for step in range(300)]


@pytest.mark.parametrize("lengths, shares", [("uniform", [7] * 7), ("long", [1, 3, 5, 7, 9, 11, 13])])
def test_lengths_are_drawn_as_they_say_and_purely(lengths, shares):
    def sizes(seed):
        config = Config.make("tiny", lengths=lengths, examples=6, seed=seed)
        return [prompt_size(config, step)[0] for step in range(9800)]

    assert sizes(0) == sizes(0) != sizes(1)
    assert [sizes(0).count(n) / 200 for n in range(7)] == pytest.approx(shares, rel=0.12, abs=0.25)


@pytest.mark.parametrize("lengths, shares", [("uniform", [14] * 3), ("long", [14 / 3, 14, 70 / 3])])
def test_the_fewest_examples(lengths, shares):
    config = Config.make("tiny", lengths=lengths, examples=6, fewest=4)
    sizes = [prompt_size(config, step)[0] for step in range(8400)]
    assert [sizes.count(n) / 200 for n in (4, 5, 6)] == pytest.approx(shares, rel=0.1) and min(sizes) == 4
    with pytest.raises(ValueError, match="fewest: got 7, allowed: at most 6 examples"):
        Config.make("tiny", examples=6, fewest=7)


def test_a_fixed_length_is_every_step_s():
    config = Config.make("tiny", lengths="fixed", examples=6)
    assert {prompt_size(config, step) for step in range(50)} == {(6, 3)}


def test_learning_rates():
    def rates(**settings):
        train = Config.make("tiny", steps=100, lr=1.0, **settings).train
        return [learning_rate(train, step) for step in range(101)]

    assert rates(schedule="constant", warmup=0) == [1.0] * 101
    warm = rates(schedule="cosine", warmup=10)
    assert warm[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert warm[10] == 1 and warm[55] == pytest.approx(0.5) and warm[100] == pytest.approx(0)
    stable = rates(schedule="stable", warmup=0, decay=0.2)
    assert stable[:81] == [1.0] * 81 and stable[90] == pytest.approx(0.5) and stable[100] == pytest.approx(0)
