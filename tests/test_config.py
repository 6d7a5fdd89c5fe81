"""Settings, presets, and their way to and from config.json."""

import copy
import dataclasses
import json
import random

import pytest
from conftest import EVERY
from training_helpers import ROOT, flags, tiny_config

from minicl import config as config_module
from minicl.checks import InputError
from minicl.cli import main
from minicl.config import GROUPS, PRESETS, Config
from minicl.settings import setting

BAD = [
    "--task=liner", "--task=no.py:f", "--mask=arr", "--mask=no.py:f", "--positions=odd", "--copies=0",
    "--mask=invicl --copies=1", "--preset=huge", "--preset=demo", "--steps=0", "--steps=many", "--steps=1.5",
    "--batch-size=0", "--batch-size=-3", "--seed=-1", "--seed=x", "--seed=99999999999999999999999",
    "--threads=99999999", "--keep=0", "--threads=0", "--examples=0", "--examples=9", "--queries=0",
    "--lengths=sideways", "--loss=some", "--optimizer=sgd", "--lr=0", "--lr=-1", "--lr=nan", "--beta2=1",
    "--warmup=-1", "--schedule=step", "--decay=2", "--clip=-1", "--precision=fp8", "--device=tpu", "--device=cuda:99",
    "--n-layer=0", "--n-head=3", "--n-dims=0", "--sparsity=2", "--task=sparse_linear --sparsity=3",
    "--task=decision_tree --depth=0", "--keep=61", "--keep=a,b", "--log-every=0", "--save-every=0", "--validate=0",
    "--weight-decay=-1", "--nonsense", "--noise=-1", "--max-examples=2", "--task=relu_2nn --hidden=0",
    "--curriculum-steps=0", "--curriculum-steps=61", "--out", "--init-std=0", "--symmetric-std=0", "extra",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_flags_are_one_line(bad, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["train", *flags(), *bad.split()])
    printed = capsys.readouterr()
    assert exit.value.code == 2 and printed.out == "" and len(printed.err.splitlines()) == 1
    name = bad.split()[-1].split("=")[0].lstrip("-")
    assert name in printed.err or name.replace("-", "_") in printed.err
    assert not list(tmp_path.iterdir())


def test_help_names_every_flag_and_its_default(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["train", "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    for name in ("task", "mask", "positions", "copies", "preset", "steps", "batch-size", "seed", "out", "threads"):
        assert f"--{name} " in text
    assert "updates (1200)" in text


def test_flags_override_presets_and_configs_survive_json():
    assert Config.make("paper", steps=60_000).train.keep == (10_000, 25_000, 50_000)
    assert Config.make("tiny", lr=0.5).train.lr == 0.5 and Config.make("tiny", keep=[3, 9]).train.keep == (3, 9)
    for preset in PRESETS:
        config = Config.make(preset, mask="invicl")
        record = json.loads(json.dumps(config.to_json()))
        assert Config.from_json(record) == config and config.differences(record) == []


def test_the_paper_s_preset():
    c = Config.make("paper")
    assert (c.model.n_dims, c.data.examples, c.train.batch_size, c.train.steps) == (20, 40, 64, 200_000)
    assert (c.model.n_layer, c.model.n_head, c.model.n_embd, c.train.lr) == (12, 8, 256, 1e-4)
    assert {50_000, 200_000} <= {*c.train.keep, c.train.steps}


def test_small_presets_run_on_one_thread_unless_told_otherwise():
    assert {name: Config.make(name).machine.threads for name in PRESETS} == {
        "tiny": 1, "small": 1, "paper": None, "paper-fast": None, "tables": 1
    }  # fmt: skip
    assert Config.make("tiny", threads=2).machine.threads == 2


def test_lengths_and_loss_follow_from_the_mask():
    """A causal mask trains every shorter context with the full one; the others must be shown short ones on purpose."""
    chosen = {mask: Config.make("tiny", mask=mask) for mask in EVERY}
    assert {"ar", "nope", "prefix", "boe", "saicl", "invicl", "prefix_others"} <= set(chosen)
    for mask, config in chosen.items():
        leaks = mask in ("prefix", "saicl", "prefix_others")
        causal = mask in ("ar", "nope")
        assert config.leaks == leaks, mask
        assert (config.data.lengths, config.train.loss) == (
            "fixed" if causal else "long",
            "query" if leaks or mask in ("boe", "pfn", "batchicl") else "all",
        ), mask
    assert Config.make("tiny", mask="ar", loss="query").data.lengths == "long"
    assert Config.make("tiny", mask="prefix", examples=1).train.loss == "query", "the last example's leak counts too"
    assert Config.make("tiny", mask="ar", lengths="uniform").data.lengths == "uniform"
    assert Config.make("tiny", mask="boe", copies=2).leaks
    assert not Config.make("tiny", mask="saicl", n_layer=1).leaks, "with one layer nothing has come back yet"


def test_a_method_s_name_says_what_is_not_the_strategy_s_own():
    assert Config.make("tiny", mask="ar").method == "ar"
    assert Config.make("tiny", mask="ar", positions="symmetric", copies=2).method == "ar+symmetric+×2"
    assert Config.make("tiny", mask="invicl", copies=2, blind_query=True).method == "invicl+blind"


def stored(**settings):
    return json.loads(json.dumps(tiny_config(**settings).to_json()))


def without(record, group, name):
    record = copy.deepcopy(record)
    del record[group][name]
    return record


def test_differences_are_said_in_words_and_the_machine_s_do_not_count():
    config = tiny_config()
    assert config.differences(stored()) == []
    assert config.differences(stored(threads=2, device="cpu", compile=True)) == []
    assert config.differences(stored(lr=0.5, mask="boe", loss="all", lengths="fixed")) == [
        "lr 0.5 there, 0.001 here",
        "mask boe there, ar here",
    ]
    assert config.differences(stored(task="noisy_linear", noise=2.0))


def test_a_stored_config_may_lack_settings_that_have_their_default():
    """Those that were added since. Whatever the setting is, and wherever it belongs."""
    config = tiny_config(task="sparse_linear", sparsity=2)
    record = stored(task="sparse_linear", sparsity=2)
    defaults = {f.name: f.default for cls in GROUPS.values() for f in dataclasses.fields(cls)}
    lacking = 0
    for group, settings in record.items():
        for name, value in settings.items():
            if value == defaults.get(name, "none"):
                shorter = without(record, group, name)
                assert config.differences(shorter) == [], name
                assert Config.from_json(shorter) == config, name
                lacking += 1
    assert lacking > 10
    assert config.differences(without(record, "train", "warmup")) == ["warmup 0 there, 5 here"]
    assert config.differences(without(record, "data", "sparsity")) == ["sparsity 3 there, 2 here"]


def with_field(cls, **added):
    """The same settings and some more, as a later version of minicl has them."""
    namespace = {name: value for name, (_, value) in added.items()}
    namespace["__annotations__"] = {name: kind for name, (kind, _) in added.items()}
    return dataclasses.dataclass(frozen=True)(type(cls.__name__, (cls,), namespace))


def later_version(monkeypatch, **added):
    cls = with_field(config_module.TrainConfig, **added)
    monkeypatch.setitem(GROUPS, "train", cls)
    for name in added:
        monkeypatch.setitem(config_module.GROUP_OF, name, "train")


def test_a_setting_that_is_added_later_changes_nothing_for_stored_configs(monkeypatch):
    record = stored()
    later_version(monkeypatch, dropout=(float, setting(0.0, "share of activations that are dropped", least=0)))
    config = tiny_config()
    assert config.train.dropout == 0 and "dropout" in config.to_json()["train"]
    assert config.differences(record) == [] and Config.from_json(record) == config
    assert tiny_config(dropout=0.5).differences(record) == ["dropout 0.0 there, 0.5 here"]


def test_a_default_that_changes_later_is_noticed(monkeypatch):
    record = stored()
    assert record["train"]["decay"] == 0.2
    later_version(monkeypatch, decay=(float, setting(0.3, "stable: share of the steps that decay", least=0)))
    assert tiny_config().differences(record) == ["decay 0.2 there, 0.3 here"]
    assert Config.from_json(record).train.decay == 0.2, "a stored run stays what it was"


def test_committed_runs_can_still_be_read():
    for file in (ROOT / "results").rglob("config.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        config = Config.from_json(record, file.parent)
        assert config.differences(record) == [], file


def test_lists_in_a_task_s_settings_survive_json(tmp_path):
    (tmp_path / "my.py").write_text(
        "from minicl.settings import setting\nfrom minicl.tasks import Linear\n\n\n"
        'class wave(Linear):\n    """y = w·x"""\n\n    periods: tuple[int, ...] = setting((1, 2), "lengths of waves")\n'
    )
    config = tiny_config(task=f"{tmp_path}/my.py:wave", periods=(3, 4))
    record = json.loads(json.dumps(config.to_json()))
    assert record["data"]["periods"] == [3, 4] and config.differences(record) == []


def test_settings_that_do_not_belong_together_are_refused():
    for settings, words in (
        ({"nonsense": 1}, "nonsense"),
        ({"sparsity": 2}, "sparsity: got a setting that task linear does not have"),
        ({"examples": 16}, "at most max_examples"),
        ({"keep": (5000,)}, "keep"),
    ):
        with pytest.raises(InputError, match=words):
            Config.make("tiny", **settings)


def test_whatever_stands_in_a_config_is_read_or_refused_in_words():
    """Files of strangers: an InputError, never another exception."""
    dice, strange = random.Random(0), [None, -1, 10**30, 0.5, "", "x", [], [1], {}, {"a": 1}, True, float("nan")]
    for _ in range(400):
        record = stored()
        for _ in range(dice.randint(1, 3)):
            group = dice.choice([*record])
            if dice.random() < 0.1 or not isinstance(record[group], dict) or not record[group]:
                record[group] = dice.choice(strange)
            else:
                record[group][dice.choice([*record[group], "x"])] = dice.choice(strange)
        try:
            Config.from_json(record)
            tiny_config().differences(record)
        except InputError:
            pass
    for record in (*strange, {"data": {}}):
        with pytest.raises(InputError):
            Config.from_json(record)
