"""Pictures: each is drawn from JSON only, and shows the numbers that it was given."""

import io
import json
import runpy
import sys
from pathlib import Path

import pytest
from conftest import assert_one_line
from matplotlib.colors import to_hex

from minicl import audit, draw, draw_layers, draw_masks, stats, train
from minicl.checks import InputError
from minicl.study import pictures

ROOT = Path(__file__).parent.parent
TINY = {"n_dims": 3, "examples": 4, "max_examples": 12, "n_layer": 2, "n_head": 2, "n_embd": 16, "batch_size": 16}
TINY |= {"steps": 20, "log_every": 10, "save_every": 10, "validate": 16, "threads": 1, "keep": (10,)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Tiny runs: ar with two seeds, invicl, and one in one dimension."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"ar": {}, "ar1": {"seed": 1}, "invicl": {"mask": "invicl"}, "line": {"n_dims": 1, "steps": 10}}
    for name, settings in kinds.items():
        train(out=folder / name, **(TINY | settings))
    return folder


@pytest.fixture
def plot(cli, tmp_path, monkeypatch):
    """Run a script of plots/ in the folder of the test; its exit status, 0 if it came to its end."""

    def run(name, *argv):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *argv])
        try:
            runpy.run_path(str(ROOT / "plots" / f"{name}.py"), run_name="__main__")
        except SystemExit as stop:
            return stop.code
        return 0

    return run


def shots(runs):
    """What is printed for each script of plots/ but resemblance, which needs a run that has learnt something."""
    some = ["--prompts", 20]
    return {
        "masks": ["audit", "--masks", "ar,invicl", "--layers", 1, "--examples", 3],
        "curves": ["evaluate", runs / "ar", runs / "ar1", runs / "invicl", *some],
        "shifts": ["evaluate", runs / "invicl", *some, "--shifts", "noise,scale"],
        "steps": ["evaluate", runs / "ar", runs / "invicl", *some, "--checkpoints", "all"],
        "training": ["evaluate", runs / "ar", runs / "ar1", runs / "invicl", "--training"],
        "order": ["evaluate", runs / "ar", runs / "invicl", "--order", *some],
        "probes": ["probe", runs / "ar", runs / "invicl", "--prompts", 32, "--lengths", "0,4,6"],
        "theory": ["theory", *some],
        "prompt": ["evaluate", runs / "line", "--prompt-plot", "as-asked.pdf", "--lengths", "2,6"],
        "leak": ["audit", "--masks", "saicl,invicl", "--layers", 2, "--examples", 3],
        "attention": ["probe", runs / "invicl", "--attention", "as-asked.pdf", "--prompts", 4],
    }


def test_every_picture_is_drawn_from_json_alone(cli, runs, tmp_path, plot):
    for name, argv in shots(runs).items():
        result = cli(*argv, "--json")
        assert result.returncode == 0, result.stderr
        (tmp_path / f"{name}.json").write_text(result.stdout)
        for ending in ("png", "pdf", "svg"):
            assert plot(name, f"{name}.json", "-o", f"{name}.{ending}") == 0
            assert (tmp_path / f"{name}.{ending}").stat().st_size > 5000
    layers = [{"layer": i, "descent": [0.5, 0.1], "newton": [0.2, 0.3]} for i in range(3)]
    (tmp_path / "resemblance.json").write_text(json.dumps(layers))
    assert plot("resemblance", "resemblance.json", "-o", "resemblance.png") == 0
    assert plot("front", "masks.json", "curves.json", "-o", "front.png") == 0
    assert {f.stem for f in tmp_path.glob("*.png")} == {f.stem for f in (ROOT / "plots").glob("*.py")}


@pytest.mark.parametrize("content", ["{", "[]", "3", '[{"a": 1}]'])
def test_records_of_something_else_are_one_line(tmp_path, plot, capsys, content):
    (tmp_path / "bad.json").write_text(content)
    assert plot("curves", "bad.json", "-o", "c.png") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.json" in line and not (tmp_path / "c.png").exists()


