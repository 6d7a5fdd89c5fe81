import copy
import pickle
import textwrap
import weakref

import pytest
import torch
from conftest import EVERY

from minicl import ModelConfig
from minicl.checks import InputError
from minicl.masks import STRATEGIES, Strategy, get_strategy, layout

# Written by hand, token by token: rows and columns are x1 y1 x2 y2 x3 y3 and the query (InvICL: both copies first).
AR = """
    1......
    11.....
    111....
    1111...
    11111..
    111111.
    1111111"""
BY_HAND = {
    "ar": AR,
    "nope": AR,
    "prefix": """
    111111.
    111111.
    111111.
    111111.
    111111.
    111111.
    1111111""",
    "boe": """
    1......
    11.....
    ..1....
    ..11...
    ....1..
    ....11.
    1111111""",
    "pfn": """
    1......
    11.1.1.
    ..1....
    .111.1.
    ....1..
    .1.111.
    1111111""",
    "saicl": """
    1.....1
    11....1
    ..1...1
    ..11..1
    ....1.1
    ....111
    1111111""",
    "prefix_others": """
    1.1111.
    111111.
    111.11.
    111111.
    11111..
    111111.
    1111111""",
    "invicl": """
    1............
    11...........
    ..1..........
    ..11.........
    ....1........
    ....11.......
    ..11111......
    ..111111.....
    11..11..1....
    11..11..11...
    1111......1..
    1111......11.
    ......1111111""",
}


BY_HAND["batchicl"] = BY_HAND["boe"]


def parse(picture):
    return torch.tensor([[c == "1" for c in row] for row in textwrap.dedent(picture).split()])


@pytest.mark.parametrize("mask", EVERY)
def test_mask_is_the_one_drawn_by_hand(mask):
    assert torch.equal(layout(STRATEGIES[mask], n=3, m=1).mask, parse(BY_HAND[mask]))


@pytest.mark.parametrize("copies", [None, 2, 3])
@pytest.mark.parametrize("mask", EVERY)
@pytest.mark.parametrize("n, m", [(0, 1), (1, 1), (3, 0), (4, 3)])
def test_two_rules_hold_under_every_strategy(mask, n, m, copies):
    built = layout(STRATEGIES[mask], n, m, copies=copies)
    copies = copies or STRATEGIES[mask].copies
    context = 2 * n * copies
    assert built.mask.diagonal().all(), "every token sees itself, so no row is empty"
    assert torch.equal(built.mask[context:, context:], torch.eye(m, dtype=torch.bool)), "a query sees no other query"
    assert built.mask[context:, context - 2 * n : context].all(), "a query sees the last copy"
    assert not built.mask[context:, : context - 2 * n].any(), "and no other"
    for x in range(0, context, 2):
        assert built.mask[x + 1, x], "y sees its x"
    assert built.context.tolist() == list(range(context - 2 * n, context, 2))
    assert built.query.tolist() == list(range(context, context + m))


def test_positions():
    def positions(mask, which, copies=None):
        return layout(STRATEGIES[mask], 2, 2, which, copies).positions.tolist()

    assert positions("ar", "absolute") == [0, 1, 2, 3, 4, 4]
    assert positions("ar", "symmetric") == [0, 1, 0, 1, 2, 2]
    assert positions("invicl", "absolute") == [0, 1, 2, 3, 0, 1, 2, 3, 4, 4]
    assert positions("invicl", "symmetric") == [0, 1, 0, 1, 0, 1, 0, 1, 2, 2]
    assert layout(STRATEGIES["nope"], 2, 2).positions is None
    assert [STRATEGIES[m].positions for m in ("ar", "nope", "invicl")] == ["absolute", "none", "symmetric"]


def test_doubled_input_is_the_same_rule_on_the_context_fed_twice():
    ar = layout(STRATEGIES["ar"], 2, 1, copies=2).mask
    assert torch.equal(ar[:8, :8], torch.ones(8, 8, dtype=torch.bool).tril())
    assert ar[8].tolist() == [False] * 4 + [True] * 5
    assert layout(STRATEGIES["prefix"], 2, 1, copies=2).mask[:8, :8].all()
    boe = layout(STRATEGIES["boe"], 2, 1, copies=2).mask
    assert boe[4].tolist() == [True, True, False, False, True, False, False, False, False]


def test_only_a_lower_triangle_takes_the_causal_path():
    causal = {mask for mask in EVERY if layout(STRATEGIES[mask], 3, 1).causal}
    assert causal == {"ar", "nope"}
    assert not layout(STRATEGIES["ar"], 3, 2).causal


