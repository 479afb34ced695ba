"""Writes what a finished run leaves.

Leaves: metrics.json, misjudged.json, model/ with its card.
"""

from collections.abc import Mapping
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import METRICS, MISJUDGED, model_folder
from holdfast.engine.about_model import write_about
from holdfast.engine.card import write_card
from holdfast.engine.ranks import Ranks
from holdfast.engine.settings import Settings
from holdfast.engine.tasks import Task


def write_finished(task: Task, settings: Settings, ranks: Ranks, steps: Mapping[str, int]) -> dict[str, object]:
    """Judge the model and write it, by the first rank of those that judged it; give the metrics, empty elsewhere."""
    reports = {split: task.report(split) for split in ("validation", "test")}
    if ranks.in_lockstep:
        from holdfast.engine.sharding import make_whole

        make_whole(task.model, keeps=ranks.is_first)
    if not ranks.is_first:
        return {}
    run = Path(settings.run)
    metrics = {**steps, **{split: found for split, found in reports.items() if found}}
    write_artifact(run, METRICS, metrics)
    split = "test" if reports["test"] else "validation"
    write_artifact(run, MISJUDGED, {"split": split, "examples": task.misjudged(split)})
    task.export(model_folder(run))
    write_about(model_folder(run), settings)
    write_card(model_folder(run), settings, metrics)
    return metrics
