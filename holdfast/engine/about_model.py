"""What a finished model takes and gives, kept in its folder, so that the folder alone is enough to use it."""

import json
from pathlib import Path

from holdfast.core.artifacts import write_artifact
from holdfast.core.runfolder import ABOUT_MODEL, MANIFEST
from holdfast.engine.settings import Settings

_KEPT = ("labels", "multi_label", "max_length", "overlong", "prefixes", "chat_template", "form")


def write_about(folder: Path, settings: Settings) -> None:
    """Leave `holdfast.json` in the model's folder."""
    manifest = json.loads((settings.prepared_path / MANIFEST).read_text(encoding="utf-8"))
    kept = {name: manifest[name] for name in _KEPT if name in manifest}
    write_artifact(folder, ABOUT_MODEL, {"task": settings.task, "base_model": Path(settings.model).name, **kept})
