"""Function classes: their distribution, with fixed seeds and stated tolerances, and classes of one's own."""

import json
import math
import shutil

import pytest
import torch
from conftest import assert_one_line

from minicl.checks import InputError
from minicl.config import Config
from minicl.rng import Random
from minicl.shifts import SHIFTS
from minicl.tasks import TASKS, Task, get_task, task_class

ALL_TASKS = tuple(TASKS)


def near(value, expected, tolerance):
    assert abs(float(value) - expected) < tolerance, f"{float(value)} is not {expected} ± {tolerance}"


def weights(task, B=4000, seed=0):
    """w of every prompt of a linear task, read off its values at the unit vectors."""
    f = task.function(Random(seed, B))
    return f(torch.eye(task.n_dims).expand(B, -1, -1)) - f(torch.zeros(B, 1, task.n_dims))


@pytest.mark.parametrize("name", [name for name in ALL_TASKS if name != "tables"])
def test_inputs_and_labels_have_the_moments_they_should(name):
    task = get_task(name)
    p = task.sample(4000, 41, seed=1)
    assert p.xs.shape == (4000, 41, 20) and p.ys.shape == (4000, 41) and p.xs.dtype == torch.float32
    near(p.xs.mean(), 0, 0.003)
    near(p.xs.var(), 1, 0.005)
    near(p.targets.square().mean() / task.normaliser, 1, 0.06)
    if name != "relu_2nn":  # (its sample mean over 4,000 networks is still coarse)
        near(p.ys.mean() / math.sqrt(task.normaliser), 0, 0.03)
    assert p.queries is p.xs
    near((p.ys - p.targets).std(), getattr(task, "noise", 0), 0.01)


def test_linear_weights():
    w = weights(get_task("linear"))
    near(w.mean(), 0, 0.01)
    near(w.var(), 1, 0.02)
    near((torch.corrcoef(w.T) - torch.eye(20)).abs().max(), 0, 0.07)
    biased = get_task("linear", n_dims=5, bias=True)
    b = biased.function(Random(0, 4000))(torch.zeros(4000, 1, 5))
    near(b.var(), 1, 0.08)
    assert biased.normaliser == 6


@pytest.mark.parametrize("d, sparsity", [(20, 3), (8, 2), (3, 3)])
def test_sparse_weights_are_exactly_sparse_and_uniform(d, sparsity):
    w = weights(get_task("sparse_linear", n_dims=d, sparsity=sparsity), B=8000)
    used = w != 0
    assert (used.sum(1) == sparsity).all()
    near((used.float().mean(0) - sparsity / d).abs().max(), 0, 0.02)
    together = (used.float().T @ used.float() / 8000)[~torch.eye(d, dtype=torch.bool)]
    near((together - sparsity * (sparsity - 1) / (d * (d - 1))).abs().max(), 0, 0.02)
    near(w[used].var(), 1, 0.03)


@pytest.mark.parametrize("d, length", [(1, 1.0), (1, 0.4), (3, 1.5)])
def test_smooth_functions_have_the_covariance_of_their_kernel(d, length):
    task = get_task("smooth", n_dims=d, length=length)
    places = torch.randn(7, d, generator=torch.Generator().manual_seed(0))
    values = task.function(Random(0, 20_000))(places.expand(20_000, -1, -1))
    kernel = (-torch.cdist(places, places).square() / (2 * length**2)).exp()
    near((values.T @ values / 20_000 - kernel).abs().max(), 0, 0.03)
    both = values[:, 0] + values[:, 1]
    near(both.pow(4).mean() / both.var() ** 2, 3, 0.2)  # as of normal numbers


