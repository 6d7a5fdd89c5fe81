"""Answers at all lengths: by one pass where that is exact, and always the same as by one pass for each length."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import EVERY, loud_model, random_prompt

from minicl import answers as module
from minicl.answers import answers, states
from minicl.answers import plain as plain_states
from minicl.masks import POSITIONS, STRATEGIES, Strategy

AR, BOE, PREFIX = (STRATEGIES[name].sees for name in ("ar", "boe", "prefix"))
OWN = {  # strategies that use what built-in ones do not, and the passes for 13 lengths; 0: tokens are shared
    "layers": (Strategy("layers", lambda q, k, layer: (BOE if layer < 3 else AR)(q, k)), 1),
    "late prefix": (Strategy("late", lambda q, k, layer: (BOE if layer < 4 else PREFIX)(q, k)), 13),
    "labels": (Strategy("labels", AR, query=lambda q, k: k.is_label), 1),
    "both copies": (Strategy("both", AR, copies=2, query=lambda q, k: k.copy >= 0), 0),
    "boe, first copy": (Strategy("first", BOE, copies=2, query=lambda q, k: k.copy == 0), 1),
    "in turns": (Strategy("turns", BOE, query=lambda q, k, layer: k.example % layer == 0), 1),
    "newest": (Strategy("newest", AR, query=lambda q, k: k.example == k.example.max()), 13),
}


def plain(*given):
    """The reference's answers."""
    return plain_states(*given).query


def passes(monkeypatch, model, prompt, lengths):
    """The number of whole forward passes that `answers` takes."""
    count = []
    propagate = model.propagate
    with monkeypatch.context() as patch:
        patch.setattr(model, "propagate", lambda *given: count.append(1) or propagate(*given))
        answers(model, *prompt, lengths)
    return len(count)


@pytest.mark.parametrize("mask", EVERY)
def test_shortcuts_equal_one_pass_for_each_length(mask):
    prompt = random_prompt(5, 13, 13)
    for positions in (None, "absolute", "symmetric", "none"):
        for copies, blind in ((None, False), (2, False), (3, False), (None, True)):
            model = loud_model(mask, positions=positions, copies=copies, blind_query=blind)
            for lengths in (list(range(13)), [0, 5, 12], [3], [0]):
                fast, slow = (way(model, *prompt, lengths) for way in (answers, plain))
                torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("blind", [False, True])
def test_shortcuts_are_exact_for_layers_and_for_what_queries_see(name, blind, monkeypatch):
    strategy, expected = OWN[name]
    prompt = random_prompt(5, 13, 13)
    for positions in ("absolute", "symmetric"):
        model = loud_model(strategy, positions=positions, blind_query=blind)
        for lengths in (list(range(13)), [0, 5, 12], [3], [0]):
            fast, slow = (way(model, *prompt, lengths) for way in (answers, plain))
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)
        assert passes(monkeypatch, model, prompt, range(13)) == expected


def test_shortcuts_are_taken_where_they_are_exact(monkeypatch):
    prompt = random_prompt(2, 4, 4)
    count = {mask: passes(monkeypatch, loud_model(mask), prompt, [0, 1, 3]) for mask in EVERY}
    assert {mask for mask, passes in count.items() if passes == 1} == {"ar", "nope", "boe"}
    assert {mask for mask, passes in count.items() if passes == 0} == {"invicl", "pfn", "batchicl"}, (
        "copy 0, or all x, are shared"
    )
    assert set(count.values()) == {0, 1, 3}


KNOWN = [(m, p) for m in EVERY for p in POSITIONS if (m, p) != ("batchicl", "random")]  # its passes have no such rows