@pytest.mark.parametrize("mask", EVERY)
def test_a_blind_query_sees_the_context_alone(mask):
    usual = ModelConfig(mask=mask).strategy
    blind = ModelConfig(mask=mask, blind_query=True).strategy
    built, before = layout(blind, 3, 2), layout(usual, 3, 2)
    rows = built.query
    assert not built.mask[rows, rows].any() and before.mask[rows, rows].all()
    assert int((built.mask != before.mask).sum()) == 2, "nothing else changes"
    assert layout(blind, 0, 2).mask.equal(torch.eye(2, dtype=torch.bool)), "nothing but itself is there"
    assert ModelConfig(mask=Strategy("own", usual.sees, blind_query=True)).strategy.blind_query, (
        "a strategy's own choice"
    )
    assert pickle.loads(pickle.dumps(blind)).blind_query and not pickle.loads(pickle.dumps(usual)).blind_query


def test_layouts_are_built_once():
    assert layout(STRATEGIES["ar"], 5, 1) is layout(STRATEGIES["ar"], 5, 1)


WINDOW = '''
from minicl import strategy

@strategy(positions="absolute")
def window(q, k):
    """Each example sees the two before it."""
    return (k.example < q.example) & (q.example - k.example <= 2)
'''


def test_strategy_from_a_file_in_ten_lines(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(WINDOW)
    assert len(WINDOW.strip().splitlines()) <= 10
    mine = get_strategy(f"{file}:window")
    mask = layout(mine, 4, 1).mask
    assert mine.positions == "absolute" and mine.summary == "Each example sees the two before it."
    assert mask[6].tolist() == [False, False, True, True, True, True, True, False, False]
    assert get_strategy(f"{file}:window") is mine
    file.write_text(WINDOW.replace("<= 2", "<= 1"))
    assert not layout(get_strategy(f"{file}:window"), 4, 1).mask[6, 2], "an edited file is read again"


def test_a_file_s_copies_and_sees_query_count_and_what_it_prints_goes_aside(tmp_path, capsys):
    source = "from minicl import strategy\nprint('hello')\n@strategy(copies=2, sees_query=True)\n"
    (tmp_path / "my.py").write_text(source + "def f(q, k):\n    print('asked')\n    return k.is_query & ~q.is_query\n")
    mine = get_strategy(f"{tmp_path}/my.py:f")
    assert (mine.copies, mine.sees_query) == (2, True)
    assert layout(mine, 1, 1).mask[:4, 4].all()
    printed = capsys.readouterr()
    assert printed.out == "" and "hello" in printed.err and "asked" in printed.err


def test_invicl_s_later_copies_see_copy_0():
    mask = layout("invicl", 2, 1, copies=3).mask
    assert mask[8, :8].tolist() == [False, False, True, True] + [False] * 4


def test_layout_checks_what_it_is_asked_for():
    for settings in ({"positions": "absolut"}, {"copies": 1}, {"n": -1}):
        with pytest.raises(InputError):
            layout("invicl", **({"n": 2, "m": 1} | settings))


def test_plain_function_is_a_strategy_too(tmp_path):
    (tmp_path / "my.py").write_text("def all_x(q, k):\n    return ~k.is_label & ~q.is_query\n")
    plain = get_strategy(f"{tmp_path}/my.py:all_x")
    assert (plain.positions, plain.copies) == ("symmetric", 1)
    assert layout(plain, 2, 1).mask[0].tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    "source, words",
    [
        ("import nonsense_module", ("failed to import", "nonsense_module")),
        ("def f(q, k:", ("failed to import", "SyntaxError")),
        ("raise SystemExit(0)", ("failed to import", "SystemExit")),
        (
            "from minicl import strategy\n@strategy(positions='symetric')\ndef f(q, k): return k.is_label",
            ("my.py: positions of mask f: got 'symetric' (did you mean symmetric?)",),
        ),
        (
            "from minicl import strategy\n@strategy(position='none')\ndef f(q, k): return k.is_label",
            ("my.py: settings of a mask: got 'position' (did you mean positions?)", "copies"),
        ),
        ("def f(q, k):\n    raise SystemExit(0)", ("its predicate failed", "SystemExit")),
        ("def g(q, k):\n    return k.is_label", ("has no 'f'", "it has: g")),
        ("f = 3", ("int", "a function of (q, k) or (q, k, layer)")),
        ("def f(q, k):\n    return k.example", ("torch.int64", "boolean")),
        ("def f(q, k):\n    return True", ("bool", "a boolean tensor")),
        ("def f(q, k):\n    return (k.example < q.example)[1:, 1:]", ("shape (7, 7)", "(8, 8)")),
        ("def f(q, k):\n    return k.colour", ("its predicate failed", "colour", "copy, example, is_label, is_query")),
        ("def f(q, k):\n    return True if k.is_label else False", ("its predicate failed", "write & | ~")),
        ("def f(q, k):\n    return ~k.is_label", ("true where q is a query", "& ~q.is_query", "strategy(query=…)")),
        (
            "import torch\ndef f(q, k):\n    return (torch.rand(k.example.shape) < 0.5) & ~q.is_query",
            ("another one each time", "the same one"),
        ),
        (
            "import torch\nfrom minicl import strategy\n@strategy(query=lambda q, k: torch.rand(k.example.shape) < 0.5)"
            "\ndef f(q, k):\n    return k.example < q.example",
            ("another one each time",),
        ),
        (
            "from minicl import strategy\n@strategy(query=lambda q, k: k.example)\ndef f(q, k):\n"
            "    return k.example < q.example",
            ("torch.int64", "boolean"),
        ),
        ("def f(q, k, layer):\n    return k.examples < layer", ("its predicate failed", "examples")),
        ("def f(q, k, layer):\n    return k.is_label & (layer > 1)", ("true where q is a query",)),
        ("from minicl import strategy\n@strategy(positions='up')\ndef f(q, k):\n    return k.is_label", ("'up'",)),
        ("from minicl import strategy\n@strategy(copies=0)\ndef f(q, k):\n    return k.is_label", ("copies", "0")),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, source, words):
    (tmp_path / "my.py").write_text(source)
    with pytest.raises(InputError) as error:
        get_strategy(f"{tmp_path}/my.py:f")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_unknown_names_say_what_there_is(tmp_path):
    with pytest.raises(InputError, match=r"'invcl' \(did you mean invicl\?\), allowed: ar, nope, prefix"):
        get_strategy("invcl")
    with pytest.raises(InputError, match=r"there is no file '.*gone.py'"):
        get_strategy(f"{tmp_path}/gone.py:f")


def test_strategies_compose():
    q = k = layout(STRATEGIES["ar"], 3, 1).tokens
    q, k = q.view(-1, 1), k.view(1, -1)
    either = Strategy("either", lambda q, k: STRATEGIES["ar"](q, k) | STRATEGIES["boe"](q, k))
    assert torch.equal(either(q, k), STRATEGIES["ar"](q, k))


def test_layouts_are_kept_while_they_are_small():
    assert all(layout("invicl", n, 1) is kept for n, kept in [(n, layout("invicl", n, 1)) for n in range(150)])
    large = [weakref.ref(layout("prefix", n, 1)) for n in range(600, 612)]
    assert sum(r() is not None for r in large) <= 4, "many large masks would fill the memory"


def alternate(q, k, layer):
    """Odd layers: everything before it. Even layers: its own example."""
    return STRATEGIES["ar" if layer % 2 else "boe"](q, k)


def test_a_predicate_may_ask_for_the_layer():
    mine = Strategy("mine", alternate)
    assert mine.layered and not any(s.layered for s in STRATEGIES.values())
    built = layout(mine, 3, 2, layers=5)
    assert built.mask.shape == (5, 8, 8)
    for layer, mask in enumerate(built.mask, start=1):
        assert torch.equal(mask, layout("ar" if layer % 2 else "boe", 3, 2).mask), "layers count from 1"
    assert torch.equal(built.masks(5), built.mask) and not built.causal
    assert layout("ar", 3, 2).masks(4).shape == (4, 8, 8)


def test_pairs_are_a_mean_where_layers_differ():
    ar, boe = layout("ar", 3, 1), layout("boe", 3, 1)
    mine = layout(Strategy("mine", alternate), 3, 1, layers=3)
    assert mine.pairs == pytest.approx((2 * ar.pairs + boe.pairs) / 3)
    assert mine.pairs_computed == 7 * 7 and ar.pairs == ar.pairs_computed == 28


@pytest.mark.parametrize("layers", [None, 0])
def test_a_layered_mask_needs_to_know_the_depth(layers):
    with pytest.raises(InputError, match=r"layers with mask mine, which differs from layer to layer: got (None|0)"):
        layout(Strategy("mine", alternate), 3, 1, layers=layers)


def test_a_third_parameter_with_a_default_is_the_user_s_own():
    def window(q, k, width=2):
        return (k.example < q.example) & (q.example - k.example <= width)

    mine = Strategy("window", window)
    assert not mine.layered and layout(mine, 4, 1).mask.ndim == 2
    assert Strategy("late", lambda q, k, layer=1: k.example < q.example).layered


def test_a_strategy_is_as_layered_as_the_one_it_is_made_of():
    assert Strategy("again", Strategy("mine", alternate)).layered and not Strategy("again", STRATEGIES["ar"]).layered
    both = layout(Strategy("again", Strategy("mine", alternate)), 2, 1, layers=2).mask
    assert torch.equal(both, layout(Strategy("mine", alternate), 2, 1, layers=2).mask)


@pytest.mark.parametrize("blind", [False, True])
def test_a_strategy_may_say_whom_the_query_sees(blind):
    boe, n, m = STRATEGIES["boe"].sees, 2, 2
    usual = layout(Strategy("usual", boe, blind_query=blind), n, m, copies=2)

    def rows(query):
        mine = layout(Strategy("mine", boe, query=query, blind_query=blind), n, m, copies=2, layers=3)
        context = mine.mask[..., :-m, :]
        assert torch.equal(context, usual.mask[:-m].expand_as(context)), "the context is as it was"
        queries = mine.mask[..., -m:, -m:]
        own = torch.eye(m, dtype=torch.bool) & (not blind)
        assert torch.equal(queries, own.expand_as(queries)), "no other query, and itself as always"
        return mine.mask[..., -m:, :-m].int()

    assert rows(lambda q, k: k.is_label).tolist() == [[0, 1] * 4] * m, "labels of both copies"
    assert rows(lambda q, k: k.copy == 0).tolist() == [[1] * 4 + [0] * 4] * m
    assert rows(lambda q, k: k.is_query).tolist() == [[0] * 8] * m, "asked for queries, it still sees none"
    by_layer = rows(lambda q, k, layer: k.example < layer - 1)
    assert by_layer[:, 0].tolist() == [[0] * 8, [1, 1, 0, 0] * 2, [1] * 8]


def test_a_file_may_use_layers_and_query(tmp_path):
    code = """
    from minicl import strategy

    @strategy(query=lambda q, k: k.is_label)
    def late(q, k, layer):
        return (k.example < q.example) & (layer > 1)
    """
    (tmp_path / "my.py").write_text(textwrap.dedent(code))
    mine = get_strategy(f"{tmp_path}/my.py:late")
    mask = layout(mine, 2, 1, layers=2).mask
    assert mask[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 1, 0, 1, 1],
    ]
    assert mask[1, 2].int().tolist() == [1, 1, 1, 0, 0]
    again = pickle.loads(pickle.dumps(mine))
    assert torch.equal(layout(again, 2, 1, layers=2).mask, mask)