@pytest.mark.parametrize("depth", [1, 3, 4, 6])
def test_tree_equals_a_recursive_evaluation(depth):
    task = get_task("decision_tree", n_dims=7, depth=depth)
    p = task.sample(20, 30, seed=3)
    coordinates, leaves = (t.tolist() for t in task.tree(Random(3, 20)))

    def descend(prompt, x, node):
        inner = coordinates[prompt]
        if node >= len(inner):
            return leaves[prompt][node - len(inner)]
        return descend(prompt, x, 2 * node + (2 if x[inner[node]] > 0 else 1))

    expected = [[descend(b, x.tolist(), 0) for x in p.xs[b]] for b in range(20)]
    assert torch.equal(p.ys, torch.tensor(expected))
    assert len({y for row in expected for y in row}) > 20, "many leaves are reached"


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", ALL_TASKS)
def test_a_prompt_depends_on_its_seed_and_number_only(name, shift):
    task = get_task(name, n_dims=6, **({"sparsity": 2} if name == "sparse_linear" else {}))
    large = task.sample(9, 6, seed=5, shift=shift)
    task.sample(3, 4, seed=8)
    small = task.sample(4, 6, seed=5, shift=shift)
    part = task.sample(2, 6, seed=5, shift=shift, start=2)
    other = task.sample(4, 6, seed=6, shift=shift)
    for whole, begin, middle, differs in zip(large, small, part, other, strict=True):
        assert torch.equal(whole[:4], begin)
        assert torch.equal(whole[2:4], middle)
        assert not torch.equal(begin, differs)


def test_more_points_begin_with_the_same_ones():
    short, long = (get_task("linear").sample(3, n, seed=(7, 1)) for n in (4, 9))
    assert torch.equal(short.xs, long.xs[:, :4]) and torch.equal(short.ys, long.ys[:, :4])


def test_seeds_are_independent():
    a, b = (get_task("linear").sample(500, 10, seed=s) for s in (0, 1))
    near((a.xs * b.xs).mean(), 0, 0.02)
    near((a.ys * b.ys).mean() / 20, 0, 0.05)
    one_two, two_one = (get_task("linear").sample(2, 3, seed=s).xs for s in ((1, 2), (2, 1)))
    assert not torch.equal(one_two, two_one)


def test_quadratic_and_network_values_by_hand():
    x = get_task("quadratic", n_dims=3).sample(4, 5, seed=2)
    w = Random(2, 4).normal("w", 3)
    torch.testing.assert_close(x.ys, (x.xs**2 * w[:, None]).sum(-1) / 3**0.5)
    task = get_task("relu_2nn", n_dims=3, hidden=7)
    x = task.sample(4, 5, seed=2)
    W, v = Random(2, 4).normal("W", 3, 7), Random(2, 4).normal("v", 7)
    expected = torch.stack([torch.relu(x.xs[b] @ W[b]) @ v[b] for b in range(4)]) * (2 / 7) ** 0.5
    torch.testing.assert_close(x.ys, expected, rtol=1e-4, atol=1e-5)


def test_noise_is_on_labels_and_not_on_targets():
    p = get_task("noisy_linear", noise=0.5).sample(3000, 10, seed=0)
    near((p.ys - p.targets).std(), 0.5, 0.02)
    assert torch.equal(p.targets, get_task("linear").sample(3000, 10, seed=0).ys)


def test_a_curriculum_s_prompts_have_fewer_dimensions():
    whole, part = (get_task("linear", n_dims=5).sample(4, 6, seed=1, dims=dims) for dims in (None, 2))
    assert torch.equal(part.xs[..., :2], whole.xs[..., :2]) and not part.xs[..., 2:].any()
    assert not torch.equal(part.ys, whole.ys)


def test_which_baselines_a_curve_is_read_against():
    assert get_task("linear").usual_baselines() == get_task("linear").usual_baselines("scale") == ("least_squares",)
    for task, shift in (("linear", "noise"), ("linear", "label_noise"), ("noisy_linear", "none")):
        assert get_task(task).usual_baselines(shift) == ("optimal", "least_squares")
    assert get_task("linear", bias=True).usual_baselines() == ("optimal", "least_squares")
    assert get_task("sparse_linear").usual_baselines("noise") == ("optimal", "lasso", "least_squares")
    assert get_task("decision_tree").usual_baselines() == ("greedy_tree", "knn")


