"""Every place that is derived from the table of settings knows every entry, also one that was just added."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.resume import resume
from holdfast.cli.train import train
from holdfast.core.errors import RequestError
from holdfast.core.facts import ModelFacts
from holdfast.core.records import MemoryEstimate, RunPlan, write_record
from holdfast.core.setting_values import make_request, read_toml, settings_schema
from holdfast.core.settings import (
    BATCH_PARTS,
    COMPUTING_SETTINGS,
    LEARNING_SETTINGS,
    PRESETS,
    SETTINGS,
    EngineSettings,
    Setting,
    is_of_preset,
    names_with,
    requested_batch_size,
    with_preset,
)
from holdfast.core.text import option
from holdfast.engine.attempt_settings import AttemptSettings, read_attempt_settings
from holdfast.engine.checkpoint import identity_of
from holdfast.runs.train_spec import memory_key
from holdfast.supervisor.ladders import engine_ladder
from tests.tiny import tiny_bert, tiny_prepared
from tools.settings_page import PAGE, page

PLACES = {"task": "classify", "model": "/m", "prepared": "/p", "run": "/r"}
ENTRY = '    label_smoothing: float = setting(0.0, "Smooth the labels by this much.", "learning", low=0, high=0.9)\n'
# What the places that are derived from the table say about a setting, in a Python of its own.
ASK = """
import json, sys
from pathlib import Path
sys.path.append({tests!r})
from holdfast.cli.train import train
from holdfast.core.setting_values import make_request, settings_schema
from holdfast.core.settings import LEARNING_SETTINGS, OPEN_SETTINGS
from tests.unit.pipeline.test_train_plan import LAPTOP, MINILM, amounts, dataset
from holdfast.pipeline.train_plan import make_plan
from tools.settings_page import page
request = make_request({{"data": "x.csv", "label-smoothing": "0.1"}})
print(json.dumps({{
    "option": any("--label-smoothing" in one.opts for one in train.params),
    "schema": settings_schema()["label_smoothing"]["maximum"],
    "form": "label_smoothing" in OPEN_SETTINGS,
    "engine": make_plan(request, Path("/r"), LAPTOP, dataset(), MINILM, amounts()).settings.label_smoothing,
    "identity": "label_smoothing" in LEARNING_SETTINGS,
    "page": "`--label-smoothing`" in page(),
}}))
"""


def another(setting: Setting) -> object:
    """An allowed value that is not the default."""
    if setting.allowed:
        value = next(one for one in reversed(setting.allowed) if one != setting.default)
        return (value,) if setting.kind == "texts" else value
    if setting.kind in ("number", "whole"):
        value = (setting.low or 0) + (0.25 if setting.kind == "number" else 1)
        return value if value != setting.default else value * 2
    return {"flag": not setting.default, "texts": ("x",), "path": "/x", "text": "x", "exact": " x "}[setting.kind]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_is_an_option_and_a_documented_key(setting, tmp_path):
    assert setting.help.endswith(".")
    assert setting.name == "data" or setting.name in {one.name for one in train.params}
    assert (setting.name in settings_schema()) == setting.is_open
    assert f"`{option(setting.name)}`" in PAGE.read_text(encoding="utf-8")
    companions = {
        "nodes": ("out", "/x"),
        "nodes_wait": ("nodes", 2),
        "fold": ("folds", 5),
        "load_in_4bit": ("backend", "mlx"),
        "gradient_accumulation_steps": (BATCH_PARTS[0], 2),
    }
    given = {"data": "/x.csv", "out": "/x", **dict([companions.get(setting.name, ("data", "/x.csv"))])}
    value = another(setting)
    given[setting.name] = list(value) if isinstance(value, tuple) else value
    (tmp_path / "run.toml").write_text("".join(f"{name} = {json.dumps(one)}\n" for name, one in given.items()))
    assert getattr(make_request(read_toml(tmp_path / "run.toml")), setting.name) == value


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_engine_reads_every_setting_by_its_name(setting, tmp_path):
    write_record(tmp_path, EngineSettings(**PLACES | {setting.name: another(setting)}))
    assert getattr(read_attempt_settings(tmp_path), setting.name) == another(setting)


def test_resume_refuses_other_learning_and_nothing_else(tmp_path):
    places = {"prepared": str(tiny_prepared(tmp_path / "prepared")), "model": str(tiny_bert(tmp_path / "model"))}
    first = identity_of(AttemptSettings(**PLACES | places))
    for name, setting in SETTINGS.items():
        if name != "model":
            other = identity_of(AttemptSettings(**PLACES | places | {name: another(setting)}))
            assert (other != first) == (setting.affects == "learning" and name != "preset"), name


def test_the_ladder_never_changes_what_is_learned():
    ladder = engine_ladder(EngineSettings(**PLACES, processes=2, threads=8))
    for name, setting in SETTINGS.items():
        changes = ladder.apply({}, {name: another(setting)})
        assert not {one for one in changes if not one.isupper()} - COMPUTING_SETTINGS, name
        assert name == "nodes" or setting.affects != "computing" or name in changes, name
    assert not COMPUTING_SETTINGS & {*LEARNING_SETTINGS}


def test_what_a_run_computes_decides_what_is_remembered_for_it():
    plan = RunPlan(
        task="classify",
        model=ModelFacts(name="m", folder="/m"),
        choices={},
        settings=EngineSettings(**PLACES),
        memory=MemoryEstimate(need_bytes=0, libraries_bytes=0),
    )
    request = make_request({"data": "/x.csv"})
    for name, setting in SETTINGS.items():
        other = memory_key(dataclasses.replace(request, **{name: another(setting)}), plan)
        decides = setting.affects == "computing" or "memory" in setting.traits or name == "data"
        assert (other != memory_key(request, plan)) == decides, name


def test_resume_offers_what_may_change():
    assert names_with("resume") <= {one.name for one in resume.params}
    assert names_with("resume") <= COMPUTING_SETTINGS


def test_the_reference_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_a_setting_is_added_with_one_entry(tmp_path):
    package = Path(holdfast.__file__).parent
    shutil.copytree(package, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "holdfast" / "core" / "settings.py"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("    seed: int = setting(", ENTRY + "    seed: int = setting("), encoding="utf-8")
    ask = [sys.executable, "-c", ASK.format(tests=str(package.parent))]
    found = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    known = {"option": True, "schema": 0.9, "form": True, "engine": 0.1, "identity": True, "page": True}
    assert json.loads(found.stdout) == known


def test_batch_sizes_of_hugging_face_are_per_process():
    def size(**given: object) -> int | None:
        return requested_batch_size(make_request({"data": "x", **given}))

    assert size(per_device_train_batch_size=8) == 8
    assert size(per_device_train_batch_size=8, processes=2, gradient_accumulation_steps=4) == 64
    assert size(per_device_train_batch_size=8, processes=2, nodes=3, out="/x") == 48
    assert size(batch_size=32, processes=2) == 32
    for given in ({"batch_size": 32, "per_device_train_batch_size": 8}, {"gradient_accumulation_steps": 4}):
        with pytest.raises(RequestError) as raised:
            size(**given)
        assert raised.value.problems[0].setting == [*given][-1]
        assert {"batch_size", "per_device_train_batch_size"} <= {
            word.strip(",;") for word in f"{raised.value.problems[0].text} {raised.value.problems[0].setting}".split()
        }


@pytest.mark.parametrize("preset", PRESETS)
def test_given_settings_override_the_preset(preset):
    assert PRESETS[preset].keys() <= SETTINGS.keys()
    made = with_preset(make_request({"data": "x", "preset": preset, "per_device_train_batch_size": 4, "epochs": 9}))
    assert (made.epochs, requested_batch_size(made)) == (9, 4)
    assert is_of_preset(made, "lr") == ("lr" in PRESETS[preset])