def test_deep_masks_are_refused_before_they_fill_the_memory():
    with pytest.raises(InputError, match="tokens, allowed: at most 2000"):
        layout(Strategy("mine", alternate), 1001, 1, layers=100)


def test_a_predicate_may_write_into_what_it_is_given():
    def writes(q, k):
        e = k.example
        e[e < 0] = 99
        return (e < q.example) & ~q.is_query

    def reads(q, k):
        return (k.example.where(k.example >= 0, 99) < q.example) & ~q.is_query

    one, other = (layout(Strategy(f.__name__, f), 3, 2) for f in (writes, reads))
    assert torch.equal(one.mask, other.mask) and torch.equal(one.tokens.example, other.tokens.example)


def test_copies_of_a_strategy_keep_its_predicate():
    mine = Strategy("boe", _everything_before)  # its name is that of another
    assert copy.deepcopy(mine).sees is _everything_before
    assert pickle.loads(pickle.dumps(mine)).sees is _everything_before
    assert pickle.loads(pickle.dumps(STRATEGIES["boe"])).sees is STRATEGIES["boe"].sees


def _everything_before(q, k):
    return k.example < q.example


def test_the_layer_is_given_by_name_wherever_it_stands():
    def late(q, k, width=2, *, layer):
        return (layer > 1) & (k.example < q.example)

    masks = layout(Strategy("late", late), 2, 1, layers=2).mask
    assert masks.shape[0] == 2 and masks[1].sum() > masks[0].sum()


def test_a_file_s_strategies_are_offered_when_a_name_is_mistyped(tmp_path):
    (tmp_path / "my.py").write_text(WINDOW)
    with pytest.raises(InputError, match="has no 'windo'; it has: window"):
        get_strategy(f"{tmp_path}/my.py:windo")