CUBIC = '''
from minicl.settings import setting
from minicl.tasks import Task, dot

class cubic(Task):
    """y = gain · w·x³ / √15"""

    gain: float = setting(1.0, "factor of the labels", above=0)
    baselines = ("averaging",)

    def function(self, random):
        w = random.normal("w", self.n_dims)
        return lambda xs: self.gain * dot(w, xs**3) / 15**0.5
'''


def test_a_class_of_ones_own_is_a_few_lines_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(CUBIC)
    task = get_task(f"{tmp_path}/my.py:cubic", n_dims=2, gain=2.0)
    p, w = task.sample(3, 4, seed=5), Random(5, 3).normal("w", 2)
    torch.testing.assert_close(p.ys, 2 * (p.xs**3 * w[:, None]).sum(-1) / 15**0.5)
    assert task.settings() == {"gain": 2.0} and task.usual_baselines("noise") == ("averaging",)
    assert task.normaliser == 2.0 and task.name == f"{tmp_path}/my.py:cubic"
    assert get_task(task.name, n_dims=2, gain=2.0) == task
    monkeypatch.chdir(tmp_path)
    assert get_task("my.py:cubic").sample(2, 2).ys.shape == (2, 2), "the same file by another path"
    (tmp_path / "my.py").write_text(CUBIC.replace("1.0", "3.0"))
    assert get_task(task.name).gain == 3.0, "an edited file is read again"


@pytest.mark.parametrize("line", ["@dataclass(frozen=True)", ""])
def test_a_class_of_ones_own_may_extend_another(tmp_path, line):
    source = f"from dataclasses import dataclass\nfrom minicl.tasks import SparseLinear\n{line}\n"
    source += "class twice(SparseLinear):\n    times: int = 2\n    def function(self, random):\n"
    source += "        f = super().function(random)\n        return lambda xs: self.times * f(xs)\n"
    (tmp_path / "my.py").write_text(source)
    task = get_task(f"{tmp_path}/my.py:twice", sparsity=1, times=4)
    assert torch.equal(task.sample(2, 3).ys, 4 * get_task("sparse_linear", sparsity=1).sample(2, 3).ys)
    with pytest.raises(InputError, match="sparsity: got 21, allowed: at most n_dims = 20"):
        get_task(f"{tmp_path}/my.py:twice", sparsity=21)


def test_what_a_class_of_ones_own_prints_goes_aside(tmp_path, capsys):
    (tmp_path / "my.py").write_text(CUBIC.replace("        w =", "        print('drawn')\n        w ="))
    get_task(f"{tmp_path}/my.py:cubic").sample(2, 3)
    printed = capsys.readouterr()
    assert printed.out == "" and "drawn" in printed.err


CLASS = "from minicl.tasks import Task\nimport torch\nclass f(Task):\n"
FUNCTION = CLASS + "    def function(self, random):\n        "


