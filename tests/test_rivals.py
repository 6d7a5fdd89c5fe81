"""pfn, BatchICL, DeepSet, a window, other positions: each against an independent reading of its definition."""

import json
import shutil

import pytest
import torch
from conftest import MASKS, assert_one_line, loud_model, random_prompt
from test_model import block, embed, read
from torch.nn import functional as F
from training_helpers import flags, tiny_config, trainer

from minicl import ModelConfig, Transformer
from minicl.answers import Windowed, answers, plain
from minicl.auditing import audit
from minicl.checks import InputError
from minicl.config import Config
from minicl.deepset import make_model
from minicl.masks import COUNTING, POSITIONS, STRATEGIES, Strategy, layout
from minicl.schedule import position_rows


def one_token_for_each_example(model, xs, ys, x_t):
    """A prior-fitted network, with no mask: an example is a token that sees all examples, and its own x beside it."""
    places, examples, query = [embed(model, x, 0) for x in xs], [embed(model, y, 1) for y in ys], embed(model, x_t, 2)
    for layer in range(model.config.n_layer):
        told = [block(model, layer, e, [x, *examples]) for x, e in zip(places, examples, strict=True)]
        query = block(model, layer, query, [*places, *examples, query])
        places, examples = [block(model, layer, x, [x]) for x in places], told
    return read(model, query)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pfn_is_one_token_for_each_example_under_full_attention(n):
    model = loud_model("pfn", n_layer=5)
    xs, ys, queries = random_prompt(1, n, 2, seed=n)
    expected = [one_token_for_each_example(model, xs[0], ys[0], x) for x in queries[0]]
    torch.testing.assert_close(model(xs, ys, queries).query[0], torch.stack(expected), rtol=0, atol=1e-10)


def literal_passes(model, xs, ys, x_t, at):
    """BatchICL for one query: a pass for each example, one after the other, and then one without examples."""
    states = []
    for x, y in zip(xs, ys, strict=True):
        x, y, query = embed(model, x, 0), embed(model, y, 1), embed(model, x_t, 2)
        for layer in range(at):
            x, y, query = (
                block(model, layer, token, seen) for token, seen in ((x, [x]), (y, [x, y]), (query, [x, y, query]))
            )
        states.append(query)
    query = torch.stack(states).mean(0) if len(xs) else embed(model, x_t, 2)
    for layer in range(at if len(xs) else 0, model.config.n_layer):
        query = block(model, layer, query, [query])
    return read(model, query)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("at", [None, 0, 2, 4])
def test_batchicl_is_a_literal_pass_for_each_example(n, at):
    model = loud_model("batchicl", n_layer=4, average_at=at)
    xs, ys, queries = random_prompt(2, n, 3, seed=n)
    out = model(xs, ys, queries, hidden=[0, 2, 4])
    for b in range(2):
        expected = [literal_passes(model, xs[b], ys[b], x, 1 if at is None else at) for x in queries[b]]
        torch.testing.assert_close(out.query[b], torch.stack(expected), rtol=0, atol=1e-10)
    assert out.context.shape == (2, n) and out.hidden[2].query.shape == (2, 3, 32)
    torch.testing.assert_close(model.answers(out.hidden[4].query), out.query)
    torch.testing.assert_close(out.hidden[0].query, model(xs[:, :0], ys[:, :0], queries, hidden=[0]).hidden[0].query)


def test_batchicl_is_trained_measured_and_costs_what_its_passes_cost():
    config = tiny_config(mask="batchicl", n_layer=3, average_at=2)
    assert not config.on_context and config.method == "batchicl+at 2"
    training = trainer(mask="batchicl", n_layer=3)
    before = training.model.blocks[0].attn.c_attn.weight.clone()
    training.update()
    assert (training.model.blocks[0].attn.c_attn.weight - before).abs().max() > 0
    record = audit("batchicl")
    assert (record["invariant"], record["no_leak"], record["interdependent"], record["paired"]) == (
        True,
        True,
        False,
        True,
    )
    assert record["agree"] and not record["certified"] and audit("boe")["certified"]
    assert record["pairs"] == pytest.approx(5 / 12 * 6 * 4 + 7 / 12 * 5)
    assert audit("batchicl", copies=2)["pairs"] == pytest.approx(
        5 / 12 * layout("boe", 1, 1, copies=2).pairs * 4 + 7 / 12 * 5
    )
    prompt = random_prompt(3, 6, 6)
    model = loud_model("batchicl")
    torch.testing.assert_close(answers(model, *prompt, [0, 2, 5]), plain(model, *prompt, [0, 2, 5]).query)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"mask": "boe", "average_at": 2}, "average_at: got 2 with mask boe, allowed: with batchicl"),
        ({"mask": "batchicl", "positions": "random"}, "positions: got random with mask batchicl"),
        ({"mask": "batchicl", "compile": True}, "compile: got mask batchicl"),
        ({"mask": "batchicl", "average_at": 9}, "average_at: got 9"),
        ({"mask": "ar", "reads": 1}, "reads: got 1"),
        ({"mask": "ar", "queries": 10**8}, "examples and queries: got 100000080 tokens in a prompt, allowed: at most"),
        ({"architecture": "deepset", "positions": "absolute"}, "positions: got absolute, allowed: no such setting"),
        ({"architecture": "deepset", "reads": 0}, "reads: got 0, allowed: no such setting"),
        ({"architecture": "deepset", "blind_query": True}, "blind_query: got True"),
        ({"mask": "ar", "positions": "rotary", "n_embd": 20, "n_head": 4}, "5 dimensions in each head"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Config.make(n_layer=4, **settings)


def turned(vector, position):
    """A head's vector, turned pair by pair as complex numbers."""
    half = len(vector) // 2
    angles = torch.tensor([position / 10_000 ** (i / half) for i in range(half)], dtype=torch.double)
    pairs = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag])


