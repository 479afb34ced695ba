"""What was asked of `train`: one frozen value, read from options or a TOML file, checked as a whole, written back.

The text beside each setting is its help. None and empty mean: find out, and say what was chosen and why.
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.artifacts import to_plain
from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.setting_values import read_value
from holdfast.core.text import closest

KIND = "train"
NEEDLESS_WAIT = "only for several machines; give their number too"
DATA_SHA256 = "data_sha256"  # kept with the settings, where several machines must have the same data
PRESET_TASKS = {"instruct": "causal", "retriever": "two-tower", "medical-literature": "classify"}


def setting(
    default: Any,
    text: str,
    *,
    kind: str = "text",  # "text" | "texts" | "path" | "whole" | "number" | "flag"
    group: str = "run",
    low: float | None = None,
    high: float | None = None,
    allowed: tuple[str, ...] = (),
    also: tuple[str, ...] = (),  # other names for it, mostly HF's
) -> Any:
    """A field of the request with its help, its range and its other names."""
    about = {"text": text, "kind": kind, "group": group, "low": low, "high": high, "allowed": allowed, "also": also}
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One training run as it was asked for."""

    data: str = setting("", "Dataset to train on: a file or a folder.", kind="path", group="data", also=("train_file",))
    validation: str | None = setting(
        None, "File with the rows to validate on.", kind="path", group="data", also=("validation_file",)
    )
    test: str | None = setting(None, "File with the rows to test on.", kind="path", group="data", also=("test_file",))
    negatives: str | None = setting(None, "JSON lines with near-misses of queries.", kind="path", group="data")
    text_column: tuple[str, ...] = setting(
        (), "Column with the text; several are joined.", kind="texts", group="data", also=("text_columns",)
    )
    label_column: str | None = setting(None, "Column with the labels.", group="data")
    group_column: str | None = setting(None, "Rows with the same value here stay in one split.", group="data")
    multi_label: bool | None = setting(
        None, "Any number of labels a row, or exactly one (--single-label).", kind="flag", group="data"
    )
    encoding: str | None = setting(None, "Such as cp1252 or latin-1.", group="data")
    delimiter: str | None = setting(None, "Such as ; or 'tab'.", group="data")
    header: bool | None = setting(None, "Whether the first row names the columns.", kind="flag", group="data")
    min_score: float | None = setting(None, "Scored pairs from here on belong together.", kind="number", group="data")
    max_bad_rows: float = setting(
        0.01, "Share of rows that may be unusable.", kind="number", group="data", low=0, high=1
    )
    validation_share: float = setting(
        0.1, "Share cut off to validate on, where no file is given.", kind="number", group="data", low=0, high=0.9
    )
    test_share: float = setting(
        0.1, "Share cut off to test on, where no file is given.", kind="number", group="data", low=0, high=0.9
    )

    task: str | None = setting(None, "What to train.", group="learning", allowed=("classify", "causal", "two-tower"))
    preset: str | None = setting(
        None,
        "Defaults for a kind of project.",
        group="learning",
        allowed=("medical-literature", "instruct", "retriever"),
    )
    model: str | None = setting(
        None,
        "Model to start from: minilm, smollm2, a folder, or a name on the hub.",
        group="learning",
        also=("model_name_or_path",),
    )
    epochs: int | None = setting(
        None,
        "How often each example is seen.",
        kind="whole",
        group="learning",
        low=1,
        high=1000,
        also=("num_train_epochs",),
    )
    max_steps: int | None = setting(
        None, "Stop after so many steps, whatever the epochs.", kind="whole", group="learning", low=1, high=10**9
    )
    batch_size: int | None = setting(
        None,
        "Examples of one optimizer step; split further where memory asks for it.",
        kind="whole",
        group="learning",
        low=1,
        high=65_536,
        also=("per_device_train_batch_size", "train_batch_size"),
    )
    lr: float | None = setting(
        None,
        "Learning rate at its highest.",
        kind="number",
        group="learning",
        low=1e-8,
        high=1,
        also=("learning_rate",),
    )
    lr_scheduler_type: str | None = setting(
        None, "How the learning rate falls.", group="learning", allowed=("linear", "cosine", "constant")
    )
    warmup_ratio: float | None = setting(
        None, "Share of the steps in which it rises.", kind="number", group="learning", low=0, high=0.9
    )
    weight_decay: float | None = setting(None, "Of AdamW.", kind="number", group="learning", low=0, high=1)
    max_grad_norm: float | None = setting(
        None, "Longer gradients are cut to this; 0 leaves them.", kind="number", group="learning", low=0, high=1e6
    )
    max_length: int | None = setting(
        None,
        "Tokens of a text at the most.",
        kind="whole",
        group="learning",
        low=8,
        high=1_000_000,
        also=("max_seq_length",),
    )
    overlong: str | None = setting(
        None, "What to do with longer texts (classify).", group="learning", allowed=("truncate", "window")
    )
    seed: int = setting(
        42, "Decides splits, order and every draw.", kind="whole", group="learning", low=0, high=2**32 - 1
    )
    eval_steps: int | None = setting(
        None, "Evaluate after so many steps; otherwise after each epoch.", kind="whole", group="learning", low=1
    )
    keep: str = setting("best", "Which weights become the model.", group="learning", allowed=("best", "last"))
    lora: bool | None = setting(
        None, "Train adapters in place of all weights (causal).", kind="flag", group="learning", also=("use_lora",)
    )
    lora_r: int | None = setting(None, "Rank of the adapters.", kind="whole", group="learning", low=1, high=1024)
    lora_alpha: int | None = setting(None, "Their scale.", kind="whole", group="learning", low=1, high=4096)
    lora_dropout: float | None = setting(None, "Their dropout.", kind="number", group="learning", low=0, high=0.9)
    lora_target_modules: tuple[str, ...] = setting(
        (), "Layers that get adapters; otherwise all linear ones.", kind="texts", group="learning"
    )
    class_weights: str | None = setting(
        None, "Weigh rare classes up (classify).", group="learning", allowed=("balanced", "none")
    )
    towers: str | None = setting(
        None, "One tower for queries and passages, or one each.", group="learning", allowed=("shared", "separate")
    )
    temperature: float | None = setting(
        None, "Of the two-tower loss.", kind="number", group="learning", low=0.01, high=10
    )
    mining: bool | None = setting(
        None, "Search near-misses with the model between epochs (two-tower).", kind="flag", group="learning"
    )
    query_prefix: str = setting("", "What the model wants before a query (two-tower).", group="learning")
    passage_prefix: str = setting("", "What the model wants before a passage (two-tower).", group="learning")
    chat_template: str | None = setting(
        None, "File with a Jinja template in place of the model's own (causal).", kind="path", group="learning"
    )

    device: str | None = setting(None, "Where to train.", group="machine", allowed=("cpu", "cuda", "mps"))
    precision: str | None = setting(None, "Of the computation.", group="machine", allowed=("fp32", "bf16"))
    processes: int | None = setting(
        None,
        "Processes that share each step, on cards one for each; otherwise one.",
        kind="whole",
        group="machine",
        low=1,
        high=1024,
        also=("nproc_per_node", "num_processes"),
    )
    nodes: int | None = setting(
        None,
        "Machines that train together: start the same words on each, with --out on storage they share; otherwise one.",
        kind="whole",
        group="machine",
        low=1,
        high=10_000,
        also=("nnodes", "num_machines"),
    )
    nodes_wait: float = setting(
        900.0, "Seconds that missing machines are waited for.", kind="number", group="machine", low=1, high=604_800
    )
    threads: int | None = setting(
        None, "Threads of the CPU, of each process.", kind="whole", group="machine", low=1, high=1024
    )
    micro_tokens: int | None = setting(
        None, "Tokens of one backward pass at the most.", kind="whole", group="machine", low=8, high=10**7
    )
    gradient_checkpointing: bool | None = setting(
        None, "Compute activations twice to save memory.", kind="flag", group="machine"
    )
    torch_compile: bool | None = setting(
        None, "Compile the layers (classify).", kind="flag", group="machine", also=("compile",)
    )

    out: str | None = setting(None, "Folder of the run.", kind="path", also=("output_dir",))
    from_run: str | None = setting(None, "Go on from the model of this finished run.", kind="path", also=("from",))
    prove: str = setting(
        "auto", "Try the run in small before spending time on it.", allowed=("auto", "always", "never")
    )
    allow_changes: bool = setting(
        False, "Let a remedy change what is learned, such as shorter texts; last, and printed.", kind="flag"
    )
    max_attempts: int = setting(12, "Attempts at the most.", kind="whole", low=1, high=1000)
    step_timeout: float | None = setting(
        None, "Seconds that one step may take; otherwise learned from the run.", kind="number", low=1, high=604_800
    )
    save_seconds: float = setting(
        60.0, "Seconds of work that may be lost at the most.", kind="number", low=0, high=86_400
    )
    offline: bool = setting(False, "Ask no hub and no registry.", kind="flag")
    report_to: tuple[str, ...] = setting((), "Trackers that also get the figures.", kind="texts")