def test_a_picture_that_cannot_be_written_is_one_line(cli, plot, tmp_path, capsys):
    assert plot("curves", "gone.json", "-o", "c.gif") == 2
    assert "c.gif: its ending: got '.gif', allowed: .png, .pdf, .svg" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"no/c\.png: got .*no, allowed: a folder that exists"):
        draw.save(draw_masks.masks([MASK]), tmp_path / "no" / "c.png")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InputError, match=r"taken\.png: cannot be written: Is a directory"):
        draw.save(draw_masks.masks([MASK]), tmp_path / "taken.png")
    assert_one_line(cli("evaluate", "run", "--plot", "c.gif"), "c.gif", ".png")


BASE = {"task": "linear", "n_dims": 3, "shift": "none", "lengths": [0, 1, 2]}
BASE |= {"low": [0.9, 0.1, 0.01], "high": [1.1, 0.3, 0.03]}
MODEL = BASE | {"run": "r", "step": 5, "method": "invicl", "mean": [1.0, 0.2, 0.02], "trained_on": 1}
FLOOR = BASE | {"run": None, "step": None, "method": "optimal", "mean": [1.0, 0.1, 0.0]}
GROUP = MODEL | {"run": None, "runs": ["r", "s"], "over": "seeds", "mean": [1.0, 0.3, 0.03]}


