"""The page: its JavaScript against torch and `minicl audit`, its build, the command. test_browser.py uses the page."""

import base64
import json
import math
import shutil
import subprocess
from itertools import pairwise, product
from pathlib import Path

import numpy
import pytest
import torch
from conftest import assert_one_line, random_table

from minicl import ModelConfig, Transformer, play, playmodels, playnumbers
from minicl.auditing import symbolic
from minicl.baselines import get_baseline
from minicl.graph import label_path
from minicl.masks import layout

ROOT = Path(__file__).parent.parent
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(not NODE, reason="needs node")
MODELS = json.loads((ROOT / "page" / "models.json").read_text(encoding="utf-8"))["models"]
LENGTHS = (0, 1, 2, 7, 10, 11, 40)
PAGE_MASKS = ("ar", "prefix", "boe", "pfn", "prefix_others", "invicl")


def torch_model(record):
    """The model of a record, from what the page carries: its weights are those of training, rounded to float16."""
    names = ("n_layer", "n_head", "n_embd"), ("layers", "heads", "width")
    sizes = {a: record[b] for a, b in zip(*names, strict=True)}
    config = ModelConfig(n_dims=1, mask=record["mask"], positions=record["positions"], max_examples=40, **sizes)
    flat, state = torch.from_numpy(numpy.frombuffer(base64.b64decode(record["data"]), "<f2").astype("<f4")), {}
    for name, shape in record["shapes"]:
        part, flat = flat[: math.prod(shape)], flat[math.prod(shape) :]
        state[name] = part.view(shape)
    assert len(flat) == 0
    model = Transformer(config)
    model.load_state_dict(state)
    return model.eval()


def forward_cases():
    cases = []
    for i, n in product(range(len(MODELS)), LENGTHS):
        generator = torch.Generator().manual_seed(100 * i + n)
        xs, ys, queries = (torch.randn(size, generator=generator).tolist() for size in (n, n, 5))
        cases += [
            {"model": i, "xs": xs, "ys": ys, "queries": queries, "depth": depth} for depth in ((4,), range(5))[n == 7]
        ]
    return cases