def rotary_block(model, layer, t, h, mask, positions):
    """Token t after one block with rotary positions, score by score."""
    b, H = model.blocks[layer], model.config.n_head
    size = model.config.n_embd // H
    q, k, v = b.attn.c_attn(b.ln_1(torch.stack(h))).chunk(3, dim=-1)
    heads = []
    for i in range(H):
        part = slice(i * size, (i + 1) * size)
        own, seen = turned(q[t, part], positions[t]), mask[t].nonzero()[:, 0].tolist()
        scores = torch.stack([turned(k[j, part], positions[j]) @ own for j in seen]) / size**0.5
        heads.append(torch.softmax(scores, dim=0) @ v[seen][:, part])
    me = h[t] + b.attn.c_proj(torch.cat(heads))
    return me + b.mlp(b.ln_2(me))


@pytest.mark.parametrize("positions", ["rotary", "rotary_symmetric"])
@pytest.mark.parametrize("mask", ["ar", "invicl", "saicl"])
def test_rotary_positions_equal_a_dense_reference(mask, positions):
    model = loud_model(mask, positions=positions, n_layer=2)
    assert model.wpe is None
    xs, ys, queries = random_prompt(1, 3, 1)
    built = layout(mask, 3, 1, positions)
    pairs = [v for x, y in zip(xs[0], ys[0], strict=True) for v in (x, y)]
    h = [embed(model, v, 0) for v in pairs * model.copies + [queries[0, 0]]]
    for layer in range(2):
        h = [rotary_block(model, layer, t, h, built.mask, built.positions.tolist()) for t in range(len(h))]
    torch.testing.assert_close(model(xs, ys, queries).query[0, 0], read(model, h[-1]), rtol=0, atol=1e-10)