def lines_of(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_a_curve_shows_the_numbers_it_was_given():
    (axes,) = draw.curves([MODEL, FLOOR]).axes
    lines = lines_of(axes)
    assert lines["invicl"].get_ydata().tolist() == [1.0, 0.2, 0.02]
    assert lines["optimal"].get_linestyle() == "--" and axes.get_yscale() == "log"
    assert "trained to" in [t.get_text() for t in axes.texts]
    early = MODEL | {"step": 1, "mean": [1.0, 1.0, 1.0]}
    other = MODEL | {"run": "s", "n_dims": 5}
    early_axes, late_axes, other_axes = draw.curves([early, MODEL, other, FLOOR]).axes
    assert early_axes.get_ylim() == late_axes.get_ylim()  # the same prompts, the same scale
    assert [len(a.get_lines()) for a in (early_axes, late_axes, other_axes)] == [3, 3, 2]  # with the training length
    titles = [a.get_title() for a in (early_axes, late_axes, other_axes)]
    assert titles == [f"linear in {d} dimensions, {w}" for d, w in
                      ((3, "early (step 1)"), (3, "late (step 5)"), (5, "after 5 steps"))]  # fmt: skip


def test_runs_of_different_lengths_share_a_panel():
    (axes,) = draw.curves([MODEL, MODEL | {"run": "s", "method": "ar", "step": 9}, FLOOR]).axes
    assert axes.get_title() == "linear, at the end of training" and {"invicl", "ar", "optimal"} <= set(lines_of(axes))


def test_the_legend_says_where_a_baseline_is_exact():
    def legend(*records):
        return [t.get_text() for t in draw.curves(list(records)).legends[0].get_texts()]

    assert legend(MODEL, FLOOR) == ["invicl", "optimal (exact from 2 examples on)"]
    noisy = {"shift": "noise"}
    never = FLOOR | noisy | {"mean": [1.0, 0.1, 0.1]}
    assert legend(MODEL, FLOOR, MODEL | noisy, never) == ["invicl", "optimal (exact from 2 examples on in linear)"]


def test_a_control_has_its_strategy_s_colour_if_it_stands_alone():
    assert draw.look("ar, paper's objective", ["invicl"]) == draw.look("ar", ["invicl"])
    assert draw.look("ar, last 10", ["ar", "invicl"]) != draw.look("ar", ["ar, last 10", "invicl"]) == draw.LOOKS["ar"]
    two = ["ar+random", "ar+rotary"]
    assert len({draw.look(m, two) for m in two} | {draw.LOOKS["ar"]}) == 3


def test_seeds_are_one_line_with_their_range():
    records = [MODEL, MODEL | {"run": "s"}, GROUP]
    (axes,) = draw.curves(records).axes
    assert lines_of(axes)["invicl"].get_ydata().tolist() == [1.0, 0.3, 0.03]
    assert [lines_of(a)["invicl, 2 seeds"].get_ydata().tolist() for a in draw.steps(records).axes] == [[0.3], [0.03]]


def test_a_seed_that_is_ahead_keeps_its_curve():
    """Seed 0 is at steps 5 and 9, seed 1 at 5 only: a mean there, and seed 0 alone later."""
    ahead = [MODEL, MODEL | {"run": "s"}, MODEL | {"step": 9, "mean": [1.0, 0.1, 0.01]}]
    mean = MODEL | {"run": None, "over": "seeds", "runs": ["r", "s"], "mean": [1.0, 0.3, 0.03]}
    early, late = draw.curves([*ahead, mean]).axes
    shown = [[*lines_of(axes)["invicl"].get_ydata()] for axes in (early, late)]
    assert shown == [mean["mean"], ahead[2]["mean"]]
    points = [[*line.get_ydata()] for line in draw.steps([*ahead, mean]).axes[1].get_lines()]
    assert sorted(points) == [[0.01], [0.03]], "the mean, and the seed that is alone"


def test_methods_of_different_lengths_share_a_panel_with_several_seeds_too():
    seeds = [MODEL | {"run": f"{m}-{i}", "method": m, "step": s} for m, s in (("ar", 5), ("boe", 9)) for i in (0, 1)]
    means = [MODEL | {"run": None, "method": m, "step": s, "over": "seeds", "runs": [f"{m}-0", f"{m}-1"]}
             for m, s in (("ar", 5), ("boe", 9))]  # fmt: skip
    (axes,) = draw.curves([*seeds, *means]).axes
    assert {"ar", "boe"} <= set(lines_of(axes))


def test_runs_of_one_method_are_told_apart():
    (axes,) = draw.curves([MODEL, MODEL | {"run": "runs/slow"}, FLOOR]).axes
    assert {"invicl (r)", "invicl (slow)", "optimal"} <= set(lines_of(axes))
    colours = [line.get_color() for line in axes.get_lines() if line.get_label().startswith("invicl")]
    assert len(set(colours)) == 2


def test_each_checkpoint_has_its_own_probes_and_its_own_row_of_order():
    probes = [{"run": "runs/a", "step": s, "method": "ar", "trained_on": 1, "probe": kind, "layer": layer,
               "examples": n, "mean": 0.1 * s}
              for s in (1, 2) for n in (0, 1) for kind, layer in (("model", None), ("target", 1), ("untrained", 1),
                                                                  ("shuffled", 1))]  # fmt: skip
    panels = draw_layers.probes(probes).axes
    assert [axes.get_title() for axes in panels] == ["ar (a, step 1)", "ar (a, step 2)"]
    assert all([*line.get_xdata()] == [0, 1] for axes in panels for line in axes.get_lines()[:4])
    rows = [{"run": "runs/a", "step": s, "method": "ar", "spread": 0.1} for s in (1, 2)]
    (axes,) = draw.order(rows).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a, step 1", "a, step 2"]


def test_the_legend_says_how_many_seeds_and_stays_inside_the_picture():
    more = GROUP | {"runs": ["a", "b", "c"], "task": "noisy_linear"}
    names = [f"a strategy with a long name {i}" for i in range(7)]
    long = [MODEL | {"run": name, "method": name} for name in names]
    for records, panels in (([GROUP, more, *long], 2), ([MODEL, MODEL | {"run": "a", "method": "ar"}], 1)):
        figure = draw.curves(records)
        (legend,) = figure.legends
        figure.savefig(io.BytesIO(), dpi="figure")
        box = legend.get_window_extent()
        assert len(figure.axes) == panels and box.x0 >= 0 and box.x1 <= figure.bbox.x1
        if panels == 2:
            assert legend.get_texts()[0].get_text() == "invicl, 2–3 seeds" and len(legend.get_texts()) == 8


def test_the_legend_says_what_the_bands_are(monkeypatch):
    def title(*records):
        return draw.curves(list(records)).legends[0].get_title().get_text()

    assert title(MODEL, FLOOR) == "bands: 90 % interval over prompts"
    assert title(GROUP) == "bands: range over seeds"
    both = title(GROUP, MODEL | {"run": "t", "method": "ar"})
    assert both.startswith(
        "bands: range over seeds; 90 % interval over prompts, if one seed\nall curves of a panel have"
    )
    monkeypatch.setattr(stats, "INTERVAL", 0.5)
    assert title(MODEL) == "bands: 50 % interval over prompts"


def test_only_shifted_prompts_are_in_the_picture_of_shifts():
    figure = draw.shifts([MODEL, MODEL | {"shift": "noise"}, MODEL | {"shift": "scale"}, FLOOR | {"shift": "scale"}])
    assert [a.get_title() for a in figure.axes] == ["linear, noise, after 5 steps", "linear, scale, after 5 steps"]
    assert ["optimal" in lines_of(a) for a in figure.axes] == [False, True]


def test_four_panels_stand_in_a_square_and_five_leave_one_empty():
    records = [MODEL | {"step": step} for step in range(5)]
    square = draw.curves(records[:4]).axes
    assert [a.get_subplotspec().colspan.start for a in square] == [0, 1, 0, 1]
    assert [a.axison for a in draw.curves(records).axes] == [True] * 5 + [False]


MASK = {
    "mask": "ar",
    "positions": "absolute",
    "copies": 1,
    "tokens": ["x1", "y1", "x2", "y2", "query"],
    "position_ids": [0, 1, 2, 3, 4],
    "sees": ["10000", "11000", "11100", "11110", "11111"],
}


def cells(axes, T):
    return axes.collections[0].get_array().reshape(T, T).astype(int).tolist()


def test_a_mask_is_drawn_the_right_way_round():
    (axes,) = draw_masks.masks([MASK]).axes
    own, other, asked = 1, 2, 3
    assert cells(axes, 5) == [
        [own, 0, 0, 0, 0],
        [own, own, 0, 0, 0],
        [other, other, own, 0, 0],
        [other, other, own, own, 0],
        [asked] * 5,
    ]
    assert axes.get_ylim() == (5, 0), "the first token is at the top"
    assert axes.get_title() == "ar: absolute positions"
    assert [t.get_text() for t in axes.get_xticklabels()][-1] == "$x_t$\n4"


def test_a_mask_that_sees_the_query_and_one_without_positions():
    saicl = MASK | {"mask": "saicl", "sees": ["10001", "11001", "00101", "00111", "11111"]}
    nope = MASK | {"mask": "dir/my.py:mine", "positions": "none", "position_ids": None}
    first, second = draw_masks.masks([saicl, nope]).axes
    assert [row[4] for row in cells(first, 5)] == [4, 4, 4, 4, 3]
    assert second.get_title() == "mine: no positions" and second.get_xlabel() == "seen token, no positions"


def test_a_long_name_of_a_mask_breaks_after_a_comma():
    name = "two:x0-X0,y0-X0,x1-x0X0Y0,y1-x0X0y0Y0X1Y1"
    axes, other = draw_masks.masks([audit(name), audit("boe")]).axes[:2]
    assert axes.get_title() == "two:x0-X0,y0-X0,x1-x0X0Y0,\ny1-x0X0y0Y0X1Y1\nsymmetric positions"
    assert other.get_title() == "boe: symmetric positions"


def test_a_mask_that_differs_from_layer_to_layer_has_a_panel_for_each_group_of_layers():
    deep = ["10000", "11000", "00100", "00110", "11111"]
    groups = [{"layers": "1–3", "sees": MASK["sees"]}, {"layers": "4", "sees": deep}]
    layered = MASK | {"mask": "my.py:deep", "by_layer": groups}
    first, second, third = draw_masks.masks([layered, MASK | {"by_layer": []}]).axes
    assert first.get_title() == "deep, layers 1–3: absolute positions"
    assert second.get_title() == "deep, layer 4: absolute positions"
    assert third.get_title() == "ar: absolute positions"
    seen = [[[c > 0 for c in row] for row in cells(axes, 5)] for axes in (first, second)]
    assert seen == [[[c == "1" for c in row] for row in sees] for sees in (MASK["sees"], deep)]


@pytest.mark.parametrize("n, labelled", [(3, True), (8, False)])
def test_the_copies_of_a_context_are_named(n, labelled):
    tokens = [f"{t}{i}{mark}" for mark in ("", "'") for i in range(1, n + 1) for t in "xy"] + ["query"]
    T = len(tokens)
    two = MASK | {"copies": 2, "tokens": tokens, "position_ids": [0] * T, "sees": ["1" * T] * T}
    (axes,) = draw_masks.masks([two]).axes
    names = axes.texts if labelled else axes.get_xticklabels()
    assert [t.get_text() for t in names] == ["copy 0", "copy 1"]
    edges = [line.get_xdata()[0] for line in axes.get_lines() if line.get_xdata()[0] == line.get_xdata()[1]]
    assert edges == [2 * n, 4 * n], "between the copies, and before the query"
    assert cells(axes, T)[0][2 * n] == 1, "the other copy of an example is its own example"


def test_a_prompt_shows_points_curve_and_shuffles():
    same = {"shift": "none", "trained_on": 2, "grid": [0, 1], "xs": [0.5, 0.7], "ys": [0.1, 0.2], "moved": 0.3}
    same |= {"step": 5, "curve": [0.0, 0.4], "shuffled": [[0.1, 0.5], [0.0, 0.1]], "baselines": {"optimal": [0.0, 0.3]}}
    ar = same | {"run": "a", "method": "ar", "examples": 2}
    long = same | {"run": "b", "method": "invicl", "examples": 3}
    figure = draw.prompt([ar, long])
    first, gap, empty, second = figure.axes
    assert (first.get_title(), second.get_title()) == (
        "ar: 2 examples (trained on 2)",
        "invicl: 3 examples (trained on only 2)",
    )
    assert not gap.axison and not empty.axison, "each run was asked with another number of examples"
    lines = lines_of(first)
    assert list(lines["optimal"].get_ydata()) == [0.0, 0.3] and list(lines["examples"].get_xdata()) == [0.5, 0.7]
    drawn = {width: [line for line in first.get_lines() if line.get_linewidth() == width] for width in (0.7, 2.2)}
    assert [list(line.get_ydata()) for line in drawn[0.7]] == [[0.1, 0.5], [0.0, 0.1]]
    assert [list(line.get_ydata()) for line in drawn[2.2]] == [[0.0, 0.4]]
    colours = [{to_hex(line.get_color()) for line in axes.get_lines()[:3]} for axes in (first, second)]
    assert colours == [{draw.ORANGE.lower()}, {draw.BLUE.lower()}]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["what the model predicts", "the same examples in 2 other orders", "optimal", "examples"]
    assert first.texts[0].get_text() == "shuffled, it moves by up to 0.3"
    still, again = draw.prompt([ar | {"moved": 1e-6}, ar | {"run": "x/c"}]).axes
    assert still.texts[0].get_text() == "shuffled, it moves by less than 0.0001"
    assert again.get_title() == "c, step 5: 2 examples (trained on 2)", "two runs of one method"


def test_a_leak_frames_the_steps_of_its_path():
    sees = ["10001", "11001", "00101", "00111", "11111"]
    steps = [
        {"layer": 1, "sees": sees, "hears": [{"token": 4, "from": 1}]},
        {"layer": 2, "sees": sees, "hears": [{"token": q, "from": 4} for q in (0, 2, 3)]},
    ]
    record = MASK | {"mask": "saicl", "leak": {"path": [1, 4, 0], "steps": steps}}
    figure = draw_masks.leak([MASK | {"leak": None}, record])
    frames = [[p.get_xy() for p in axes.patches if p.get_linewidth() == 2.5] for axes in figure.axes]
    assert frames == [[(1, 4)], [(4, 0)]], "column: what is seen; row: who looks"
    veils = [axes.images[0].get_array()[..., 3] for axes in figure.axes]
    strong = [{(k, q) for q in range(5) for k in range(5) if veil[q, k] == 0} for veil in veils]
    assert strong == [{(1, 1), (1, 4)}, {(1, 1), (1, 4), *((4, q) for q in range(5))}]
    assert [axes.get_title() for axes in figure.axes] == [
        "saicl, layer 1: the query $x_t$ sees $y_{1}$\n1 more token hears of $y_{1}$",
        "saicl, layer 2: $x_{1}$ sees the query $x_t$\nso it has heard of its own label $y_{1}$: a leak",
    ]
    with pytest.raises(InputError, match="no leak to draw"):
        draw_masks.leak([MASK | {"leak": None}])


def test_attention_leaves_masked_cells_empty():
    sees = [[c == "1" for c in row] for row in MASK["sees"]]
    weights = [[s / sum(row) for s in row] for row in sees]
    record = {"run": "r", "step": 1, "method": "ar", "layer": 2, "head": 1, "prompts": 3, "copies": 1}
    record |= {"tokens": MASK["tokens"], "sees": sees, "attention": weights}
    first, missing, second, third, bar = draw_masks.attention(
        [record, record | {"run": "s"}, record | {"run": "s", "head": 2}]
    ).axes
    shown = first.collections[0].get_array().reshape(5, 5)
    assert [[bool(cell) for cell in row] for row in ~shown.mask] == sees
    assert shown[3].compressed().tolist() == [0.25] * 4 and first.get_ylim() == (5, 0)
    assert first.patch.get_hatch() and first.get_title() == "r, step 1, layer 2, head 1", "two runs of one method"
    assert not missing.axison and second.axison and third.get_title().endswith("head 2")
    assert "mean over 3 prompts" in bar.get_ylabel()
    assert draw_masks.attention([record]).axes[0].get_title() == "ar, layer 2, head 1"


def record_of_race(mask):
    curves = {"recipe_curves": [[[1, 0.5, 25], [2, 0.1, 50]], []], "reference_curves": [[[1, 0.9, 25], [9, 0.8, 50]]]}
    return {"mask": mask, "target": 0.2, **curves}


def test_the_race_and_masks_of_ones_own_keep_their_colours():
    masks = ["ar", "a/my.py:near", "b/your.py:far"]
    names = ["ar", "near", "far"]
    curves = [MODEL | {"run": name, "method": name} for name in names]
    left, right = (lines_of(axes) for axes in draw.quality([record_of_race(mask) for mask in masks], curves).axes)
    seeds = [to_hex(left[f"{name}, 1 seed"].get_color()) for name in names]
    assert seeds == [to_hex(left[f"{name}, recipe of 2022, 1 seed"].get_color()) for name in names]
    assert seeds == [to_hex(right[name].get_color()) for name in names] and len(set(seeds)) == 3
    assert list(left["ar, 1 seed"].get_ydata()) == [0.5, 0.1]
    one = draw.quality([record_of_race("ar") | {"reference_curves": [[]]}], [MODEL]).axes[0]
    assert not [label for label in lines_of(one) if "2022" in label], "it has not begun"


def test_growth_has_a_line_for_every_checkpoint():
    late = MODEL | {"step": 9, "mean": [1.0, 0.1, 0.01]}
    first, second = pictures.growth([late, MODEL, GROUP | {"method": "ar", "runs": ["u", "v"]}]).axes
    assert [label for label in lines_of(first) if label.startswith("step")] == ["step 5", "step 9"]
    assert lines_of(first)["step 9"].get_ydata().tolist() == [1.0, 0.1, 0.01]
    assert (first.get_title(), second.get_title()) == ("invicl", "ar, mean of 2 seeds")


def test_variants_are_rows_with_a_mark_for_every_seed():
    rows = [("ar", 0.1, 0.5), ("ar", 0.2, 0.6), ("ar+×2", 3.0, 0.7), ("my.py:mine, 4 queries", 0.3, 0.0)]
    records = [{"method": m, "errors": {10: e, 25: 1.0}, "spread": s} for m, e, s in rows]
    short, long, spread = pictures.variants(records).axes
    assert [(float(line.get_xdata()[0]), int(line.get_ydata()[0])) for line in short.get_lines()] == [
        (0.1, 0), (0.2, 0), (3.0, 1), (0.3, 2),
    ]  # fmt: skip
    assert [t.get_text() for t in short.get_yticklabels()] == ["ar", "ar+×2", "mine, 4 queries"]
    colours = [to_hex(line.get_color()) for line in short.get_lines()]
    assert colours[:3] == [draw.ORANGE.lower()] * 3 and colours[3] != colours[0]
    assert (short.get_xscale(), long.get_xscale()) == ("log", "log")
    assert spread.get_xlabel() == "spread over orders ÷ scale of y"
    assert len(pictures.variants([records[0] | {"spread": None}, *records[1:]]).axes) == 2


def test_training_shows_mean_and_range_over_seeds():
    def run(method, *errors):
        lines = [{"step": i, "error": {"5": 9.0, "10": e}} for i, e in enumerate(errors)]
        return {"task": "linear", "method": method, "lines": lines}

    records = [run("ar", 1.0, 0.5), run("ar", 3.0, 1.5), run("ar+×2", 1.0, 0.1), run("a/my.py:mine", 1.0, 0.2)]
    first, second = draw.training(records).axes
    assert [first.get_title(), second.get_title()] == ["linear, ar", "linear, mine"]
    assert lines_of(first)["ar, 2 seeds"].get_ydata().tolist() == [2.0, 1.0]
    band = first.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.5, 3.0)
    assert set(lines_of(first)) == {"ar, 2 seeds", "ar+×2"} and set(lines_of(second)) == {"mine"}


