"""The one table of settings: every field of `TrainRequest` is a setting with its help, its range and what it affects.

Options, TOML files, the web form, the API, the plan, the engine, resuming, the fallback ladder, the memory of earlier
runs and docs/settings.md are derived from it. To add a setting:

1. Add a field to `TrainRequest`. None or an empty value means that Holdfast chooses, and says why.
2. Use it. The engine reads it from its settings by the same name, since `EngineSettings` is the request with every open
   value decided. If None means that Holdfast chooses, narrow the type in `EngineSettings`, and add the choice to
   the plan (`holdfast/pipeline/train_plan.py`).
3. Run `make pages`.

`tests/unit/core/test_settings_table.py` checks that every derived place knows it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from holdfast.core.facts import TASKS
from holdfast.core.plan import DEFAULT_MICRO_TOKENS

Kind = Literal["text", "exact", "texts", "path", "whole", "number", "flag"]  # exact: spaces at its ends count
Affects = Literal[
    "data",  # which examples are learned from, and their tokens: they are prepared again
    "learning",  # what is learned from them: another value is another run, so a resume refuses it
    "computing",  # how it is computed: the model stays the same, so the fallback ladder may change it
    "run",  # what happens around the training
]
Trait = Literal[
    "basic",  # one of the few that `--help` and the form show first
    "local",  # not for users of the service, because it reaches beyond the run; paths never are
    "url",  # a path that may also be an http or https address; `runs.new_train` downloads it
    "file",  # describes one data file, so a run that continues with other data does not take it over
    "own",  # each run and each machine has its own
    "memory",  # changes what is learned, and decides how much memory that takes
    "processes",  # chosen again when a run continues with another number of processes or another backend
    "resume",  # `holdfast resume` may change it
]
GROUPS: Mapping[Affects, str] = {"data": "Data", "learning": "Training", "computing": "Machine", "run": "Run"}
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
# Attempts that make progress do not count against the limit, but a run that crawls must end too: this many times the
# limit is the most in all.
TOTAL_ATTEMPTS_FACTOR = 10

PRESETS: Mapping[str, Mapping[str, object]] = {
    "medical-literature": {
        "task": "classify",
        "model": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
        "epochs": 4,
        "batch_size": 16,
        "lr": 3e-5,
        "overlong": "window",
    },
    "instruct": {
        "task": "causal",
        "lora": True,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "epochs": 2,
        "batch_size": 16,
        "lr": 2e-4,
        "schedule": "cosine",
        "max_length": 1024,
    },
    "retriever": {"task": "two-tower", "epochs": 3, "batch_size": 64, "lr": 5e-5, "mining": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One entry of the table."""

    help: str
    affects: Affects
    name: str = ""
    kind: Kind = "text"
    default: Any = None
    label: str = ""  # on pages; its name in words, unless given
    low: float | None = None
    high: float | None = None
    allowed: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # mostly Hugging Face's names
    traits: tuple[Trait, ...] = ()
    in_script: Mapping[str, str] = field(default_factory=dict)  # value -> how a user's own script sets it

    @property
    def is_open(self) -> bool:
        """Whether a user of the service may set it: no paths, and nothing that reaches outside the run."""
        return self.kind != "path" and "local" not in self.traits

    @property
    def has_default(self) -> bool:
        """Whether it has a value of its own when it is not given; otherwise Holdfast chooses one, or needs none."""
        return self.default not in (None, (), "")


