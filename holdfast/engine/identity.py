"""What a checkpoint belongs to: the settings that decide what is learned, the data and the model.

A run that goes on with other ones would finish, and nobody could say what it learned.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.artifacts import to_plain
from holdfast.core.errors import RequestError
from holdfast.core.runfolder import MANIFEST
from holdfast.engine.settings import Settings

_DECIDING = (
    *("task", "seed", "epochs", "max_steps", "batch_size", "lr", "weight_decay", "warmup_ratio", "schedule"),
    *("max_grad_norm", "pool_batches", "options"),
)
_EDGE_BYTES = 1 << 16


def identity_of(settings: Settings) -> dict[str, object]:
    """All that decides what is learned, in small values that can be compared."""
    found = {name: to_plain(getattr(settings, name)) for name in _DECIDING}
    # Through JSON and back, as a checkpoint's manifest keeps it.
    plain: dict[str, object] = json.loads(json.dumps(found))
    return plain | {
        "data": _data_fingerprint(settings.prepared_path),
        "model": _model_fingerprint(Path(settings.model)),
    }


def require_same(then: Mapping[str, object], now: Mapping[str, object], checkpoint: Path) -> None:
    """Refuse to go on with what another run learned; the difference is named."""
    differences = [
        f"{name}: {then.get(name)} then, {now.get(name)} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    if differences:
        raise RequestError(
            "the checkpoint belongs to a run with other settings, so going on would mix the two",
            seen=f"{'; '.join(differences)} (in {checkpoint})",
            try_next=("give the settings of before", "start a new run folder"),
        )


def _data_fingerprint(prepared: Path) -> str:
    text = (prepared / MANIFEST).read_bytes()
    return str(json.loads(text).get("fingerprint") or hashlib.sha256(text).hexdigest())[:16]


def _model_fingerprint(folder: Path) -> str:
    """Of the configuration and of the weights' sizes, names and edges: the same wherever the folder lies."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(_EDGE_BYTES))
            content.seek(max(0, size - _EDGE_BYTES))
            digest.update(content.read(_EDGE_BYTES))
    return digest.hexdigest()[:16]
