"""What can reach a prediction, and which swaps show, on graphs that are small enough to work out by hand."""

import pytest
import torch
from conftest import EVERY, random_table

from minicl.graph import dependencies, inputs, label_path, label_spread, reach, sees, shown_after, swap
from minicl.masks import Strategy, layout


def test_reach_grows_by_one_hop_per_layer_and_keeps_what_it_had():
    chain = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0]]).bool()  # 1 sees 0, 2 sees 1; nobody sees itself
    heard = [reach([chain] * layers, 3).int().tolist() for layers in range(3)]
    assert heard[0] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "without a layer, each has heard of itself"
    assert heard[1] == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert heard[2] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_reach_depends_on_the_order_of_the_layers():
    first, second = torch.zeros(2, 3, 3, dtype=torch.bool)
    first[1, 0] = second[2, 1] = True
    assert reach([first, second], 3)[2, 0] and not reach([second, first], 3)[2, 0]


def test_reach_takes_many_masks_at_once():
    masks = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.3
    together = reach([masks, masks], 4)
    assert all(torch.equal(together[i], reach([masks[i], masks[i]], 4)) for i in range(5))


@pytest.mark.parametrize("seed", range(5))
def test_dependencies_are_the_paths_that_a_walk_through_the_layers_finds(seed):
    n, layers = 3, 3
    built = layout(random_table(n, 2, seed, 0.15, layered=True), n, 1, layers=layers)
    names = inputs(built)

    def walk(token, layer):
        """The inputs that a token may depend on after so many layers: its own, and those of what it sees."""
        if layer == 0:
            return {names[token]}
        seen = built.mask[layer - 1, token].nonzero()[:, 0].tolist()
        return walk(token, layer - 1).union(*(walk(k, layer - 1) for k in seen))

    depends = dependencies(built, layers)
    for row, token in enumerate([*built.context.tolist(), *built.query.tolist()]):
        on = walk(token, layers)
        assert [("x", j) in on for j in range(n)] == depends.x[row].tolist()
        assert [("y", j) in on for j in range(n)] == depends.y[row].tolist()
        assert (("query", -1) in on) == depends.query[row]


def test_dependence_on_only_a_label_counts():
    """Interdependence asks for the example, so y_j is enough."""

    def labels_only(q, k):
        return (k.example != q.example) & k.is_label & (q.copy == 1) & (k.copy == 0)

    depends = dependencies(layout(Strategy("labels", labels_only, copies=2), 3, 1), 1)
    assert not depends.x[0, 1] and depends.y[0, 1] and depends.examples[0].tolist() == [True, True, True]
    assert depends.leaks == []


@pytest.mark.parametrize("mask", EVERY)
def test_a_query_depends_on_itself_and_on_every_example(mask):
    depends = dependencies(layout(mask, 4, 1), 3)
    assert depends.n == 4 and depends.examples[-1].all() and depends.query[-1]
    assert depends.query[:-1].any() == (mask == "saicl"), "context that sees the query"


def test_inputs_name_what_a_token_is_made_of():
    assert inputs(layout("invicl", 1, 1)) == [("x", 0), ("y", 0), ("x", 0), ("y", 0), ("query", -1)]


def test_swaps_exchange_labels_or_whole_examples():
    assert swap("y", 0, 2) == {("y", 0): ("y", 2), ("y", 2): ("y", 0)}
    assert swap("xy", 0, 1) == swap("y", 0, 1) | {("x", 0): ("x", 1), ("x", 1): ("x", 0)}


def test_sees_lists_each_row():
    assert sees(torch.tensor([[1, 0], [1, 1]]).bool()) == [[0], [0, 1]]


def exchanged(seen, inputs, layers):
    """The layer at which it shows that inputs 0 and 1 were exchanged; all positions are equal."""
    return shown_after([seen] * layers, inputs, [0] * len(inputs), {0: 1, 1: 0})


def test_attention_sees_proportions_not_counts():
    assert exchanged([[0], [1, 0], [0, 1, 2]], [0, 1, 2], 3) == 2
    # Tokens 0 and 1 are copies of one input, 2 and 3 of another; 4 is the query. Each pair has the same share of each
    # input, but 1 sees one token where 3 sees two that are equal.
    same_shares = [[0], [0], [2], [2, 3], [1, 3, 4]]
    assert exchanged(same_shares, [0, 0, 1, 1, 2], 4) is None
    # Here 1 sees itself and two equal ones, 3 itself and one: other shares, which show.
    other_shares = [[0], [0, 2, 1], [2], [2, 0, 1, 3], [1, 3, 4]]
    assert exchanged(other_shares, [0, 0, 1, 1, 2], 4) == 2


def test_positions_tell_equal_inputs_apart():
    seen = [[[0], [1], [0, 1, 2]]] * 2
    assert shown_after(seen, [0, 1, 2], [0, 0, 0], {0: 1, 1: 0}) is None
    assert shown_after(seen, [0, 1, 2], [0, 1, 2], {0: 1, 1: 0}) == 1


def test_colours_are_refined_by_each_layer_s_own_mask():
    alone, uneven = [[0], [1], [0, 1, 2]], [[0], [1, 0], [0, 1, 2]]
    tokens, positions, exchange = [0, 1, 2], [0, 0, 0], {0: 1, 1: 0}
    # 1 sees 0 in one layer; in a later layer the query sees that.
    first_layers = {
        "in layer 1": ([uneven, alone, alone, alone], 2),
        "in layer 3": ([alone, alone, uneven, alone], 4),
        "in the last": ([alone, alone, alone, uneven], None),
    }
    for where, (seen, layer) in first_layers.items():
        assert shown_after(seen, tokens, positions, exchange) == layer, where


def test_the_path_of_a_label_waits_for_the_layer_that_lets_it_through():
    def relay(q, k, layer):
        """Layer 2: x2 sees y1. Layer 4: x1 sees x2."""
        there = (layer == 2) & (q.example == 1) & ~q.is_label & (k.example == 0) & k.is_label
        back = (layer == 4) & (q.example == 0) & ~q.is_label & (k.example == 1) & ~k.is_label
        return (there | back) & ~q.is_query & ~k.is_query

    built = layout(Strategy("relay", relay), 2, 1, layers=5)
    assert dependencies(built, 5).leaks == [0]
    assert label_path(built, 5, 0) == (4, [1, 2, 0]), "y1 → x2 → x1, complete after layer 4"
    early = layout(Strategy("relay", relay), 2, 1, layers=3)
    assert dependencies(early, 3).leaks == []


def test_the_path_of_a_label_starts_at_any_copy():
    layer, path = label_path(layout("boe", 2, 1, copies=2), 3, 0)
    assert (layer, path) == (1, [1, 4]), "copy 1's x sees copy 0's y"


def test_the_spread_of_a_label_names_who_hears_of_it_and_from_whom():
    y1, query = 1, 4
    assert label_spread(layout("saicl", 2, 1), 12, 0) == [{y1: None}, {query: y1}, {0: query, 2: query, 3: query}]
    assert label_spread(layout("prefix", 2, 1), 12, 0) == [{y1: None}, {0: y1, 2: y1, 3: y1, query: y1}]
    assert label_spread(layout("boe", 2, 1), 2, 0) == [{y1: None}, {query: y1}, {}], "it never gets to x1"