def setting(default: Any, text: str, affects: Affects, kind: Kind = "text", **more: Any) -> Any:
    """An entry of the table; its kind follows from its type unless it is a path or an exact text."""
    entry = Setting(help=text, affects=affects, kind=kind, default=default, **more)
    return dataclasses.field(default=default, metadata={"setting": entry})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """One training run as it was requested."""

    data: str = setting(
        "",
        "Dataset to train on: a file, a folder, an archive or a URL.",
        "data",
        "path",
        aliases=("train_file",),
        traits=("url",),
    )
    validation: str | None = setting(
        None,
        "File with the validation rows.",
        "data",
        "path",
        aliases=("validation_file",),
        label="validation data",
        traits=("basic", "file", "url"),
    )
    test: str | None = setting(
        None,
        "File with the test rows.",
        "data",
        "path",
        aliases=("test_file",),
        label="test data",
        traits=("basic", "file", "url"),
    )
    negatives: str | None = setting(
        None,
        "JSON Lines file with hard negatives for queries (two-tower).",
        "data",
        "path",
        label="hard negatives of queries",
        traits=("file",),
    )
    text_column: tuple[str, ...] = setting(
        (),
        "Column with the text. May be repeated to join columns.",
        "data",
        aliases=("text_columns",),
        traits=("basic", "file"),
    )
    label_column: str | None = setting(None, "Column with the labels.", "data", traits=("basic", "file"))
    group_column: str | None = setting(
        None, "Column whose equal values keep rows together in one split.", "data", traits=("file",)
    )
    multi_label: bool | None = setting(
        None, "Allow any number of labels per row, or exactly one.", "data", traits=("file",)
    )
    encoding: str | None = setting(
        None, "Text encoding of the data, such as cp1252 or latin-1.", "data", traits=("file",)
    )
    delimiter: str | None = setting(
        None, "Column delimiter of a CSV file, such as ; or tab.", "data", "exact", traits=("file",)
    )
    header: bool | None = setting(None, "Treat the first row as column names.", "data", traits=("file",))
    min_score: float | None = setting(
        None, "Treat pairs with at least this score as positives (two-tower).", "data", traits=("file",)
    )
    max_bad_rows: float = setting(
        0.01,
        "Maximum fraction of malformed rows. For incomplete rows the limit is at least 30%.",
        "data",
        low=0,
        high=1,
    )
    validation_share: float = setting(
        0.1, "Fraction of rows for validation, unless a file is given.", "data", low=0, high=0.9
    )
    test_share: float = setting(0.1, "Fraction of rows for testing, unless a file is given.", "data", low=0, high=0.9)
    folds: int | None = setting(
        None,
        "Train this many models, each tested on its own part of the rows, and report the mean and the spread.",
        "data",
        low=2,
        high=20,
        traits=("local",),
    )
    fold: int | None = setting(
        None, "Train only the model of this fold, from 1 to --folds.", "data", low=1, high=20, traits=("local",)
    )
    check_labels: bool = setting(
        False,
        "Compare each label with a prediction that has not seen it, before training (classify, one label).",
        "run",
    )
    max_length: int | None = setting(
        None,
        "Maximum number of tokens per text.",
        "data",
        low=8,
        high=1_000_000,
        aliases=("max_seq_length",),
        traits=("basic", "memory"),
    )
    overlong: str | None = setting(
        None,
        "What to do with texts longer than the maximum length (classify).",
        "data",
        allowed=("truncate", "window"),
    )
    query_prefix: str = setting("", "Text to put before each query (two-tower).", "data", "exact")
    passage_prefix: str = setting("", "Text to put before each passage (two-tower).", "data", "exact")
    chat_template: str | None = setting(
        None, "File with a Jinja chat template to use instead of the model's (causal).", "data", "path"
    )

    task: str | None = setting(None, "Kind of model to train.", "learning", allowed=TASKS, traits=("basic",))
    preset: str | None = setting(
        None,
        "Start from the defaults for this kind of project.",
        "learning",
        allowed=tuple(PRESETS),
        traits=("basic", "own"),
    )
    model: str | None = setting(
        None,
        "Model to start from: minilm, smollm2, a folder, or a name on the Hugging Face hub.",
        "learning",
        aliases=("model_name_or_path",),
        traits=("basic",),
    )
    epochs: int | None = setting(
        None,
        "Number of passes over the training data.",
        "learning",
        low=1,
        high=1000,
        aliases=("num_train_epochs",),
        traits=("basic",),
    )
    max_steps: int | None = setting(
        None, "Stop after this many steps, regardless of the number of epochs.", "learning", low=1, high=10**9
    )
    batch_size: int | None = setting(
        None,
        "Number of examples per optimizer step, over all processes; split automatically to fit into memory.",
        "learning",
        low=1,
        high=65_536,
        aliases=("train_batch_size",),
        traits=("basic", "memory"),
    )
    per_device_train_batch_size: int | None = setting(
        None,
        "Number of examples per process, as in Hugging Face's Trainer. An optimizer step has this many, "
        "times the number of processes, times --gradient-accumulation-steps. Instead of --batch-size.",
        "learning",
        label="batch size per device",
        low=1,
        high=65_536,
        traits=("memory",),
    )
    gradient_accumulation_steps: int | None = setting(
        None,
        "Multiply --per-device-train-batch-size by this number for each optimizer step.",
        "learning",
        low=1,
        high=65_536,
        traits=("memory",),
    )
    lr: float | None = setting(
        None,
        "Peak learning rate.",
        "learning",
        label="learning rate",
        low=1e-8,
        high=1,
        aliases=("learning_rate",),
        traits=("basic",),
    )
    schedule: str | None = setting(
        None,
        "Learning-rate schedule after warm-up.",
        "learning",
        label="learning rate schedule",
        allowed=("linear", "cosine", "constant"),
        aliases=("lr_scheduler_type",),
    )
    warmup_ratio: float | None = setting(
        None, "Fraction of steps for learning-rate warm-up.", "learning", low=0, high=0.9
    )
    weight_decay: float | None = setting(None, "Weight decay for AdamW.", "learning", low=0, high=1)
    max_grad_norm: float | None = setting(
        None, "Clip gradients to this norm (0 disables clipping).", "learning", low=0, high=1e6
    )
    seed: int = setting(42, "Seed for splits, data order and all random numbers.", "learning", low=0, high=2**32 - 1)
    eval_steps: int | None = setting(
        None,
        "Evaluate after this many steps instead of after each epoch.",
        "learning",
        label="steps between evaluations",
        low=1,
    )
    keep: str = setting(
        "best", "Which weights become the final model.", "learning", label="weights to keep", allowed=("best", "last")
    )
    lora: bool | None = setting(
        None,
        "Train LoRA adapters instead of all weights (causal).",
        "learning",
        label="LoRA",
        aliases=("use_lora",),
        traits=("basic", "memory"),
    )
    lora_r: int | None = setting(None, "LoRA rank.", "learning", label="LoRA rank", low=1, high=1024)
    lora_alpha: int | None = setting(
        None, "LoRA alpha, the scaling factor.", "learning", label="LoRA alpha", low=1, high=4096
    )
    lora_dropout: float | None = setting(None, "LoRA dropout.", "learning", label="LoRA dropout", low=0, high=0.9)
    lora_target_modules: tuple[str, ...] = setting(
        (),
        "Layers that get LoRA adapters; all linear layers unless given. May be repeated.",
        "learning",
        label="LoRA target modules",
    )
    load_in_4bit: bool = setting(
        False,
        "Hold the frozen weights of the base model in 4 bits while adapters are trained (LoRA with MLX).",
        "learning",
        traits=("memory",),
    )
    class_weights: str | None = setting(
        None, "Give rare classes more weight (classify).", "learning", allowed=("balanced", "none")
    )
    towers: str | None = setting(
        None,
        "Share one encoder between queries and passages, or train one for each (two-tower).",
        "learning",
        allowed=("shared", "separate"),
    )
    temperature: float | None = setting(
        None, "Temperature of the contrastive loss (two-tower).", "learning", low=0.01, high=10
    )
    mining: bool | None = setting(None, "Mine hard negatives with the model between epochs (two-tower).", "learning")

    backend: str = setting(
        "auto",
        "Library that trains: torch, or MLX on Apple silicon.",
        "computing",
        allowed=("auto", "torch", "mlx"),
        traits=("processes", "resume"),
    )
    device: str | None = setting(
        None,
        "Device to train on.",
        "computing",
        allowed=("cpu", "cuda", "mps"),
        traits=("basic", "processes"),
        in_script={
            "cpu": "use_cpu=True in TrainingArguments, or .to('cpu')",
            "auto": "device = 'cuda' if torch.cuda.is_available() else 'cpu'",
        },
    )
    precision: str | None = setting(
        None,
        "Numeric precision for training.",
        "computing",
        allowed=("fp32", "bf16"),
        in_script={"fp32": "bf16=False, fp16=False", "": "{value}=True"},
    )
    processes: int | None = setting(
        None,
        "Number of processes that share each step; with GPUs, one per GPU.",
        "computing",
        low=1,
        high=1024,
        aliases=("nproc_per_node", "num_processes"),
        traits=("processes", "resume"),
    )
    nodes: int | None = setting(
        None,
        "Number of machines; run the same command on each, with an output folder on shared storage.",
        "computing",
        low=1,
        high=10_000,
        aliases=("nnodes", "num_machines"),
        traits=("local", "own", "processes", "resume"),
    )
    threads: int | None = setting(
        None,
        "Number of CPU threads per process.",
        "computing",
        low=1,
        high=1024,
        traits=("processes",),
        in_script={"": "torch.set_num_threads({value})"},
    )
    micro_tokens: int | None = setting(
        None, "Maximum number of tokens per backward pass.", "computing", low=8, high=10**7, traits=("processes",)
    )
    gradient_checkpointing: bool | None = setting(
        None,
        "Recompute activations to save memory.",
        "computing",
        traits=("processes",),
        in_script={"True": "gradient_checkpointing=True", "False": "gradient_checkpointing=False"},
    )
    compile: bool | None = setting(
        None,
        "Compile the layers with torch.compile (classify).",
        "computing",
        aliases=("torch_compile",),
        in_script={"False": "torch_compile=False, no torch.compile(model)"},
    )

    out: str | None = setting(
        None, "Folder for the run.", "run", "path", aliases=("output_dir",), traits=("basic", "own")
    )
    from_run: str | None = setting(
        None, "Start from the model of this finished run.", "run", "path", aliases=("from",), traits=("own",)
    )
    prove: str = setting(
        "auto",
        "Test the run on a small scale before spending time on it.",
        "run",
        label="proof",
        allowed=("auto", "always", "never"),
    )
    allow_changes: bool = setting(
        False,
        "As a last resort, allow remedies that change what the model learns, such as shorter texts.",
        "run",
        traits=("memory",),
    )
    max_attempts: int = setting(
        12,
        "Give up when this many attempts got no further than the ones before them, "
        f"or after {TOTAL_ATTEMPTS_FACTOR} times as many attempts in all.",
        "run",
        low=1,
        high=1000,
    )
    step_timeout: float | None = setting(
        None, "Maximum time for one step, in seconds; learned from the run unless given.", "run", low=1, high=604_800
    )
    save_seconds: float = setting(
        60.0,
        "Maximum work that a crash may lose, in seconds; sets how often checkpoints are saved.",
        "run",
        low=0,
        high=86_400,
    )
    nodes_wait: float = setting(
        900.0, "How long to wait for missing machines, in seconds.", "run", low=1, high=604_800, traits=("local", "own")
    )
    offline: bool = setting(
        False,
        "Do not contact the hub or the package registry.",
        "run",
        traits=("local",),
        in_script={"True": "export HF_HUB_OFFLINE=1"},
    )
    report_to: tuple[str, ...] = setting(
        (),
        "Experiment tracker that also receives the metrics. May be repeated.",
        "run",
        allowed=TRACKERS,
        traits=("local",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(TrainRequest):
    """What one attempt of our engine is to do: the request with every open value decided, and what only a plan decides.

    The defaults here are those of the engine. They serve tests and folders that were written by an earlier version; a
    plan decides every one of them.
    """

    task: str
    model: str  # folder of the model to start from
    prepared: str  # folder of the prepared shards
    run: str  # folder of the run
    epochs: int = 3
    batch_size: int = 16  # examples of one optimizer step, however they are split
    lr: float = 5e-5
    schedule: str = "linear"
    warmup_ratio: float = 0.06
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    device: str = "cpu"
    precision: str = "fp32"
    processes: int = 1  # torchrun decides how many train together (see engine.ranks)
    micro_tokens: int = DEFAULT_MICRO_TOKENS
    gradient_checkpointing: bool = False
    compile: bool = False

    options: Mapping[str, Any] = field(default_factory=dict)  # of the task, that users cannot set one by one
    pool_batches: int = setting(1, "Number of batches whose texts are sorted by length together.", "learning")
    packing: bool = setting(True, "Work on real tokens only, where the model's attention allows.", "computing")
    export: bool = setting(True, "Write the finished model at the end; a proof leaves it out.", "run")
    shard: bool = setting(
        False,
        "Each process keeps a part of the weights, for models that do not fit one.",
        "computing",
        traits=("processes",),
    )


def _kind_of(annotation: Any) -> Kind:
    """The kind that a type says: `int | None` is a whole number."""
    if get_origin(annotation) is tuple:
        return "texts"
    known: Mapping[Any, Kind] = {bool: "flag", int: "whole", float: "number", str: "text"}
    return next(known[one] for one in (*get_args(annotation), annotation) if one is not NoneType)


def _table(kind: type[TrainRequest]) -> Mapping[str, Setting]:
    """The entries of a class, by name."""
    entries = {one.name: (one.metadata["setting"], one.type) for one in dataclasses.fields(kind) if one.metadata}
    return {
        name: dataclasses.replace(entry, name=name, kind=_kind_of(annotation) if entry.kind == "text" else entry.kind)
        for name, (entry, annotation) in entries.items()
    }


SETTINGS = _table(TrainRequest)
OPEN_SETTINGS: Mapping[str, Setting] = {name: one for name, one in SETTINGS.items() if one.is_open}
BATCH_PARTS = ("per_device_train_batch_size", "gradient_accumulation_steps")  # in place of the batch size
DEFAULT_MAX_ATTEMPTS: int = SETTINGS["max_attempts"].default
DEFAULT_NODES_WAIT: float = SETTINGS["nodes_wait"].default

ENGINE_DEFAULTS: Mapping[str, Any] = {
    one.name: one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
    for one in dataclasses.fields(EngineSettings)
    if one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
}
_OF_ENGINE: Mapping[str, Setting] = {**SETTINGS, **_table(EngineSettings)}
# Another value of these is another run. The model is compared by its weights, and a preset is only a source of values.
LEARNING_SETTINGS = (
    *(name for name, one in _OF_ENGINE.items() if one.affects == "learning" and name not in ("model", "preset")),
    "options",
)
COMPUTING_SETTINGS = frozenset(name for name, one in _OF_ENGINE.items() if one.affects == "computing")
PROCESS_SETTINGS = frozenset(name for name, one in _OF_ENGINE.items() if "processes" in one.traits)

# What a remedy or a fallback may change in a user's own script, besides settings of `train`.
_SCRIPT_CHANGES: Mapping[str, Mapping[str, str]] = {
    "start_method": {"": "torch.multiprocessing.set_start_method('{value}')"},
    "loader_workers": {
        "halve": "dataloader_num_workers halved",
        "": "dataloader_num_workers={value}, or DataLoader(num_workers={value})",
    },
    "prefetch_batches": {"": "DataLoader(prefetch_factor={value})"},
    "micro_batch": {
        "halve": "per_device_train_batch_size halved, gradient_accumulation_steps doubled",
        "": "per_device_train_batch_size={value}, with more gradient_accumulation_steps",
    },
    "eval_micro_batch": {
        "halve": "per_device_eval_batch_size halved, eval_accumulation_steps=10",
        "": "per_device_eval_batch_size={value}, eval_accumulation_steps=10",
    },
    "attention": {"": "attn_implementation='{value}'"},
}
_IN_SCRIPTS = {**{name: one.in_script for name, one in SETTINGS.items() if one.in_script}, **_SCRIPT_CHANGES}
CHANGEABLE = frozenset(_IN_SCRIPTS)  # what a remedy may change in a script


def in_script(change: Mapping[str, object] | None) -> list[str]:
    """How changed settings and environment variables are written in a user's own script, each once."""
    return list(dict.fromkeys(_in_script(name, value) for name, value in (change or {}).items()))


def _in_script(name: str, value: object) -> str:
    if name.isupper():
        return f"export {name}={value}"
    wordings = _IN_SCRIPTS.get(name, {})
    return wordings.get(str(value), wordings.get("", "{setting}={value}")).format(setting=name, value=value)


def names_with(trait: Trait) -> frozenset[str]:
    """The settings with a trait."""
    return frozenset(name for name, one in SETTINGS.items() if trait in one.traits)


def named(name: str) -> Setting | None:
    """The setting of this name, also as an option or under an alias."""
    plain = name.lstrip("-").replace("-", "_")
    return SETTINGS.get(plain) or next((one for one in SETTINGS.values() if plain in one.aliases), None)


def nodes_of(request: TrainRequest) -> int:
    """How many machines train together."""
    return request.nodes or 1


def requested_batch_size(request: TrainRequest) -> int | None:
    """The examples of one optimizer step over all processes, as requested in either way; None if Holdfast chooses."""
    if request.per_device_train_batch_size is None:
        return request.batch_size
    in_all = (request.processes or 1) * nodes_of(request)
    return request.per_device_train_batch_size * in_all * (request.gradient_accumulation_steps or 1)


def with_preset(request: TrainRequest) -> TrainRequest:
    """Fill the settings that were not given from the requested preset."""
    defaults = dict(PRESETS.get(request.preset or "", {}))
    if request.lora is False:
        defaults = {name: value for name, value in defaults.items() if not name.startswith("lora")}
    if requested_batch_size(request):
        defaults.pop("batch_size", None)
    open_ones: Mapping[str, Any] = {name: value for name, value in defaults.items() if getattr(request, name) is None}
    return dataclasses.replace(request, **open_ones) if open_ones else request


def is_of_preset(request: TrainRequest, name: str) -> bool:
    """Whether a setting has the preset's value, which is dropped if the model does not allow it."""
    defaults = PRESETS.get(request.preset or "", {})
    return name in defaults and getattr(request, name) == defaults[name]