@pytest.mark.parametrize(
    "source, words",
    [
        ("import nonsense_module", ("failed to import", "nonsense_module")),
        ("class f(Task", ("failed to import", "SyntaxError")),
        ("raise SystemExit(0)", ("failed to import", "SystemExit")),
        ("class g:\n    pass", ("has no 'f'", "it has: g")),
        ("f = 3", ("int", "a subclass of minicl.tasks.Task")),
        ("class f:\n    pass", ("got f", "a subclass of minicl.tasks.Task")),
        (CLASS + "    gain: float", ("its settings cannot be read", "gain")),
        (CLASS + "    parts: list = []", ("its settings cannot be read", "parts")),
        (CLASS + "    pass", ("it failed", "does not say how to draw a function")),
        (FUNCTION + "return lambda xs: xs @ 3", ("it failed", "TypeError")),
        (FUNCTION + "raise SystemExit(0)", ("it failed", "SystemExit")),
        (FUNCTION + "return lambda xs: 3", ("values: got int", "a tensor")),
        (FUNCTION + "return lambda xs: xs", ("values: got shape (2, 3, 20)", "(B, n)")),
        (FUNCTION + "return lambda xs: xs[..., 0].double()", ("torch.float64", "torch.float32")),
        (FUNCTION + "return lambda xs: xs[..., 0] / 0", ("NaN or infinity", "finite")),
        (FUNCTION + "return lambda xs: xs[..., 0] + torch.randn(1)", ("others each time", "`random`")),
        (FUNCTION + "return lambda xs: (xs - xs.mean(0))[..., 0]", ("alone in its batch", "their own prompt")),
        (FUNCTION + "return lambda xs: xs[..., 0]\n    normaliser = 0.0", ("normaliser: got 0.0", "above 0")),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, source, words):
    (tmp_path / "my.py").write_text(source)
    with pytest.raises(InputError) as error:
        get_task(f"{tmp_path}/my.py:f")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


TINY = {"n_dims": 2, "examples": 3, "max_examples": 8, "n_layer": 1, "n_head": 1, "n_embd": 8, "batch_size": 8}
TINY |= {"steps": 10, "log_every": 5, "save_every": 5, "validate": 16, "threads": 1, "warmup": 2}
FLAGS = [part for name, value in TINY.items() for part in ("--" + name.replace("_", "-"), value)]


@pytest.fixture
def here(tmp_path, forget):
    """A folder with a task of one's own, on a machine where nothing has been trained yet."""
    forget()
    (tmp_path / "my.py").write_text(CUBIC)
    return tmp_path


def test_a_class_of_ones_own_is_trained_and_evaluated(cli, here, forget):
    train = ["train", "--task", "my.py:cubic", *FLAGS, "--out", "run"]
    result = cli(*train, "--gain", 2, "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["step"] == 10, result.stderr
    assert (here / "run" / "task.py").read_text() == CUBIC
    saved = json.loads((here / "run" / "config.json").read_text())
    assert (saved["data"]["task"], saved["data"]["gain"]) == ("task.py:cubic", 2.0)
    assert "is finished: 10 steps" in cli(*train, "--gain", 2).stderr
    assert_one_line(cli(*train, "--gain", 3), "gain 2.0 there, 3.0 here")

    (here / "my.py").unlink()  # the run explains itself
    shutil.move(here / "run", here / "moved")
    settings = ["--prompts", 500, "--lengths", "0,3", "--json"]
    records = json.loads(cli("evaluate", "moved", *settings).stdout)
    assert [(r["method"], r["task"]) for r in records] == [("ar", "cubic"), ("averaging", "cubic")]
    mine = get_task(f"{here}/moved/task.py:cubic", n_dims=2, gain=2.0).sample(500, 4, seed=0)
    zero = float(mine.targets[:, 0].double().square().mean()) / 2  # without examples, averaging answers 0
    assert records[1]["mean"][0] == pytest.approx(zero, rel=1e-5), "the prompts are the run's own, with its gain"
    forget("elsewhere")
    assert_one_line(cli("evaluate", "moved", *settings), "task.py", "minicl evaluate moved", "--trust")
    assert json.loads(cli("evaluate", "moved", *settings, "--trust").stdout) == records


def test_a_class_of_ones_own_on_the_command_line(cli, here):
    text = cli("train", "--task", "my.py:cubic", "--help").stdout
    assert "settings of task cubic" in text and "--gain FLOAT" in text and "factor of the labels (1.0)" in text
    assert "--gain" in cli("train", "--task=my.py:cubic", "--help").stdout
    assert "--gain" not in cli("train", "--help").stdout
    train = ["train", "--task", "my.py:cubic", *FLAGS, "--out", "run"]
    assert_one_line(cli(*train, "--gain", 0), "gain: got 0.0", "above 0")
    assert_one_line(cli(*train, "--gain", "much"), "--gain", "'much'")
    assert_one_line(cli(*train, "--sparsity", 2), "sparsity", "task cubic does not have", "gain")
    assert_one_line(cli("train", "--task", "my.py:cubi", "--help"), "has no 'cubi'", "it has: cubic")
    assert_one_line(cli("train", "--task", "gone.py:cubic"), "there is no file 'gone.py'")
    (here / "my.py").write_text(CUBIC.replace("gain", "steps"))
    assert_one_line(cli(*train), "setting of task", "steps", "names that are not settings of every run")
    assert not (here / "run").exists()


def test_a_task_is_a_class_and_its_settings():
    config = Config.make("tiny", task="sparse_linear", n_dims=4, sparsity=2)
    assert config.task == get_task("sparse_linear", n_dims=4, sparsity=2)
    assert issubclass(task_class("linear"), Task) and config.to_json()["data"]["sparsity"] == 2


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: get_task("liner"),
            ("task", "'liner'", "did you mean linear?", "decision_tree", "path/to/file.py:name"),
        ),
        (lambda: get_task("sparse_linear", sparsity=21), ("sparsity", "21", "at most n_dims = 20")),
        (lambda: get_task("sparse_linear", sparsity=0), ("sparsity", "0", "at least 1")),
        (lambda: get_task("decision_tree", depth=0), ("depth", "0", "from 1 to 16")),
        (lambda: get_task("decision_tree", depth=99), ("depth", "99", "from 1 to 16")),
        (lambda: get_task("noisy_linear", noise=-1), ("noise", "-1", "at least 0")),
        (lambda: get_task("noisy_linear", noise=math.nan), ("noise", "nan")),
        (lambda: get_task("linear", n_dims=0), ("n_dims", "0")),
        (lambda: get_task("linear", bias=2), ("bias", "2", "bool")),
        (lambda: get_task("linear", sparsity=2), ("setting of task linear", "sparsity", "n_dims, bias")),
        (lambda: get_task("relu_2nn", hidden=2.5), ("hidden", "2.5")),
        (lambda: get_task("linear").sample(0, 5), ("batch_size", "0")),
        (lambda: get_task("linear").sample(2, -1), ("n_points", "-1")),
        (lambda: get_task("linear").sample(2, 3, seed=-1), ("seed", "-1")),
        (lambda: get_task("linear").sample(2, 3, seed=0.5), ("seed", "0.5")),
    ],
)
def test_bad_parameters_name_the_argument(call, words):
    with pytest.raises(ValueError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_sparse_functions_of_a_curriculum_use_its_coordinates():
    """With 4 of 20 coordinates not zero, the support lies in those 4."""
    task = get_task("sparse_linear", n_dims=20, sparsity=3)
    f = task.function(Random(0, 500, dims=4))
    w = f(torch.eye(20).expand(500, 20, 20))
    assert ((w != 0).sum(1) == 3).all() and (w[:, 4:] == 0).all() and (w[:, :4] != 0).any(0).all()
    few = task.function(Random(0, 10, dims=2))(torch.eye(20).expand(10, 20, 20))
    assert ((few != 0).sum(1) == 2).all(), "no more than there are"
    whole, plain = (task.sample(8, 5, 0, dims=d) for d in (20, None))
    assert torch.equal(whole.ys, plain.ys) and get_task("linear").sample(4, 3, dims=5).ys.abs().min() > 0


@pytest.mark.parametrize(
    "field, words",
    [
        ("name: int = 1", ("name", "other names than")),
        ("out: int = 1", ("out", "other names than")),
        ("s: dict = None", ("dict", "int, float, str, bool")),
        ("s: list[int] = None", ("list[int]", "int, float, str, bool")),
    ],
)
def test_settings_that_cannot_be_flags_are_refused(tmp_path, field, words):
    source = f"from minicl.tasks import Linear\nclass mine(Linear):\n    {field}\n"
    (tmp_path / "my.py").write_text(source)
    with pytest.raises(InputError) as error:
        get_task(f"{tmp_path}/my.py:mine")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
