"""Attention maps: the weights are those that the model's own attention uses."""

import json

import pytest
import torch
from conftest import MASKS, assert_one_line, loud_model, random_prompt, random_table

from minicl import attention, load, train
from minicl.runs import read_config

CASES = [
    *((mask, {}) for mask in MASKS),
    ("ar", {"positions": "rotary"}),
    ("invicl", {"positions": "rotary_symmetric"}),
    ("ar", {"positions": "random", "max_examples": 9}),
    ("boe", {"blind_query": True, "copies": 2}),
    (random_table(4, 2, 3, 0.3, layered=True, query=True), {}),
]


@torch.no_grad()
@pytest.mark.parametrize("mask, settings", CASES, ids=lambda part: str(getattr(part, "name", part)))
def test_weights_times_values_are_what_the_block_s_attention_adds(mask, settings):
    model, layers = loud_model(mask, **settings), [1, 3, 4]
    xs, ys, query = random_prompt(5, 4, 1)
    layout = model.layout(4, 1)
    into = {}
    hooks = [
        b.attn.register_forward_hook(lambda a, given, out, i=i: into.update({i: (given[0], out)}))
        for i, b in enumerate(model.blocks, 1)
    ]
    model(xs, ys, query)
    for hook in hooks:
        hook.remove()
    found = attention.weights(model, xs, ys, query, layout, layers)
    assert list(found) == layers
    for layer, w in found.items():
        attn, (h, out) = model.blocks[layer - 1].attn, into[layer]
        _, _, v = attn.heads(h, model.turn(layout))
        mixed = attn.c_proj((w @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mixed, out, rtol=0, atol=1e-5)
        assert (w[..., ~layout.masks(4)[layer - 1]] == 0).all() and (w >= 0).all()
        torch.testing.assert_close(w.sum(-1), torch.ones_like(w[..., 0]))
        assert w.std() > 1e-3, "not all alike: else the test would see no mistake in q or k"


def test_records_are_means_over_prompts(runs, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK", 1)  # one prompt at a time
    records = attention.of_run(runs / "invicl", [2], examples=3, prompts=7)
    p = read_config(runs / "invicl").task.sample(7, 4)
    model = load(runs / "invicl")
    layout = model.layout(3, 1)
    mean = attention.weights(model, p.xs[:, :3], p.ys[:, :3], p.queries[:, 3:], layout, [2])[2].mean(0)
    assert [(r["layer"], r["head"]) for r in records] == [(2, 1), (2, 2)]
    for r, expected in zip(records, mean, strict=True):
        torch.testing.assert_close(torch.tensor(r["attention"]), expected, rtol=1e-4, atol=1e-5)
        assert r["sees"] == layout.mask.tolist() and r["copies"] == 2
        assert r["tokens"][:2] == ["x1", "y1"] and r["tokens"][6:8] == ["x1'", "y1'"] and r["tokens"][-1] == "query"


def test_the_command(cli, runs, tmp_path):
    result = cli("probe", runs / "ar", runs / "invicl", "--attention", "a.png", "--prompts", 3, "--json")
    records = json.loads(result.stdout)
    kinds = [(r["method"], r["layer"], r["head"]) for r in records]
    assert kinds == [(m, layer, head) for m in ("ar", "invicl") for layer in (1, 2) for head in (1, 2)]
    assert {(r["examples"], r["prompts"], r["step"]) for r in records} == {(4, 3, 30)}
    assert (tmp_path / "a.png").stat().st_size > 5000
    text = cli(
        "probe", runs / "ar", "--attention", "a.pdf", "--at-layers", 2, "--checkpoints", "10", "--lengths", 1
    ).stdout
    assert "step 10; 1 examples, mean over 64 prompts" in text
    for row in text.splitlines()[2:]:
        layer, _, *shares = row.split()
        assert layer == "2" and abs(sum(int(share.strip("%")) for share in shares) - 100) <= 1


def test_bad_input_is_one_line(cli, runs, tmp_path):
    for given, words in {
        ("a.gif",): ("a.gif", ".png"),
        ("a.png", "--at-layers", "0"): ("at-layers with --attention", "0", "from 1 to 2"),
        ("a.png", "--at-layers", "3"): ("at-layers with --attention", "3", "from 1 to 2"),
        ("a.png", "--lengths", "2,3"): ("lengths with --attention", "2 numbers", "one number"),
        ("a.png", "--lengths", "13"): ("13", "at most 12"),
        ("a.png", "--prompts", "0"): ("prompts", "0", "at least 1"),
        ("a.png", "--plot", "b.png"): ("attention", "--plot beside it"),
        ("a.png", "--checkpoints", "11"): ("checkpoints", "11"),
    }.items():
        assert_one_line(cli("probe", runs / "ar", "--attention", *given), *words)
    tiny = {"n_dims": 1, "examples": 2, "n_layer": 1, "n_head": 1, "n_embd": 8, "batch_size": 4, "steps": 1}
    tiny |= {"validate": 4, "threads": 1}
    train(out=tmp_path / "mean", mask="batchicl", **tiny)
    train(out=tmp_path / "set", architecture="deepset", **tiny)
    assert_one_line(cli("probe", "mean", "--attention", "a.png"), "attention", "averages several passes")
    assert_one_line(cli("probe", "set", "--attention", "a.png"), "attention", "a set encoder")
