"""The model against independent readings of the same definitions."""

import math
import pickle

import pytest
import torch
from conftest import EVERY, MASKS, loud_model, random_prompt
from torch.nn import functional as F

from minicl import ModelConfig, Transformer
from minicl.masks import STRATEGIES, Strategy, layout

OWN = {  # strategies that use what built-in ones do not
    "layered": Strategy("layered", lambda q, k, layer: STRATEGIES["boe" if layer < 3 else "prefix"](q, k)),
    "layered, sees query": Strategy(
        "late", lambda q, k, layer: STRATEGIES["boe" if layer < 3 else "saicl"](q, k), sees_query=True
    ),
    "query": Strategy("labels", STRATEGIES["boe"].sees, query=lambda q, k: k.is_label),
}


def block(model, layer, me, seen):
    """One block for one token, from the token's own state and the list of states that it attends to, in plain steps."""
    b, H = model.blocks[layer], model.config.n_head
    q, k, v = b.attn.c_attn(b.ln_1(torch.stack([me, *seen]))).chunk(3, dim=-1)
    heads = []
    for h in range(H):
        part = slice(h * q.shape[-1] // H, (h + 1) * q.shape[-1] // H)
        weights = torch.softmax(k[1:, part] @ q[0, part] / math.sqrt(q.shape[-1] // H), dim=0)
        heads.append(weights @ v[1:, part])
    me = me + b.attn.c_proj(torch.cat(heads))
    u = b.mlp.c_fc(b.ln_2(me))
    return me + b.mlp.c_proj(0.5 * u * (1 + torch.erf(u / math.sqrt(2))))


def embed(model, value, position):
    token = F.pad(value.reshape(-1), (0, model.config.n_dims - value.numel()))
    return model.read_in(token) + (0 if model.wpe is None else model.wpe.weight[position])


def read(model, h):
    return model.read_out(model.ln_f(h))[0]


def dense(model, xs, ys, query, masks, positions):
    """The answers at all tokens of one prompt, block by block; `masks` has one table per layer."""
    pairs = [v for x, y in zip(xs, ys, strict=True) for v in (x, y)]
    places = [0] * len(masks[0]) if positions is None else positions.tolist()
    h = [embed(model, v, p) for v, p in zip(pairs * model.copies + [query], places, strict=True)]
    for layer, mask in enumerate(masks):
        h = [block(model, layer, h[t], [h[k] for k in mask[t].nonzero()]) for t in range(len(h))]
    return torch.stack([read(model, state) for state in h])


def assert_equals_dense(model, built, masks):
    """The model's answers to a prompt are those of `dense` under these masks."""
    xs, ys, queries = random_prompt(1, len(built.context), 1)
    expected = dense(model, xs[0], ys[0], queries[0, 0], masks, built.positions)
    out = model(xs, ys, queries)
    torch.testing.assert_close(out.context[0], expected[built.context], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(out.query[0], expected[built.query], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions, copies", [(None, None), ("absolute", 2), ("none", 3)])
@pytest.mark.parametrize("mask", MASKS)
def test_model_equals_plain_softmax_attention(mask, positions, copies):
    built = layout(mask, 3, 1, positions, copies)
    assert_equals_dense(loud_model(mask, n_layer=2, positions=positions, copies=copies), built, [built.mask] * 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("first, rest", [("boe", "prefix"), ("prefix", "ar"), ("ar", "boe"), ("boe", "saicl")])
def test_a_layered_mask_is_one_mask_in_its_first_layers_and_another_in_the_rest(first, rest, depth):
    def both(q, k, layer):
        return STRATEGIES[first if layer <= depth else rest](q, k)

    sees_query = STRATEGIES[rest].sees_query
    model = loud_model(Strategy("both", both, sees_query=sees_query), n_layer=4)
    masks = [layout(first, 3, 1).mask] * depth + [layout(rest, 3, 1).mask] * (4 - depth)
    assert_equals_dense(model, model.layout(3, 1), masks)
    plain = loud_model(first, n_layer=4, positions="symmetric")
    prompt = random_prompt(2, 3, 1)
    assert (model(*prompt).context - plain(*prompt).context).abs().max() > 1e-4, "the rest matters"


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize(
    "mask, sees",
    [
        ("boe", lambda token, copy, layer: token % 2 == 1),
        ("invicl", lambda token, copy, layer: True),
        ("invicl", lambda token, copy, layer: copy == layer % 2),
    ],
    ids=["only labels", "both copies", "the copies in turns"],
)
def test_a_query_sees_whom_its_strategy_says(mask, sees, blind):
    own = STRATEGIES[mask]
    n, T = 3, 6 * own.copies

    def query(q, k, layer):
        return torch.tensor([[bool(sees(t, t // 6, layer)) and t < T for t in range(k.copy.shape[1])]])

    strategy = Strategy("mine", own.sees, copies=own.copies, query=query, blind_query=blind)
    masks = []
    for layer in (1, 2, 3):
        usual = layout(own, n, 1).mask.clone()
        usual[T] = torch.tensor([bool(sees(t, t // 6, layer)) for t in range(T)] + [not blind])
        masks.append(usual)
    model = loud_model(strategy, n_layer=3)
    assert_equals_dense(model, model.layout(n, 1), masks)


def algorithm_1(model, xs, ys, x_t):
    """The paper's Algorithm 1 for one prompt, loop by loop, with no mask anywhere."""
    n = len(xs)
    alone_x, alone_y = [embed(model, x, 0) for x in xs], [embed(model, y, 1) for y in ys]  # the barred encodings
    loo_x, loo_y, h_t = list(alone_x), list(alone_y), embed(model, x_t, 2)
    for layer in range(model.config.n_layer):
        new_alone_x, new_alone_y, new_loo_x, new_loo_y = [], [], [], []
        for i in range(n):
            new_alone_x.append(block(model, layer, alone_x[i], [alone_x[i]]))
            new_alone_y.append(block(model, layer, alone_y[i], [alone_x[i], alone_y[i]]))
        for i in range(n):
            others = [h for j in range(n) if j != i for h in (alone_x[j], alone_y[j])]
            new_loo_x.append(block(model, layer, loo_x[i], [*others, loo_x[i]]))
            new_loo_y.append(block(model, layer, loo_y[i], [*others, loo_x[i], loo_y[i]]))
        h_t = block(model, layer, h_t, [*loo_x, *loo_y, h_t])
        alone_x, alone_y, loo_x, loo_y = new_alone_x, new_alone_y, new_loo_x, new_loo_y
    return torch.stack([read(model, h) for h in loo_x]), read(model, h_t)


@pytest.mark.parametrize("n", range(1, 7))
def test_invicl_equals_algorithm_1(n):
    model = loud_model("invicl", n_layer=12, n_embd=16)
    xs, ys, queries = random_prompt(1, n, 1, seed=n)
    context, query = algorithm_1(model, xs[0], ys[0], queries[0, 0])
    out = model(xs, ys, queries)
    torch.testing.assert_close(out.context[0], context, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.query[0, 0], query, rtol=0, atol=1e-10)


def test_symmetric_positions_may_start_at_a_scale_of_their_own():
    torch.manual_seed(0)
    start = {m: Transformer(ModelConfig(mask=m, symmetric_std=0.5)).wpe.weight.std().item() for m in ("invicl", "ar")}
    assert start == pytest.approx({"invicl": 0.5, "ar": 0.02}, rel=0.1), "absolute ones stay as they are"
    assert Transformer(ModelConfig(mask="invicl", init_std=0.1)).wpe.weight.std().item() == pytest.approx(0.1, rel=0.1)


def test_invicl_context_prediction_is_boe_without_that_example():
    invicl = loud_model("invicl", n_layer=12)
    boe = loud_model("boe", n_layer=12)
    boe.load_state_dict(invicl.state_dict())
    with torch.no_grad():
        boe.wpe.weight[2] = boe.wpe.weight[0]  # the left-out x asks from where it stood
    xs, ys, queries = random_prompt(2, 5, 1)
    context = invicl(xs, ys, queries).context
    for i in range(5):
        rest = [j for j in range(5) if j != i]
        alone = boe(xs[:, rest], ys[:, rest], xs[:, i : i + 1]).query[:, 0]
        torch.testing.assert_close(context[:, i], alone, rtol=0, atol=1e-10)


def test_ar_equals_hugging_face_gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = Transformer(ModelConfig(n_dims=5, mask="ar", n_layer=3, n_head=4, n_embd=32, max_examples=10)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.4)
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=21,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        activation_function="gelu",
    )
    gpt2 = transformers.GPT2Model(config).eval()
    linear = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ours = {k.replace("blocks.", "h.") for k in model.state_dict() if not k.startswith("read_")}
    with torch.no_grad():
        state = gpt2.state_dict()
        assert {k for k in state if k != "wte.weight"} == ours
        for name in ours:
            value = model.state_dict()[name.replace("h.", "blocks.", 1) if name.startswith("h.") else name]
            is_linear = any(part in name for part in linear) and name.endswith("weight")
            state[name].copy_(value.T if is_linear else value)  # its Conv1D is our Linear, transposed
        xs, ys, queries = random_prompt(4, 10, 1, d=5, dtype=torch.float)
        tokens = torch.stack([xs, F.pad(ys[..., None], (0, 4))], dim=2).flatten(1, 2)
        tokens = torch.cat([tokens, queries], dim=1)
        hidden = gpt2(inputs_embeds=model.read_in(tokens)).last_hidden_state
        expected = model.read_out(hidden)[..., 0]
        out = model(xs, ys, queries)
    assert expected.std() > 0.1
    torch.testing.assert_close(out.context, expected[:, 0:-1:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.query, expected[:, -1:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", EVERY)
def test_shuffling_the_context(mask):
    model = loud_model(mask, n_layer=12)
    xs, ys, queries = random_prompt(3, 8, 2)
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    change = (model(xs, ys, queries).query - model(xs[:, order], ys[:, order], queries).query).abs().max()
    if mask in ("ar", "nope"):
        assert change > 1e-3
    else:
        assert change < 1e-10


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("mask", [*EVERY, *OWN])
def test_many_queries_give_what_each_gives_alone(mask, n, copies):
    model = loud_model(OWN.get(mask, mask), copies=copies)
    xs, ys, queries = random_prompt(2, n, 5)
    together = model(xs, ys, queries, hidden=[0, 4])
    for j in range(5):
        alone = model(xs, ys, queries[:, j : j + 1], hidden=[0, 4])
        torch.testing.assert_close(together.query[:, j : j + 1], alone.query, rtol=0, atol=1e-12)
        for layer in (0, 4):
            mine = together.hidden[layer].query[:, j : j + 1]
            torch.testing.assert_close(mine, alone.hidden[layer].query, rtol=0, atol=1e-12)
        if j == 0:
            torch.testing.assert_close(together.context, alone.context, rtol=0, atol=1e-12)
    assert model(xs, ys, queries[:, :0]).query.shape == (2, 0)


def test_hidden_states_are_the_ones_that_predictions_are_read_from():
    model = loud_model("invicl")
    xs, ys, queries = random_prompt(2, 3, 2)
    out = model(xs, ys, queries, hidden=range(5))
    assert sorted(out.hidden) == [0, 1, 2, 3, 4]
    assert out.hidden[2].context.shape == (2, 3, 32) and out.hidden[2].query.shape == (2, 2, 32)
    torch.testing.assert_close(model.read_out(model.ln_f(out.hidden[4].query))[..., 0], out.query)
    torch.testing.assert_close(model.read_out(model.ln_f(out.hidden[4].context))[..., 0], out.context)
    embedded = model.read_in(queries) + model.wpe.weight[2]
    torch.testing.assert_close(out.hidden[0].query, embedded)


def test_gpt2_initialisation():
    torch.manual_seed(0)
    model = Transformer(ModelConfig())
    assert (model.config.n_layer, model.config.n_head, model.config.n_embd) == (12, 8, 256)
    for name, p in model.named_parameters():
        if "ln_" in name:
            assert (p == (1 if name.endswith("weight") else 0)).all()
        elif name.endswith("bias"):
            assert (p == 0).all()
        else:
            expected = 0.02 / math.sqrt(24) if "c_proj" in name else 0.02
            assert abs(p.std().item() / expected - 1) < 0.15, name
    assert 9.4e6 < sum(p.numel() for p in model.parameters()) < 9.6e6


def test_read_in_and_read_out_may_start_as_in_2022():
    """Uniform up to 1/√inputs, biases too; all else stays as it is."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(read_start="torch"))
    for layer, inputs in ((model.read_in, 20), (model.read_out, 256)):
        assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(3 * inputs), rel=0.1)
        assert layer.weight.abs().max() <= 1 / math.sqrt(inputs) and (layer.bias != 0).all()
    assert model.blocks[0].attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (model.blocks[0].attn.c_attn.bias == 0).all()


def test_a_model_can_be_pickled_and_outlives_its_mask_file(tmp_path):
    for mask in ("ar", "invicl"):
        model = loud_model(mask)
        prompt = random_prompt(2, 3, 1)
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(*prompt).query, model(*prompt).query)
    file = tmp_path / "my.py"
    for code in (
        "def f(q, k):\n    return k.example < q.example\n",
        "def f(q, k, layer):\n    return k.example < -layer\n",
    ):
        file.write_text(code)
        model = loud_model(f"{file}:f")
        before = model(*prompt).query
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(*prompt).query, before)
        file.unlink()
        torch.testing.assert_close(model(*prompt).query, before)


@pytest.mark.parametrize("mask", [*EVERY, *OWN])
def test_the_forward_pass_compiles_to_one_graph(mask):
    torch._dynamo.reset()
    model = loud_model(OWN.get(mask, mask), n_layer=3).train()
    prompt = random_prompt(2, 3, 1)
    built = model.layout(3, 1)
    assert built.causal == (mask in ("ar", "nope"))
    explained = torch._dynamo.explain(model.propagate)(*prompt, built)
    assert explained.graph_break_count == 0 and explained.graph_count == 1


def test_a_causal_mask_takes_the_causal_path(monkeypatch):
    given = []
    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: given.append(k) or attention(*a, **k))
    loud_model("ar")(*random_prompt(1, 3, 1))
    causal = [k["is_causal"] and k["attn_mask"] is None for k in given]
    assert causal == [True] * 4
    given.clear()
    loud_model("boe")(*random_prompt(1, 3, 1))
    assert [k["is_causal"] for k in given] == [False] * 4 and all(k["attn_mask"] is not None for k in given)


def test_an_evaluation_first_does_not_spoil_training():
    model = Transformer(ModelConfig(n_dims=3, mask="prefix", n_layer=1, n_head=1, n_embd=8))
    prompt = random_prompt(2, 7, 3, dtype=torch.float)
    with torch.inference_mode():
        model(*prompt)
    model(*prompt).query.sum().backward()
    assert model.read_in.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda p: p | {"xs": p["xs"][0]}, ("xs", "shape (3, 4)", "shape (B, n, 4)")),
        (lambda p: p | {"xs": p["xs"][..., :2]}, ("xs", "shape (2, 3, 2)", "shape (B, n, 4)")),
        (lambda p: p | {"ys": p["ys"][:, :2]}, ("ys", "shape (2, 2)", "shape (2, 3)")),
        (lambda p: p | {"ys": p["ys"][..., None]}, ("ys", "shape (2, 3, 1)")),
        (lambda p: p | {"queries": p["queries"][:1]}, ("queries", "shape (1, 2, 4)", "shape (2, m, 4)")),
        (lambda p: p | {"queries": p["queries"][:, 0]}, ("queries", "shape (2, 4)")),
        (lambda p: p | {"xs": p["xs"].double()}, ("xs", "torch.float64", "torch.float32")),
        (lambda p: p | {"ys": p["ys"].tolist()}, ("ys", "list", "a tensor")),
        (lambda p: p | {"xs": p["xs"] / 0}, ("xs", "NaN or infinity")),
        (lambda p: p | {"ys": p["ys"] * math.nan}, ("ys", "NaN or infinity")),
        (lambda p: p | {"hidden": [3]}, ("hidden", "[3]", "0 to 2")),
    ],
)
def test_bad_input_names_the_argument(change, words):
    model = Transformer(ModelConfig(n_dims=4, mask="invicl", n_layer=2, n_head=2, n_embd=8))
    prompt = dict(zip(("xs", "ys", "queries"), random_prompt(2, 3, 2, d=4, dtype=torch.float), strict=True))
    with pytest.raises(ValueError) as error:
        model(**change(prompt))
    for word in words:
        assert word in str(error.value)


def test_absolute_positions_end_somewhere():
    small = {"n_dims": 4, "n_layer": 1, "n_head": 1, "n_embd": 8, "max_examples": 5}
    prompt = random_prompt(1, 6, 1, d=4, dtype=torch.float)
    with pytest.raises(ValueError, match=r"xs: got 6 examples, allowed: at most 5 with absolute positions"):
        Transformer(ModelConfig(mask="ar", **small))(*prompt)
    for positions in ("symmetric", "none"):
        assert Transformer(ModelConfig(mask="ar", positions=positions, **small))(*prompt).query.shape == (1, 1)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"n_embd": 30}, ("n_embd", "30", "multiple of n_head = 8")),
        ({"n_layer": 0}, ("n_layer", "0", "at least 1")),
        ({"n_dims": 2.5}, ("n_dims", "2.5")),
        ({"n_head": True}, ("n_head", "True")),
        (
            {"positions": "sideways"},
            ("positions", "sideways", "absolute, random, rotary, symmetric"),
        ),
        ({"mask": "invicl", "copies": 1}, ("copies", "invicl", "1", "at least 2")),
        ({"mask": "nonsense"}, ("mask", "nonsense", "ar, nope")),
    ],
)
def test_bad_settings_name_the_setting(settings, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(**settings)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("mask", ["ar", "nope"])
def test_under_autocast_the_residual_stream_stays_float32(mask):
    """Positions, which are added in float32, must not decide in which arithmetic a strategy is computed."""
    model = loud_model(mask, n_layer=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(*(t.float() for t in random_prompt(2, 3, 1)), hidden=(0, 1, 2))
    assert all(reading.query.dtype == torch.float32 for reading in out.hidden.values())