def audit_cases():
    """500 of them: every strategy of the page under other positions, lengths and depths, and random tables."""
    cases = []
    for mask, positions, n, layers in product(
        PAGE_MASKS, (None, "absolute", "symmetric", "none"), (2, 3, 4), (1, 2, 4)
    ):
        cases.append({"mask": mask, "positions": positions, "n": n, "layers": layers})
    for mask, n in product(PAGE_MASKS, (2, 3)):
        cases.append({"mask": mask, "positions": None, "n": n, "layers": 3, "copies": 2})
    for seed in range(500 - len(cases)):
        n, copies = 2 + seed % 3, 1 + seed // 3 % 2
        strategy = random_table(
            n, copies, 2 * seed, density=(0.05, 0.15, 0.3)[seed % 3]
        )  # even seeds: no query is seen
        positions = ("absolute", "symmetric", "none")[seed // 6 % 3]
        table = [row.nonzero()[:, 0].tolist() for row in layout(strategy, n, 1, positions).mask]
        cases.append(
            {
                "positions": positions,
                "n": n,
                "copies": copies,
                "layers": 1 + seed % 5,
                "table": table,
                "strategy": strategy,
            }
        )
    return cases


PASTED = [
    "",
    "rubbish\nNaN, 1\n1, inf\n1, 2, 3\n1",
    "1, 2\r\n\n-0.5 1e0\n",
    "1,5;2,25\n0,1\t-3",
    "2000, 10\n2010, 30\n2020, 20",
]
PASTED += ["7, 1\n7, 2\n7, 3", "\n".join(f"{i / 50}, {i / 50}" for i in range(60)), "1e308 1\n5 5"]
PASTED += ["\u22121, 0.001\n1, 0.002"]  # with the minus of a typesetter


@pytest.fixture(scope="module")
def script():
    """(request, what the page's scripts answer in node)."""
    audits = audit_cases()
    grid = [-2.0, -0.3, 0.0, 1.7]
    optima = []
    for family, n in product(playmodels.FAMILIES, (0, 1, 10, 40)):
        p = playmodels.task(family).sample(1, n, seed=n)
        points = torch.stack([p.xs[0, :, 0], p.ys[0]], dim=1).tolist()
        optima.append(
            {"family": family, "settings": playmodels.task(family).settings(), "points": points, "grid": grid}
        )
    optima.append(optima[3] | {"points": [[0.5, y] for y in (1.0, 2.0, -1.0)]})  # one x again and again
    request = {
        "models": str(ROOT / "page" / "models.json"),
        "forward": forward_cases(),
        "optima": optima,
        "tables": PASTED,
    }
    request["audits"] = [{k: v for k, v in case.items() if k != "strategy"} for case in audits]
    result = subprocess.run(
        [NODE, ROOT / "tests" / "page" / "core.cjs"], input=json.dumps(request), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return request | {"strategies": [case.get("strategy") for case in audits]}, json.loads(result.stdout)


@needs_node
def test_forward_pass_equals_torch_for_every_model_length_and_layer(script):
    request, said = script
    models, worst = [torch_model(record) for record in MODELS], 0.0
    for case, answer in zip(request["forward"], said["forward"], strict=True):
        model = models[case["model"]]
        xs, queries = (torch.tensor(case[name]).view(1, -1, 1) for name in ("xs", "queries"))
        with torch.inference_mode():
            out = model(xs, torch.tensor(case["ys"]).view(1, -1), queries, hidden=[case["depth"]])
            read = [model.answers(t)[0] for t in out.hidden[case["depth"]]]
        for mine, theirs in zip(read, (answer["context"], answer["query"]), strict=True):
            assert mine.shape == (len(theirs),)
            worst = max([worst, *(mine - torch.tensor(theirs)).abs().tolist()])
    assert len(said["forward"]) == len(MODELS) * 11 and worst < 1e-4, worst


@needs_node
def test_certificates_equal_those_of_audit_in_500_cases(script):
    request, said = script
    assert len(said["audits"]) == 500
    seen = set()
    for case, strategy, found in zip(request["audits"], request["strategies"], said["audits"], strict=True):
        plan = layout(strategy or case["mask"], case["n"], 1, case["positions"], case.get("copies"))
        expected, n = symbolic(plan, case["layers"]), case["n"]
        assert found["sees"] == [row.nonzero()[:, 0].tolist() for row in plan.mask], case
        assert found["place"] == (None if plan.positions is None else plan.positions.tolist())
        assert found["swaps"] == list(expected.swaps) and found["leaks"] == expected.depends.leaks, case
        assert found["unpaired"] == [list(pair) for pair in expected.unpaired], case
        assert found["independent"] == [list(pair) for pair in expected.independent], case
        depends = torch.stack([expected.depends.x, expected.depends.y], dim=2).flatten(1)
        assert [row[: 2 * n] for row in found["depends"]] == depends.tolist(), case
        assert found["lengths"] == [label_path(plan, case["layers"], i)[0] for i in expected.depends.leaks], case
        seen.add(tuple(found[name] for name in ("invariant", "noLeak", "interdependent", "paired")))
    assert len(seen) >= 10  # so that the comparison is not one of equal cases


@needs_node
def test_puzzle_has_four_answers_of_512(script):
    assert script[1]["invariant"] == [0, 238, 273, 511]


@needs_node
def test_optimum_equals_the_baseline(script):
    request, said = script
    for case, answer in zip(request["optima"], said["optima"], strict=True):
        points, grid = torch.tensor(case["points"]).view(1, -1, 2), torch.tensor(case["grid"]).view(1, -1, 1)
        best = get_baseline("optimal", task=playmodels.task(case["family"]))
        expected = best.predict(points[..., :1].double(), points[..., 1].double(), grid.double())[0]
        numpy.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)


@needs_node
def test_pasted_tables_become_points_or_notes(script):
    empty, rubbish, plain, commas, years, same, many, huge, fine = script[1]["tables"]
    assert empty["points"] == [] and rubbish["points"] == [] and "line 1, 2, 3, 4, 5." in rubbish["notes"][0]
    assert plain == {"points": [[1, 2], [-0.5, 1]], "notes": []}
    assert commas["points"] == [[1.5, 2.25], [0.1, -3]]
    assert [x for x, _ in years["points"]] == [-1.2247, 0, 1.2247] and "x − 2010" in years["notes"][0]
    assert same["points"] == [[0, 1], [0, 2], [0, 3]]
    assert len(many["points"]) == 40 and "first 40 of 60" in many["notes"][0]
    assert len(huge["points"]) == 1 and "line 1." in huge["notes"][0]
    assert fine["points"] == [[-1, 0.001], [1, 0.002]]
    for found in script[1]["tables"]:
        assert all(abs(x) <= 2.5 and abs(y) <= 3.3 for x, y in found["points"])


@needs_node
def test_points_of_a_function_are_spread_like_training_inputs(script):
    for points in script[1]["points"]:
        xs = sorted(x for x, _ in points)
        assert abs(numpy.mean(xs)) < 0.15 and 0.8 < numpy.std(xs) < 1.1
        assert min(b - a for a, b in pairwise(xs)) > 0.001


def test_committed_page_is_a_fresh_build():
    for file, content in play.build(ROOT).items():
        assert file.read_text(encoding="utf-8") == content, f"{file} is old: run minicl play --build"
    page = ROOT / "docs" / "play.html"
    assert page.stat().st_size < 2e6
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "unsafe-inline" not in text and "{{" not in text.split('id="data"')[0]
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # a name of SVG; nothing else is an address


def test_models_that_the_page_carries_are_those_of_the_plan():
    expected = {(f, s, playmodels.STEPS) for f, s, _ in playmodels.plan(1)}
    expected |= {(*key, step) for key, steps in playmodels.EARLY_SHOWN.items() for step in steps}
    assert {(m["family"], m["strategy"], m["step"]) for m in MODELS} == expected and len(MODELS) == len(expected)
    weights = {m["strategy"]: sum(math.prod(shape) for _, shape in m["shapes"]) for m in MODELS}
    assert len({weights[s] for s in weights if s != "ar"}) == 1 and weights["ar"] > weights["invicl"]  # as told


def test_numbers_are_of_three_seeds():
    numbers = json.loads((ROOT / "page" / "numbers.json").read_text(encoding="utf-8"))
    assert {len(values) for values in numbers.values()} == {playmodels.SEEDS}
    assert all(math.isfinite(v) for values in numbers.values() for v in values)


def test_numbers_in_words():
    numbers = {"a": [0.1234, 0.2, 0.1], "b": [4e-7, 4.1e-7], "c": [0.0], "d": [1.37], "e": [123.4]}
    assert play.in_words(numbers) == {"a": "0.1 to 0.2", "b": "4e-7", "c": "0", "d": "1.4", "e": "120"}
    with pytest.raises(ValueError, match="no-such"):
        play.fill("{{no-such}}", {"a": "1"})


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the page's sources, as `minicl play` finds it."""
    shutil.copytree(ROOT / "page", tmp_path / "clone" / "page")
    monkeypatch.setattr(play, "ROOT", tmp_path / "clone")
    return tmp_path / "clone"


def test_play_builds_and_opens_the_page(cli, clone, monkeypatch):
    opened = []
    monkeypatch.setattr(play.webbrowser, "open", lambda address: opened.append(address) or True)
    assert "docs/play.html" in cli("play", "--build").stdout and opened == []
    page = clone / "docs" / "play.html"
    assert page.read_bytes() == (ROOT / "docs" / "play.html").read_bytes()
    before = page.stat().st_mtime_ns
    assert cli("play").returncode == 0 and opened == [page.as_uri()]
    assert page.stat().st_mtime_ns == before
    page.write_text("old")
    cli("play")
    assert len(page.read_text(encoding="utf-8")) > 1e6
    monkeypatch.setattr(play.webbrowser, "open", lambda address: False)
    assert "no browser" in cli("play").stdout


def test_bad_input_is_one_line(cli, clone):
    assert_one_line(cli("play", "--seeds", 2), "seeds", "without --train")
    assert_one_line(cli("play", "--train", "runs", "--seeds", 0), "seeds", "0")
    shutil.rmtree(clone / "page")
    assert_one_line(cli("play"), "play", "no folder")


@pytest.mark.parametrize("name", ["models.json", "numbers.json"])
def test_damaged_data_is_one_line_and_the_page_stays(cli, clone, name):
    cli("play", "--build")
    file, page = clone / "page" / name, clone / "docs" / "play.html"
    whole, built = file.read_bytes(), page.read_bytes()
    for damage in (whole[:-100], b"{}", b"[]", b'{"models": [], "families": {}}', b'{"a": "b"}', b"\xff\xfe", b""):
        file.write_bytes(damage)
        assert_one_line(cli("play", "--build"), "damaged", name)
        assert page.read_bytes() == built
    file.unlink()
    assert_one_line(cli("play", "--build"), name)


def test_a_folder_that_cannot_be_written_to_is_one_line(cli, clone, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert_one_line(cli("play", "--train", tmp_path / "file"), "cannot write", status=1)


def test_one_command_trains_measures_and_builds(cli, clone, tmp_path, monkeypatch, capsys):
    """With two steps and few prompts: what is written is what the build needs, and a second call trains nothing."""
    changes = {"STEPS": 2, "EARLY": (1,), "EARLY_SHOWN": {("line", "ar"): (1,), ("line", "invicl"): (1,)}}
    for name, value in changes.items():
        monkeypatch.setattr(playmodels, name, value)
    monkeypatch.setattr(playnumbers, "EARLY", (1,))
    monkeypatch.setattr(playnumbers, "MANY", 4)
    monkeypatch.setattr(playnumbers, "PROMPTS", 2)
    shown = cli("play", "--train", tmp_path / "runs", "--seeds", 1)
    assert shown.returncode == 0 and "docs/play.html" in shown.stdout, shown.stderr
    numbers = json.loads((clone / "page" / "numbers.json").read_text())
    committed = json.loads((ROOT / "page" / "numbers.json").read_text(encoding="utf-8"))
    assert {n for n in committed if not n.startswith("early")} == {n for n in numbers if not n.startswith("early")}
    packed = json.loads((clone / "page" / "models.json").read_text())["models"]
    assert [(m["family"], m["strategy"]) for m in packed if m["step"] == 2] == [
        (f, s) for f, s, _ in playmodels.plan(1)
    ]
    trained = torch.load(tmp_path / "runs" / "line-pfn-0" / "checkpoints" / "step-00000002.pt", weights_only=True)[
        "model"
    ]
    mine = torch_model(next(m for m in packed if m["strategy"] == "pfn")).state_dict()
    assert all(torch.equal(mine[name], trained[name].half().float()) for name in trained)
    playmodels.train(tmp_path / "runs", seeds=1)
    assert capsys.readouterr().err.count("is finished") == len(playmodels.plan(1))