def test_strategies_without_variants_share_a_panel():
    lines = [{"step": i, "error": {"10": 1 / (i + 1)}} for i in range(3)]
    records = [{"task": "linear", "method": method, "lines": lines} for method in ("ar", "invicl")]
    figure = draw.training([*records, {"task": "sparse_linear", "method": "ar", "lines": lines[:2]}])
    linear, sparse = figure.axes
    assert (linear.get_title(), sparse.get_title()) == ("linear", "sparse_linear")
    assert set(lines_of(linear)) == {"ar", "invicl"} and lines_of(sparse)["ar"].get_xdata().tolist() == [0, 1]
    assert linear.get_yscale() == "log" and "seeds" not in figure.get_suptitle()


def test_costs_are_bars():
    def record(mask, ratio, memory=2**20):
        spread = {"low": 0.9 * ratio, "ratio": ratio, "high": 1.1 * ratio}
        about = {"pairs": 100 * ratio, "examples": 10, "n_embd": 64, "device": "cpu"}
        return {"mask": mask, "ratio": spread, "memory_bytes": memory, **about}

    time, memory, pairs = pictures.costs([record("ar", 1.0), record("my.py:a", 2.0), record("my.py:b", 3.0)]).axes
    assert [bar.get_width() for bar in time.patches] == [1, 2, 3] and time.get_xlabel().startswith("time ÷ ar")
    assert [bar.get_width() for bar in memory.patches] == [1, 1, 1]
    assert [bar.get_width() for bar in pairs.patches] == [100, 200, 300]
    assert [t.get_text() for t in time.get_yticklabels()] == ["ar", "a", "b"]
    assert len({bar.get_facecolor() for bar in time.patches}) == 3
    assert len(pictures.costs([record("ar", 1.0, memory=None)]).axes) == 2, "not every system counts memory"
