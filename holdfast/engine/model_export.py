"""Writes what a finished run leaves: metrics.json, misjudged.json, and model/ with holdfast.json and a model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent

from holdfast.core.artifacts import to_plain
from holdfast.core.prepared import Manifest
from holdfast.core.records import ModelInfo, write_record
from holdfast.core.runfolder import model_folder
from holdfast.core.scores import (
    SPLITS,
    LabelScores,
    ModelMetrics,
    SampleAnswer,
    Split,
    SplitMetrics,
    split_metrics,
    write_metrics,
)
from holdfast.core.settings import LEARNING_SETTINGS
from holdfast.data.shards import require_manifest
from holdfast.engine.attempt_settings import AttemptSettings
from holdfast.engine.ranks import Ranks
from holdfast.engine.steps import Steps
from holdfast.engine.tasks import Task

_TAGS = {
    "classify": ("text-classification", "text classifier"),
    "causal": ("text-generation", "language model"),
    "two-tower": ("sentence-similarity", "two-tower retriever"),
}
_SHOWN = (*(name for name in LEARNING_SETTINGS if name not in ("task", "options")), "precision")


def export_finished(
    task: Task, settings: AttemptSettings, ranks: Ranks, backend: Steps, *, kept_step: int, steps: int
) -> None:
    """Evaluate the model on all ranks and write it on the first."""
    reports = {split: task.report(split) for split in SPLITS}
    backend.unshard()
    if not ranks.is_first:
        return
    run = Path(settings.run)
    splits = {split: split_metrics(found) for split, found in reports.items() if found}
    metrics = ModelMetrics(step=kept_step, steps=steps, splits=splits)
    write_metrics(run, metrics)
    split = "test" if "test" in splits else "validation"
    write_record(run, task.mistakes(split))
    task.export(model_folder(run))
    write_model_info(model_folder(run), settings)
    write_card(model_folder(run), settings, metrics)


def write_model_info(folder: Path, settings: AttemptSettings) -> None:
    """Write `holdfast.json` into the model's folder."""
    manifest = require_manifest(settings.prepared_path)
    info = ModelInfo(
        task=settings.task,
        base_model=Path(settings.model).name,
        labels=manifest.labels,
        multi_label=manifest.multi_label,
        max_length=manifest.max_length,
        overlong=manifest.overlong,
        prefixes=manifest.prefixes,
        chat_template=manifest.chat_template,
        form=manifest.form,
    )
    write_record(folder, info)


def write_card(folder: Path, settings: AttemptSettings, metrics: ModelMetrics) -> None:
    """Write README.md, the model card, in place of any that a library wrote."""
    manifest = require_manifest(settings.prepared_path)
    tag, kind = _TAGS[settings.task]
    base = Path(settings.model).name
    parts = [
        f"---\npipeline_tag: {tag}\nlibrary_name: transformers\ntags:\n- holdfast\n---\n",
        f"# {base}, fine-tuned: {kind}\n",
        f"Weights from step {metrics.step:,} of {metrics.steps:,}.\n",
        "## Data\n",
        *_data(manifest),
        "\n## Metrics\n",
        *_metrics(metrics.splits),
        "\n## Training settings\n",
        "| setting | value |\n|---|---|",
        *(f"| {name} | {value} |" for name in _SHOWN if (value := getattr(settings, name)) not in (None, ())),
        *(f"| {name} | {json.dumps(to_plain(value))} |" for name, value in settings.options.items()),
        "",
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _data(manifest: Manifest) -> list[str]:
    lines = ["| split | rows | tokens |\n|---|---|---|"]
    lines += [f"| {name} | {size.rows} | {size.tokens} |" for name, size in manifest.splits.items()]
    if labels := manifest.labels:
        lines.append(f"\n{len(labels)} labels: {', '.join(map(str, labels[:30]))}{' ...' if len(labels) > 30 else ''}")
    if manifest.max_length:
        lines.append(f"\nTexts have at most {manifest.max_length:,} tokens.")
    return lines


def _metrics(splits: Mapping[Split, SplitMetrics]) -> list[str]:
    if not splits:
        return ["None: there was no data to evaluate on."]
    names = dict.fromkeys(name for found in splits.values() for name in found.scores)
    lines = [f"| metric | {' | '.join(splits)} |", f"|---|{'---|' * len(splits)}"]
    lines += [f"| {name} | {' | '.join(_score(name, found) for found in splits.values())} |" for name in names]
    lines.append("\nIn parentheses: 95% confidence intervals.")
    for split, found in splits.items():
        if found.classes:
            lines += [f"\nBy label, {split}:\n", "| label | precision | recall | F1 | texts |\n|---|---|---|---|---|"]
            lines += map(_class_row, found.classes)
        for number, sample in enumerate(found.samples, start=1):
            lines += [f"\n### Sample {number}, {split}", *_sample(sample)]
    return lines


def _score(name: str, found: SplitMetrics) -> str:
    interval = found.intervals.get(name)
    shown = f"{found.scores[name]:.4f}" if name in found.scores else ""
    return shown + (f" ({interval[0]:.4f} to {interval[1]:.4f})" if interval else "")


def _class_row(one: LabelScores) -> str:
    return f"| {one.label} | {one.precision:.3f} | {one.recall:.3f} | {one.f1:.3f} | {one.support} |"


def _sample(one: SampleAnswer) -> list[str]:
    """A sample as indented text, so that nothing in a model's answer is read as markup."""
    parts = {"Prompt": one.prompt, "Answer": one.answer, "Expected": one.wanted}
    return [f"\n{name}:\n\n{indent(text.strip() or '(nothing)', '    ')}" for name, text in parts.items()]