FIELDS: Mapping[str, "dataclasses.Field[Any]"] = {field.name: field for field in dataclasses.fields(TrainRequest)}

# What somebody on another machine may set: no paths, and nothing that reaches outside of the run.
REMOTE_FIELDS = {
    name: field
    for name, field in FIELDS.items()
    if field.metadata["kind"] != "path" and name not in ("report_to", "offline", "nodes", "nodes_wait")
}


def make_request(given: Mapping[str, object]) -> TrainRequest:
    """Check everything that was given, by any of its names; all problems are reported at once."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = _field_named(name)
        if field is None:
            problems.append(_unknown(name))
        elif value is not None and value != ():
            try:
                values[field.name] = read_value(field, value)
            except ValueError as error:
                problems.append(Problem(field.name, str(error), _shown(value)))
    problems += _together(values)
    if problems:
        raise invalid_settings(problems)
    return TrainRequest(**values)


def read_toml(path: Path) -> dict[str, object]:
    """Read a request file; tables are only for order and mean nothing."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read", seen=error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not TOML", seen=str(error)) from error
    return dict(_flat(found))


def to_saved(request: TrainRequest) -> dict[str, object]:
    """The request as `request.json` keeps it, complete."""
    plain = to_plain(request)
    assert isinstance(plain, dict)
    return {"kind": KIND, **plain}


