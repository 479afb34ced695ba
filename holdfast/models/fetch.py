"""The child process that talks to the hub: `python -m holdfast.models.fetch NAME ANSWER_FILE [--ask]`.

It writes one JSON object: {"whole": bytes} during the download, then {"folder": ...} or {"error": kind, "text": ...}.
As a separate process it may hang, and can be watched and ended.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.disk_space import FULL
from holdfast.machine.hub import private_cache_folder

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_TIMEOUT_SECONDS = 10
_SMALL = (".json", ".txt", ".model", ".jinja")


def main(name: str, answer: Path, *, ask_only: bool) -> None:
    """Download a model into the hub's cache, or only check whether it is available."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        cache, info = private_cache_folder(), None
        if cache and (info := _public_info(name)):
            cache, token = None, False  # what the hub gives to anyone, all users of this machine share
        else:
            token = None  # the library's own choice
            info = HfApi().model_info(name, files_metadata=True, timeout=_TIMEOUT_SECONDS)
            if getattr(info, "gated", False):
                HfApi().auth_check(name)
        files = wanted_files({file.rfilename: file.size or 0 for file in info.siblings or ()})
        if ask_only:
            _tell(answer, folder="", whole=sum(files.values()))
            return
        _tell(answer, whole=sum(files.values()))
        folder = snapshot_download(
            name,
            revision=info.sha,
            allow_patterns=sorted(files),
            etag_timeout=_TIMEOUT_SECONDS,
            max_workers=2,
            cache_dir=cache,
            token=token,
        )
        _tell(answer, folder=folder)
    except Exception as error:
        _tell(answer, error=kind_of(error), text=" ".join(str(error).split())[:400])


def _public_info(name: str) -> "ModelInfo | None":
    """What the hub tells anyone about a model; None if it needs a token."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=_TIMEOUT_SECONDS, token=False)
    except Exception as error:
        if kind_of(error) in ("gated", "missing"):
            return None
        raise
    return None if getattr(info, "gated", False) or getattr(info, "private", False) else info


def wanted_files(files: dict[str, int]) -> dict[str, int]:
    """The files for training: the weights once, as safetensors if possible, and the small files about them."""
    top = {name: size for name, size in files.items() if "/" not in name}
    kept = {name: size for name, size in files.items() if name.endswith(_SMALL) and name.count("/") <= 1}
    for shape in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        if weights := {name: size for name, size in top.items() if Path(name).match(shape)}:
            return kept | weights
    return kept


def kind_of(error: BaseException) -> str:
    """The kind of an exception from the hub's library."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "GatedRepoError" in names:
        return "gated"
    if "RepositoryNotFoundError" in names or "HFValidationError" in names or "RevisionNotFoundError" in names:
        return "missing"
    if getattr(error, "errno", None) in FULL:
        return "disk"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "gated"
    if status == 404:
        return "missing"
    unreachable = ("NetworkError", "TimeoutException", "ConnectionError", "OfflineModeIsEnabled", "TransportError")
    if any(name in unreachable for name in names) or isinstance(error, OSError) or status is not None:
        return "unreachable"
    return "unknown"


def _tell(answer: Path, **found: Any) -> None:
    draft = answer.with_name(answer.name + ".draft")
    draft.write_text(json.dumps(found), encoding="utf-8")
    draft.replace(answer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), ask_only="--ask" in sys.argv[3:])