def test_ar_with_rotary_positions_equals_hugging_face_gpt_neox():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    E, H = 32, 4
    model = Transformer(ModelConfig(5, "ar", "rotary", n_layer=3, n_head=H, n_embd=E)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4)
    config = transformers.GPTNeoXConfig(
        vocab_size=1, hidden_size=E, num_hidden_layers=3, num_attention_heads=H, intermediate_size=4 * E,
        max_position_embeddings=64, use_parallel_residual=False, hidden_act="gelu", use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000, "partial_rotary_factor": 1.0}, rotary_pct=1.0,
    )  # fmt: skip
    neox = transformers.GPTNeoXModel(config).eval()
    names = {
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_attn": "attention.query_key_value",
        "attn.c_proj": "attention.dense", "mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h",
    }  # fmt: skip
    state = {f"final_layer_norm.{k}": v for k, v in model.ln_f.state_dict().items()}
    for i, b in enumerate(model.blocks):
        for ours, theirs in names.items():
            for kind, value in b.get_submodule(ours).state_dict().items():
                if ours == "attn.c_attn":  # theirs has query, key and value of a head side by side
                    value = value.unflatten(0, (3, H, E // H)).transpose(0, 1).flatten(0, 2)
                state[f"layers.{i}.{theirs}.{kind}"] = value
    missing, unexpected = neox.load_state_dict(state, strict=False)
    assert not unexpected and all("rotary" in name or "embed_in" in name or "bias" in name for name in missing)
    xs, ys, queries = random_prompt(4, 10, 1, d=5, dtype=torch.float)
    tokens = torch.stack([xs, F.pad(ys[..., None], (0, 4))], dim=2).flatten(1, 2)
    with torch.no_grad():
        hidden = neox(inputs_embeds=model.read_in(torch.cat([tokens, queries], dim=1))).last_hidden_state
        expected, out = model.read_out(hidden)[..., 0], model(xs, ys, queries)
    assert expected.std() > 0.1
    torch.testing.assert_close(out.query, expected[:, -1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.context, expected[:, 0:-1:2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_every_strategy_has_every_position_and_the_audit_knows_them(mask, positions):
    record = audit(mask, positions, layers=3, examples=3)
    assert record["agree"], "the mask graph and a random model come to the same"
    if positions in COUNTING:
        assert not record["invariant"]
    elif mask not in ("ar", "nope"):
        assert record["invariant"]


@pytest.mark.parametrize("positions", ["random", "rotary", "rotary_symmetric"])
def test_shortcuts_are_exact_with_these_positions(positions):
    prompt = random_prompt(3, 8, 8)
    for mask in ("ar", "invicl", "saicl"):
        model = loud_model(mask, positions=positions, max_examples=9)
        for lengths in ([0, 1, 4, 7], [1], [0, 1]):
            fast, slow = answers(model, *prompt, lengths), plain(model, *prompt, lengths).query
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


def test_relative_positions_are_not_seen_where_only_one_token_is():
    """Rotary positions say how far away others are. A token that sees only itself learns nothing from them."""
    alone = Strategy("alone", lambda q, k: q.example != q.example, query=lambda q, k: q.example != q.example)
    for positions in ("absolute", "rotary"):
        assert audit(alone, positions, layers=2, examples=3)["agree"]
    far = Strategy("far", lambda q, k: k.is_label & (k.example < q.example), query=lambda q, k: k.example == 1)
    assert all(audit(far, positions, layers=2, examples=3)["agree"] for positions in POSITIONS)


def test_random_positions_are_sorted_rows_that_all_get_their_turn():
    config = Config.make("small", positions="random", seed=3)
    rows = [position_rows(config, step, 10, torch.device("cpu")) for step in range(60)]
    assert all(len(r) == 21 and (r.diff() > 0).all() for r in rows), "in order, none twice"
    assert torch.cat(rows).unique().tolist() == list(range(51)), "all that the table has"
    assert torch.equal(rows[7], position_rows(config, 7, 10, torch.device("cpu")))
    assert not torch.equal(rows[7], rows[8])


def test_random_positions_are_trained_on_random_rows_and_asked_on_even_ones():
    training = trainer(positions="random", mask="ar", max_examples=8)
    start = training.model.wpe.weight.clone()
    for _ in range(8):
        training.update()
    moved = (training.model.wpe.weight - start).abs().sum(1) > 0
    assert moved.sum() > 12, "of 17 rows, where absolute positions train the first 7"
    model, prompt = loud_model("ar", positions="random", max_examples=8), random_prompt(2, 3, 1)
    even = model(*prompt).query
    torch.testing.assert_close(model(*prompt, rows=torch.tensor([0, 3, 5, 8, 11, 13, 16])).query, even)
    assert (model(*prompt, rows=torch.arange(7)).query - even).abs().max() > 1e-3
    with pytest.raises(InputError, match="at most 8 with random positions"):
        model(*random_prompt(2, 9, 1))


def test_context_predictions_may_be_read_at_an_earlier_copy():
    prompt = random_prompt(2, 4, 1)
    twice = loud_model("ar", copies=2, reads=0)
    once = loud_model("ar")
    once.load_state_dict(twice.state_dict())
    out = twice(*prompt)
    torch.testing.assert_close(out.context, once(*prompt).context, rtol=0, atol=1e-10)
    assert (out.query - once(*prompt).query).abs().max() > 1e-3
    leaky, clean = (tiny_config(mask="ar", copies=2, reads=reads) for reads in (None, 0))
    assert leaky.leaks and not leaky.on_context and not clean.leaks and clean.on_context
    assert clean.method == "ar+×2+reads 0"


@pytest.mark.parametrize("mask, on", [("ar", True), ("nope", True), ("invicl", True), ("boe", False), ("pfn", False),
                                      ("prefix", False), ("saicl", False), ("batchicl", False)])  # fmt: skip
def test_the_loss_is_on_what_can_be_learned(mask, on):
    assert tiny_config(mask=mask).on_context is on
    assert tiny_config(mask=mask, loss="all").on_context


def test_passes_that_are_averaged_know_one_example_each(tmp_path, cli):
    """A strategy of one's own: what its mask would show of other examples is in other passes."""
    causal = Strategy("causal", STRATEGIES["ar"].sees, average=True)
    assert not tiny_config(mask="batchicl").dependencies().informed
    (tmp_path / "my.py").write_text(
        "from minicl import strategy\n\n\n@strategy(average=True)\n"
        "def leaky(q, k):\n    return k.is_label & ~q.is_query\n"
    )
    mine = tiny_config(mask=f"{tmp_path}/my.py:leaky")
    assert mine.leaks and not mine.dependencies().informed and not mine.on_context
    assert "label reaches its own prediction" in cli("audit", "--masks", "my.py:leaky").stdout
    assert not audit(causal, layers=2, examples=3)["interdependent"]
    assert loud_model("batchicl", n_layer=1).config.averaged_at == 1, "the context is seen, however few layers"
    assert_one_line(cli("theory", "--masks", "boe,batchicl"), "masks", "batchicl", "averages")


def test_a_deepset_is_a_mean_and_leaves_each_example_out_of_its_own():
    model = make_model(ModelConfig(3, architecture="deepset", n_layer=4, n_head=1, n_embd=16)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4)
    xs, ys, queries = random_prompt(2, 5, 3)

    def literal(b, chosen, query):
        parts = []
        for i in chosen:
            h = model.read_in(torch.cat([xs[b, i], ys[b, i : i + 1]]))
            for block_ in model.blocks[:2]:
                h = h + block_(h)
            parts.append(h)
        told = torch.stack(parts).mean(0) if parts else torch.zeros(16, dtype=torch.double)
        h = model.read_query(query) + told
        for block_ in model.blocks[2:]:
            h = h + block_(h)
        return model.read_out(model.ln_f(h))[0]

    out = model(xs, ys, queries)
    for b in range(2):
        expected = torch.stack([literal(b, range(5), q) for q in queries[b]])
        torch.testing.assert_close(out.query[b], expected, rtol=0, atol=1e-10)
        left_out = torch.stack([literal(b, [j for j in range(5) if j != i], xs[b, i]) for i in range(5)])
        torch.testing.assert_close(out.context[b], left_out, rtol=0, atol=1e-10)
    none = model(xs[:, :0], ys[:, :0], queries)
    torch.testing.assert_close(none.query[0, 0], literal(0, [], queries[0, 0]), rtol=0, atol=1e-10)


def test_a_deepset_is_trained_saved_and_measured_as_any_run(cli, tmp_path):
    run = tmp_path / "deepset"
    result = cli("train", *flags(architecture="deepset", n_layer=2), "--out", run)
    assert result.returncode == 0 and "trained on context and query predictions" in result.stderr
    result_of_training = result.stderr
    result = cli("evaluate", run, "--prompts", 16, "--json")
    assert json.loads(result.stdout)[0]["method"] == "deepset"
    assert cli("evaluate", run, "--order", "--prompts", 16).returncode == 0
    assert cli("train", *flags(architecture="deepset"), "--dry-run").returncode == 0
    assert_one_line(cli("probe", run), "probe", "set encoder", "runs of transformers")
    assert_one_line(cli("theory", "--run", run), "run", "set encoder", "runs of transformers")
    assert "a set encoder" in result_of_training and "mask" not in result_of_training.split(",")[1]
    assert (
        json.loads(cli("evaluate", run, "--prompts", 8, "--max-examples", 20, "--json").stdout)[0]["lengths"][-1] == 20
    )


def test_a_window_shows_a_model_the_last_examples_only(whole, cli, tmp_path):
    whole = shutil.copytree(whole, tmp_path / "whole")
    model, prompt = loud_model("ar"), random_prompt(2, 9, 9)
    expected = torch.cat([model(prompt[0][:, s:n], prompt[1][:, s:n], prompt[2][:, n : n + 1]).query
                          for s, n in ((0, 0), (0, 3), (1, 5), (4, 8))], dim=1)  # fmt: skip
    torch.testing.assert_close(answers(Windowed(model, 4), *prompt, [0, 3, 5, 8]), expected)
    full, windowed = (json.loads(cli("evaluate", whole, "--prompts", 16, *more, "--json").stdout)[0]
                      for more in ((), ("--window", 3)))  # fmt: skip
    assert windowed["method"] == f"{full['method']}, last 3"
    assert windowed["mean"][:4] == pytest.approx(full["mean"][:4]) and windowed["mean"][5] != full["mean"][5]
    assert_one_line(cli("evaluate", whole, "--window", 0), "window", "0", "at least 1")
    assert "40" in cli("evaluate", whole, "--prompts", 8, "--window", 3, "--max-examples", 40).stdout, (
        "beyond its table"
    )
    assert f"{full['method']}, last 3" in cli("evaluate", whole, "--order", "--prompts", 8, "--window", 3).stdout