def read_saved(path: Path) -> TrainRequest:
    """Read back what `to_saved` gave."""
    found = json.loads(path.read_text(encoding="utf-8"))
    found.pop("kind", None)
    found.pop(DATA_SHA256, None)
    if (found.get("nodes") or 1) == 1:
        found.pop("nodes_wait", None)  # as it was before others left, or as nobody gave it
    return make_request({name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def nodes_of(request: TrainRequest) -> int:
    """How many machines train together."""
    return request.nodes or 1


def _field_named(name: str) -> "dataclasses.Field[Any] | None":
    wanted = name.lstrip("-").replace("-", "_")
    if wanted in FIELDS:
        return FIELDS[wanted]
    return next((field for field in FIELDS.values() if wanted in field.metadata["also"]), None)


def _unknown(name: str) -> Problem:
    names = [*FIELDS, *(other for field in FIELDS.values() for other in field.metadata["also"])]
    guess = closest(name.replace("-", "_"), names)
    return Problem("", f"unknown setting {name!r}" + (f"; did you mean {guess}?" if guess else ""))


def _together(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Settings that do not go together."""
    if not values.get("data") and not values.get("from_run"):
        yield Problem("data", "missing; give a file or a folder to train on")
    if values.get("validation_share", 0.1) + values.get("test_share", 0.1) > 0.95:
        yield Problem("validation_share", "together with the test share, this leaves nothing to train on")
    if values.get("nodes", 1) > 1 and not values.get("out"):
        yield Problem("out", "required with several machines; give a folder on storage that they all share")
    if "nodes_wait" in values and values.get("nodes", 1) == 1:
        yield Problem("nodes_wait", NEEDLESS_WAIT)
    task, lora = values.get("task"), values.get("lora")
    if lora and task in ("classify", "two-tower"):
        yield Problem("lora", f"only for causal models, not for {task}")
    preset_task = PRESET_TASKS.get(values.get("preset", ""), task)
    if task is not None and preset_task != task:
        yield Problem("preset", f"only for {preset_task}, not for {task}", values["preset"])
    if lora is False:
        for name in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
            if values.get(name):
                yield Problem(name, "requires LoRA, which was turned off", _shown(values[name]))


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= 60 else text[:60] + "..."