@pytest.mark.parametrize("mask, positions", KNOWN)
def test_queries_that_are_the_next_inputs(mask, positions, monkeypatch):
    """Then a causal mask's own predictions are the answers, and no query is needed but the last."""
    xs, ys, _ = random_prompt(3, 9, 1)
    for blind in (False, True):
        model = loud_model(mask, positions=positions, blind_query=blind, max_examples=8)
        for lengths in ([0, 3, 8], [8], list(range(9))):
            fast, slow = states(model, xs, ys, xs, lengths, [0, 3]), plain_states(model, xs, ys, xs, lengths, [0, 3])
            torch.testing.assert_close(fast.query, slow.query, rtol=0, atol=1e-9)
            torch.testing.assert_close(fast.hidden[3], slow.hidden[3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("mask, tokens", [("ar", 17), ("nope", 17), ("boe", 25)])
def test_no_token_too_many(mask, tokens, monkeypatch):
    model, rows = loud_model(mask), []
    monkeypatch.setattr(model, "embed", lambda *given, e=model.embed: rows.append(e(*given).shape[1]) or e(*given))
    xs, ys, _ = random_prompt(1, 9, 1)
    answers(model, xs, ys, xs, list(range(9)))
    assert rows == [tokens]


def test_settled_tokens_are_computed_once(monkeypatch):
    model, rows = loud_model("invicl"), []
    layer = type(model.blocks[0].mlp).forward
    monkeypatch.setattr(type(model.blocks[0].mlp), "forward", lambda self, h: rows.append(h.shape[1]) or layer(self, h))
    answers(model, *random_prompt(1, 6, 6), [0, 2, 5])
    assert rows[:: len(model.blocks)] == [12, 1, 5, 9], "what sees nothing later; then the rest and the query"


def test_chunks_do_not_change_the_answers(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", {"cpu": 1})  # one prompt at a time
    prompt = random_prompt(3, 5, 5)
    for mask in ("invicl", "ar"):
        model = loud_model(mask)
        torch.testing.assert_close(answers(model, *prompt, [1, 4]), plain(model, *prompt, [1, 4]))


def test_a_mask_that_counts_its_examples_takes_no_shortcut(monkeypatch):
    def last_only(q, k):
        newest = (k.example == k.example.max()) & (q.example > k.example - 9)
        return newest & ~k.is_query & ~q.is_query

    model, prompt = loud_model(Strategy("last", last_only)), random_prompt(2, 6, 6)
    for lengths in ([0, 2, 5], [0]):
        assert passes(monkeypatch, model, prompt, lengths) == len(lengths)
        torch.testing.assert_close(answers(model, *prompt, lengths), plain(model, *prompt, lengths))


def test_a_thousand_examples_in_bounded_memory():
    """In a process of its own, which says how much memory it held at most."""
    code = """
import resource, sys; sys.path.insert(0, sys.argv[1])
from conftest import loud_model, random_prompt
from minicl.answers import answers
for mask in ("boe", "invicl", "prefix"):
    model = loud_model(mask, n_layer=1, n_head=1, n_embd=8)
    lengths = list(range(0, 1001, 250))
    answer = answers(model, *random_prompt(3, 1001, 1001), lengths)
    assert answer.shape == (3, len(lengths)) and answer.isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    argv = [sys.executable, "-c", code, str(Path(__file__).parent)]
    result = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert float(result.stdout) < 2.5, "GiB"


@pytest.mark.parametrize("mask", EVERY)
def test_hidden_states_of_all_lengths_equal_those_of_each(mask):
    model, prompt = loud_model(mask), random_prompt(3, 6, 6)
    fast, slow = (way(model, *prompt, [0, 2, 5], [0, 3]) for way in (states, plain_states))
    assert sorted(fast.hidden) == [0, 3] and fast.hidden[3].shape == (3, 3, 32)
    for layer in (0, 3):
        torch.testing.assert_close(fast.hidden[layer], slow.hidden[layer], rtol=0, atol=1e-9)


def test_a_mask_that_counts_in_threes_takes_no_shortcut():
    def threes(q, k):
        earlier = k.example < q.example
        return earlier & (k.example > 0) if int(k.example.max()) % 3 == 1 else earlier

    model, prompt = loud_model(Strategy("threes", threes)), random_prompt(2, 26, 26)
    lengths = list(range(26))
    torch.testing.assert_close(answers(model, *prompt, lengths), plain(model, *prompt, lengths), rtol=0, atol=1e-9)
