"""Packs a run for a bug report: what explains the failure, without private data.

Packed: requests, plans, machine facts, events, logs, stacks, evidence, diagnoses. Not packed: weights, checkpoints,
prepared data, and anything else that is not known to be needed. Removed from the rest: tokens, passwords, user names,
home folders, host names, addresses. The packed text is checked a second time before the file gets its name.
"""

import contextlib
import getpass
import io
import itertools
import json
import os
import platform
import socket
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from holdfast import __version__
from holdfast.core.artifacts import to_json
from holdfast.core.disk_space import cannot_put
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.redact import Redactor, is_secret_name
from holdfast.core.runfolder import (
    DATASET,
    DOCTOR,
    EVENTS,
    FORECAST,
    LEASES,
    MACHINE,
    METRICS,
    MISJUDGED,
    NODES,
    PLAN,
    PROOF,
    REPORT,
    REQUEST,
    RESULT,
    RESUME_CHECK,
    SUPERVISOR,
    SUPERVISOR_LOG,
)
from holdfast.core.text import human_bytes, plural
from holdfast.runs.run_path import require_run

_ATTEMPTS = "attempts"
_MOST_LOG_BYTES = 2 << 20  # of one file; longer ones keep their beginning and their end
_OF_RUN = {
    *(REQUEST, PLAN, PROOF, FORECAST, RESUME_CHECK, MACHINE, DOCTOR, METRICS),
    *(RESULT, SUPERVISOR, SUPERVISOR_LOG, EVENTS),
}
_OF_ATTEMPT = {".json", ".jsonl", ".log", ".txt", ".ips"}
_WHY_LEFT_OUT = {
    "checkpoints": "weights",
    "model": "weights",
    "prepared": "data",
    "proof": "weights and data",
    DATASET: "facts about your data",
    MISJUDGED: "examples of your data",
    REPORT: "quotes your data",
}
# Variables that change how a run behaves; not even the names of the others are packed.
_TELLING = (
    *("OMP_", "KMP_", "MKL_", "GOMP_", "OPENBLAS_", "VECLIB_", "NUMEXPR_", "TOKENIZERS_", "TORCH", "PYTORCH_", "CUDA_"),
    *(
        "NCCL_",
        "GLOO_",
        "HF_HUB_",
        "HF_DATASETS_",
        "TRANSFORMERS_",
        "ACCELERATE_",
        "WANDB_MODE",
        "PYTHON",
        "LD_",
        "DYLD_",
    ),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_", "MALLOC_", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_ALL"),
)
# Keys of events and results under which parts of the user's data may be.
_DATA_KEYS = {"samples", "examples", "texts", "predictions", "answers", "rows", "mistakes", "generated"} | {
    *("labels", "label_names", "bad_rows", "questions", "passages", "prompts"),
}
_DROPPED_KEYS = {"host", "hostname", "boot_id", "user"}
_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "safetensors",
    "numpy",
    "lightning",
    "trl",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was packed, what was removed from it, and what was omitted."""

    file: Path
    packed_bytes: int
    files: tuple[str, ...]
    removed: Mapping[str, int]  # how often something of each kind was removed
    left_out: Mapping[str, str]  # each with the reason


def pack_run(run: Path, target: Path | None = None, variables: Mapping[str, str] | None = None) -> Bundle:
    """Write a zip of a run that may be shown to others."""
    require_run(run)
    target = target or _free_name(f"{run.resolve().name}-bundle")
    if target.exists():
        raise RequestError(f"{target} already exists", try_next=("--to FILE, with a new name", f"rm {target}"))
    variables = os.environ if variables is None else variables
    redactor = make_redactor(run, variables)
    nodes = _nodes(run)
    texts = {redactor(_numbered(name, nodes)): redactor(_told(run / name)) for name in _wanted(run)}
    texts.setdefault(MACHINE, redactor(to_json(_about_machine())))
    return _packed(target, texts, redactor, variables, dict(_left_out(run)))


def pack_selftest(folder: Path, answers: object, target: Path | None = None) -> Bundle:
    """Write a zip of a self-test: its answers, its logs and the evidence of its runs."""
    target = target or _free_name("holdfast-selftest")
    redactor = make_redactor(folder, os.environ)
    texts = {"selftest.json": redactor(to_json(answers)), MACHINE: redactor(to_json(_about_machine()))}
    if (folder / DOCTOR).is_file():
        texts[DOCTOR] = redactor(_told(folder / DOCTOR))
    for log in sorted([*folder.glob("tools/*.log"), *folder.glob("steps/*/*.log")]):
        texts[str(log.relative_to(folder))] = redactor(_told(log))
    for run in sorted(path for path in folder.glob("runs/*") if path.is_dir()):
        texts |= {str(Path("runs", run.name, name)): redactor(_told(run / name)) for name in _wanted(run)}
    return _packed(target, texts, redactor, os.environ, {})


def _packed(
    target: Path, texts: dict[str, str], redactor: Redactor, variables: Mapping[str, str], left_out: dict[str, str]
) -> Bundle:
    """Check the texts again, and write them with a list of what was removed."""
    _look_again(texts, variables)
    listing = {"files": sorted(texts), "removed": dict(redactor.removed), "left_out": left_out}
    _write(target, {**texts, "CONTENTS.json": to_json(listing)})
    return Bundle(
        file=target,
        packed_bytes=target.stat().st_size,
        files=tuple(sorted(texts)),
        removed=dict(sorted(redactor.removed.items())),
        left_out=left_out,
    )


def render_bundle(bundle: Bundle) -> str:
    """Say what is in the file and what is not."""
    removed = ", ".join(f"{count} x {kind}" for kind, count in bundle.removed.items() if count)
    lines = [
        f"[ok] {bundle.file}: {plural(len(bundle.files), 'file')}, {human_bytes(bundle.packed_bytes)}",
        f"  removed    {removed or 'nothing had to be'}",
    ]
    lines += [f"  left out   {name}: {why}" for name, why in bundle.left_out.items()]
    return "\n".join([*lines, f"Check it before you send it: unzip -p {bundle.file} | less"])


def make_redactor(run: Path, variables: Mapping[str, str]) -> Redactor:
    """A redactor that knows this machine, this user, and those the run names."""
    host = socket.gethostname()
    told = _object(run / SUPERVISOR)
    users = {getpass.getuser(), Path.home().name, variables.get("USER", ""), variables.get("SUDO_USER", "")}
    hosts = {host, host.partition(".")[0], str(told.get("host") or ""), variables.get("HOSTNAME", ""), *_nodes(run)}
    return Redactor(variables, users=users, hosts=hosts, homes=[str(Path.home())])


def _free_name(name: str) -> Path:
    """The default name of a bundle. An earlier bundle is kept: it may have been sent."""
    numbers = itertools.chain(("",), (f"-{number}" for number in itertools.count(2)))
    return next(path for number in numbers if not (path := Path(f"{name}{number}.zip")).exists())


def _nodes(run: Path) -> list[str]:
    """The names of the machines that took part."""
    return sorted(folder.name for folder in (run / NODES).glob("*"))


def _numbered(name: str, nodes: list[str]) -> str:
    """A file's path with a number in place of the machine's name, so that the parts of two stay apart."""
    parts = Path(name).parts
    if len(parts) > 3 and parts[2] == NODES and parts[3] in nodes:
        parts = (*parts[:3], f"node-{nodes.index(parts[3]) + 1}", *parts[4:])
    return str(Path(*parts))


def _wanted(run: Path) -> Iterator[str]:
    """The files that are packed, by their path in the run. Links are not followed: they may lead anywhere."""
    for file in sorted(run.iterdir()):
        if file.name in _OF_RUN and _is_plain(file):
            yield file.name
    for file in sorted((run / _ATTEMPTS).rglob("*")):
        is_inside = not any(parent.is_symlink() for parent in (file, *file.parents) if parent != run)
        if file.suffix in _OF_ATTEMPT and _is_plain(file) and is_inside and not file.name.startswith("."):
            yield str(file.relative_to(run))


def _left_out(run: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(run.iterdir()):
        if file.name not in _OF_RUN and file.name not in (_ATTEMPTS, LEASES) and not file.name.startswith("."):
            yield file.name, _WHY_LEFT_OUT.get(file.name, "not needed to explain a failure")


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def _told(file: Path) -> str:
    """A file's text, without anything recognizable as data or as a user's environment."""
    raw = file.read_bytes() if file.stat().st_size <= _MOST_LOG_BYTES else _ends_of(file)
    text = raw.decode("utf-8", "replace").replace("\0", "")
    if file.suffix == ".json":
        try:
            return to_json(_without_data(json.loads(text)))
        except ValueError:
            return text
    if file.suffix == ".jsonl":
        return "\n".join(_line_without_data(line) for line in text.splitlines())
    return text


def _ends_of(file: Path) -> bytes:
    half = _MOST_LOG_BYTES // 2
    with file.open("rb") as stream:
        start = stream.read(half)
        stream.seek(-half, os.SEEK_END)
        end = stream.read()
    dropped = file.stat().st_size - 2 * half
    return start + f"\n[{human_bytes(dropped)} left out by holdfast bundle]\n".encode() + end


def _line_without_data(line: str) -> str:
    try:
        return json.dumps(_without_data(json.loads(line)), ensure_ascii=False)
    except ValueError:
        return line


def _without_data(value: object) -> object:
    if isinstance(value, dict):
        return {key: _value_without_data(str(key), item) for key, item in value.items() if key not in _DROPPED_KEYS}
    return [_without_data(item) for item in value] if isinstance(value, list) else value


def _value_without_data(key: str, item: object) -> object:
    if key in _DATA_KEYS and not isinstance(item, (int, float, bool)):
        return "<data removed>"
    if key == "environment" and isinstance(item, dict):
        kept = {name: value for name, value in item.items() if name.startswith(_TELLING)}
        return {name: "<secret removed>" if is_secret_name(name) else value for name, value in kept.items()}
    return _without_data(item)


def _about_machine() -> dict[str, object]:
    """What a bug report needs to know about the machine, for a run without machine facts."""
    versions = {name: _version(name) for name in _LIBRARIES}
    return {
        "holdfast": __version__,
        "system": platform.platform(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "distributions": {name: version for name, version in versions.items() if version},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _look_again(texts: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Look for every secret this machine knows by value. If one is found, nothing is written."""
    secrets = {value for name, value in variables.items() if is_secret_name(name) and len(value) >= 6}
    for name, text in texts.items():
        if any(secret in text for secret in secrets):
            raise HoldfastError("a secret was not removed, so nothing was packed", found=name)


def _write(target: Path, texts: Mapping[str, str]) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in texts.items():
            packed.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
    draft = target.with_name(f".{target.name}.draft")
    try:
        draft.write_bytes(whole.getvalue())
        draft.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise cannot_put("bundle", target, error, "--to") from error


def _object(file: Path) -> dict[str, object]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
