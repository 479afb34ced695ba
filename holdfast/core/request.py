"""The request of `holdfast train`: one frozen value, read from options or a TOML file and checked as a whole.

The text of each setting is its help. None or an empty value means that Holdfast chooses, and says why.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import Problem, RequestError, invalid_settings
from holdfast.core.facts import TASKS
from holdfast.core.setting_values import read_value
from holdfast.core.text import closest

DEFAULT_MAX_ATTEMPTS = 12  # in a row, without progress
GROUPS = {"data": "Data", "learning": "Training", "machine": "Machine", "run": "Run"}  # of settings, with their titles
NEEDLESS_WAIT = "only for several machines; give their number too"
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
    also: tuple[str, ...] = (),  # aliases, mostly Hugging Face's names
    basic: bool = False,  # one of the few that `--help` shows
) -> Any:
    """A setting with its help, its range and its aliases."""
    about = {"text": text, "kind": kind, "group": group, "low": low, "high": high, "allowed": allowed, "also": also}
    return dataclasses.field(default=default, metadata={**about, "basic": basic})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One training run as it was requested."""

    data: str = setting("", "Dataset to train on, a file or a folder.", kind="path", group="data", also=("train_file",))
    validation: str | None = setting(
        None, "File with the validation rows.", kind="path", group="data", also=("validation_file",), basic=True
    )
    test: str | None = setting(
        None, "File with the test rows.", kind="path", group="data", also=("test_file",), basic=True
    )
    negatives: str | None = setting(
        None, "JSON Lines file with hard negatives for queries (two-tower).", kind="path", group="data"
    )
    text_column: tuple[str, ...] = setting(
        (),
        "Column with the text. May be repeated to join columns.",
        kind="texts",
        group="data",
        also=("text_columns",),
        basic=True,
    )
    label_column: str | None = setting(None, "Column with the labels.", group="data", basic=True)
    group_column: str | None = setting(None, "Column whose equal values keep rows together in one split.", group="data")
    multi_label: bool | None = setting(
        None, "Allow any number of labels per row, or exactly one.", kind="flag", group="data"
    )
    encoding: str | None = setting(None, "Text encoding of the data, such as cp1252 or latin-1.", group="data")
    delimiter: str | None = setting(None, "Column delimiter of a CSV file, such as ; or tab.", group="data")
    header: bool | None = setting(None, "Treat the first row as column names.", kind="flag", group="data")
    min_score: float | None = setting(
        None, "Treat pairs with at least this score as positives (two-tower).", kind="number", group="data"
    )
    max_bad_rows: float = setting(
        0.01,
        "Maximum fraction of malformed rows. For incomplete rows the limit is at least 30%.",
        kind="number",
        group="data",
        low=0,
        high=1,
    )
    validation_share: float = setting(
        0.1, "Fraction of rows for validation, unless a file is given.", kind="number", group="data", low=0, high=0.9
    )
    test_share: float = setting(
        0.1, "Fraction of rows for testing, unless a file is given.", kind="number", group="data", low=0, high=0.9
    )

    task: str | None = setting(None, "Kind of model to train.", group="learning", allowed=TASKS, basic=True)
    preset: str | None = setting(
        None,
        "Start from the defaults for this kind of project.",
        group="learning",
        allowed=("medical-literature", "instruct", "retriever"),
    )
    model: str | None = setting(
        None,
        "Model to start from: minilm, smollm2, a folder, or a name on the Hugging Face hub.",
        group="learning",
        also=("model_name_or_path",),
        basic=True,
    )
    epochs: int | None = setting(
        None,
        "Number of passes over the training data.",
        kind="whole",
        group="learning",
        low=1,
        high=1000,
        also=("num_train_epochs",),
        basic=True,
    )
    max_steps: int | None = setting(
        None,
        "Stop after this many steps, regardless of the number of epochs.",
        kind="whole",
        group="learning",
        low=1,
        high=10**9,
    )
    batch_size: int | None = setting(
        None,
        "Number of examples per optimizer step, over all processes; split automatically to fit into memory.",
        kind="whole",
        group="learning",
        low=1,
        high=65_536,
        also=("train_batch_size",),
        basic=True,
    )
    lr: float | None = setting(
        None,
        "Peak learning rate.",
        kind="number",
        group="learning",
        low=1e-8,
        high=1,
        also=("learning_rate",),
        basic=True,
    )
    lr_scheduler_type: str | None = setting(
        None, "Learning-rate schedule after warm-up.", group="learning", allowed=("linear", "cosine", "constant")
    )
    warmup_ratio: float | None = setting(
        None, "Fraction of steps for learning-rate warm-up.", kind="number", group="learning", low=0, high=0.9
    )
    weight_decay: float | None = setting(
        None, "Weight decay for AdamW.", kind="number", group="learning", low=0, high=1
    )
    max_grad_norm: float | None = setting(
        None, "Clip gradients to this norm (0 disables clipping).", kind="number", group="learning", low=0, high=1e6
    )
    max_length: int | None = setting(
        None,
        "Maximum number of tokens per text.",
        kind="whole",
        group="learning",
        low=8,
        high=1_000_000,
        also=("max_seq_length",),
        basic=True,
    )
    overlong: str | None = setting(
        None,
        "What to do with texts longer than the maximum length (classify).",
        group="learning",
        allowed=("truncate", "window"),
    )
    seed: int = setting(
        42, "Seed for splits, data order and all random numbers.", kind="whole", group="learning", low=0, high=2**32 - 1
    )
    eval_steps: int | None = setting(
        None, "Evaluate after this many steps instead of after each epoch.", kind="whole", group="learning", low=1
    )
    keep: str = setting("best", "Which weights become the final model.", group="learning", allowed=("best", "last"))
    lora: bool | None = setting(
        None,
        "Train LoRA adapters instead of all weights (causal).",
        kind="flag",
        group="learning",
        also=("use_lora",),
        basic=True,
    )
    lora_r: int | None = setting(None, "LoRA rank.", kind="whole", group="learning", low=1, high=1024)
    lora_alpha: int | None = setting(
        None, "LoRA alpha, the scaling factor.", kind="whole", group="learning", low=1, high=4096
    )
    lora_dropout: float | None = setting(None, "LoRA dropout.", kind="number", group="learning", low=0, high=0.9)
    lora_target_modules: tuple[str, ...] = setting(
        (),
        "Layers that get LoRA adapters; all linear layers unless given. May be repeated.",
        kind="texts",
        group="learning",
    )
    class_weights: str | None = setting(
        None, "Give rare classes more weight (classify).", group="learning", allowed=("balanced", "none")
    )
    towers: str | None = setting(
        None,
        "Share one encoder between queries and passages, or train one for each (two-tower).",
        group="learning",
        allowed=("shared", "separate"),
    )
    temperature: float | None = setting(
        None, "Temperature of the contrastive loss (two-tower).", kind="number", group="learning", low=0.01, high=10
    )
    mining: bool | None = setting(
        None, "Mine hard negatives with the model between epochs (two-tower).", kind="flag", group="learning"
    )
    query_prefix: str = setting("", "Text to put before each query (two-tower).", group="learning")
    passage_prefix: str = setting("", "Text to put before each passage (two-tower).", group="learning")
    chat_template: str | None = setting(
        None, "File with a Jinja chat template to use instead of the model's (causal).", kind="path", group="learning"
    )

    device: str | None = setting(
        None, "Device to train on.", group="machine", allowed=("cpu", "cuda", "mps"), basic=True
    )
    precision: str | None = setting(None, "Numeric precision for training.", group="machine", allowed=("fp32", "bf16"))
    processes: int | None = setting(
        None,
        "Number of processes that share each step; with GPUs, one per GPU.",
        kind="whole",
        group="machine",
        low=1,
        high=1024,
        also=("nproc_per_node", "num_processes"),
    )
    nodes: int | None = setting(
        None,
        "Number of machines; run the same command on each, with an output folder on shared storage.",
        kind="whole",
        group="machine",
        low=1,
        high=10_000,
        also=("nnodes", "num_machines"),
    )
    nodes_wait: float = setting(
        900.0, "How long to wait for missing machines, in seconds.", kind="number", group="machine", low=1, high=604_800
    )
    threads: int | None = setting(
        None, "Number of CPU threads per process.", kind="whole", group="machine", low=1, high=1024
    )
    micro_tokens: int | None = setting(
        None, "Maximum number of tokens per backward pass.", kind="whole", group="machine", low=8, high=10**7
    )
    gradient_checkpointing: bool | None = setting(
        None, "Recompute activations to save memory.", kind="flag", group="machine"
    )
    torch_compile: bool | None = setting(
        None, "Compile the layers with torch.compile (classify).", kind="flag", group="machine", also=("compile",)
    )

    out: str | None = setting(None, "Folder for the run.", kind="path", also=("output_dir",), basic=True)
    from_run: str | None = setting(None, "Start from the model of this finished run.", kind="path", also=("from",))
    prove: str = setting(
        "auto", "Test the run on a small scale before spending time on it.", allowed=("auto", "always", "never")
    )
    allow_changes: bool = setting(
        False, "As a last resort, allow remedies that change what the model learns, such as shorter texts.", kind="flag"
    )
    max_attempts: int = setting(
        DEFAULT_MAX_ATTEMPTS,
        "Give up after this many attempts without progress.",
        kind="whole",
        low=1,
        high=1000,
    )
    step_timeout: float | None = setting(
        None,
        "Maximum time for one step, in seconds; learned from the run unless given.",
        kind="number",
        low=1,
        high=604_800,
    )
    save_seconds: float = setting(
        60.0,
        "Maximum work that a crash may lose, in seconds; sets how often checkpoints are saved.",
        kind="number",
        low=0,
        high=86_400,
    )
    offline: bool = setting(False, "Do not contact the hub or the package registry.", kind="flag")
    report_to: tuple[str, ...] = setting(
        (), "Experiment tracker that also receives the metrics. May be repeated.", kind="texts"
    )


FIELDS: Mapping[str, "dataclasses.Field[Any]"] = {field.name: field for field in dataclasses.fields(TrainRequest)}

# What a user of the service may set: no paths, and nothing that reaches outside the run.
REMOTE_FIELDS = {
    name: field
    for name, field in FIELDS.items()
    if field.metadata["kind"] != "path" and name not in ("report_to", "offline", "nodes", "nodes_wait")
}


def make_request(given: Mapping[str, object]) -> TrainRequest:
    """Check all given settings, under any of their names; all problems are reported at once."""
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
    invalid = {problem.setting for problem in problems}
    problems += (problem for problem in _together(values) if problem.setting not in invalid)
    if problems:
        raise invalid_settings(problems)
    return TrainRequest(**values)


def read_toml(path: Path) -> dict[str, object]:
    """Read a request file; its tables only group settings and have no meaning."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read", found=error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not TOML", found=str(error)) from error
    return dict(_flat(found))


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
