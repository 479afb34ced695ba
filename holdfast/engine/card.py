"""Writes the model card: what the model is, the data it saw, what it reached, and the plan it was trained by."""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from holdfast.core.artifacts import to_plain
from holdfast.core.runfolder import MANIFEST
from holdfast.engine.settings import Settings

_TAGS = {
    "classify": ("text-classification", "text classifier"),
    "causal": ("text-generation", "language model"),
    "two-tower": ("sentence-similarity", "retriever of two towers"),
}
_SHOWN = ("batch_size", "epochs", "max_steps", "lr", "schedule", "warmup_ratio", "weight_decay", "seed", "precision")


def write_card(folder: Path, settings: Settings, metrics: Mapping[str, Any]) -> None:
    """Leave README.md in the model's folder, in place of any that a library wrote."""
    manifest = json.loads((settings.prepared_path / MANIFEST).read_text(encoding="utf-8"))
    tag, kind = _TAGS[settings.task]
    base = Path(settings.model).name
    parts = [
        f"---\npipeline_tag: {tag}\nlibrary_name: transformers\ntags:\n- holdfast\n---\n",
        f"# {base}, fine-tuned: {kind}\n",
        f"The weights of step {metrics['step']:,} of {metrics['steps']:,}.\n",
        "## Data\n",
        *_data(manifest),
        "\n## Metrics\n",
        *_metrics(metrics),
        "\n## Plan\n",
        "| setting | value |\n|---|---|",
        *(f"| {name} | {value} |" for name in _SHOWN if (value := getattr(settings, name)) is not None),
        *(f"| {name} | {json.dumps(to_plain(value))} |" for name, value in settings.options.items()),
        "",
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _data(manifest: Mapping[str, Any]) -> list[str]:
    splits = manifest["splits"]
    lines = []
    if isinstance(splits, Mapping):
        lines += ["| split | rows | tokens |\n|---|---|---|"]
        lines += [f"| {name} | {facts.get('rows', '')} | {facts.get('tokens', '')} |" for name, facts in splits.items()]
    if labels := manifest.get("labels"):
        lines.append(f"\n{len(labels)} labels: {', '.join(map(str, labels[:30]))}{' ...' if len(labels) > 30 else ''}")
    if manifest.get("max_length"):
        lines.append(f"\nTexts have at most {manifest['max_length']:,} tokens.")
    return lines


def _metrics(metrics: Mapping[str, Any]) -> list[str]:
    splits = {name: found for name, found in metrics.items() if isinstance(found, Mapping)}
    if not splits:
        return ["None: there was nothing to evaluate on."]
    names = list(dict.fromkeys(name for found in splits.values() for name, value in found.items() if _is_number(value)))
    lines = [f"| metric | {' | '.join(splits)} |", f"|---|{'---|' * len(splits)}"]
    for name in names:
        values = [found.get(name) for found in splits.values()]
        lines.append(f"| {name} | {' | '.join('' if value is None else f'{value:.4f}' for value in values)} |")
    for split, found in splits.items():
        if classes := found.get("classes"):
            lines += [f"\nBy label, {split}:\n", "| label | precision | recall | F1 | texts |\n|---|---|---|---|---|"]
            lines += [_class_row(**row) for row in classes]
        for number, sample in enumerate(found.get("samples", ()), start=1):
            lines += [f"\n### Sample {number}, {split}", *_sample(**sample)]
    return lines


def _class_row(*, label: str, precision: float, recall: float, f1: float, support: int) -> str:
    return f"| {label} | {precision:.3f} | {recall:.3f} | {f1:.3f} | {support} |"


def _sample(*, prompt: str, answer: str, wanted: str) -> list[str]:
    """Indented, so that nothing a model says is read as markup."""
    parts = {"Prompt": prompt, "Answer": answer, "Wanted": wanted}
    return [f"\n{name}:\n\n{indent(text.strip() or '(nothing)', '    ')}" for name, text in parts.items()]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
