"""Finds the installed packages in a folder: an environment, a site-packages folder, or unpacked wheels."""

from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from holdfast.core.errors import RequestError

_INSIDE_ENVIRONMENT = (
    "lib/python*/site-packages",
    "lib64/python*/site-packages",
    "Lib/site-packages",
    "lib/python3/dist-packages",
)
_EXAMPLES = ("holdfast doctor --env .venv", "holdfast doctor --env path/to/site-packages")


def find_roots(folder: Path) -> tuple[Path, ...]:
    """The folders that act as site-packages, or raises RequestError for any other folder."""
    try:
        _check(folder)
        inside = _unlinked(found for pattern in _INSIDE_ENVIRONMENT for found in sorted(folder.glob(pattern)))
        if inside:
            return inside
        if (folder / "pyvenv.cfg").is_file():
            raise RequestError(
                f"the virtual environment {folder} has no site-packages folder",
                found="pyvenv.cfg, but none of " + ", ".join(_INSIDE_ENVIRONMENT),
                try_next=(f"python -m venv {quote(str(folder))}", *_EXAMPLES[1:]),
            )
        if _is_root(folder):
            return (folder,)
        unpacked = tuple(sorted(child for child in folder.iterdir() if child.is_dir() and _is_root(child)))
        return unpacked or (folder,)
    except OSError as error:
        raise RequestError(f"{folder} cannot be read", found=error.strerror or str(error), try_next=_EXAMPLES) from None


def prefix_of(root: Path) -> Path:
    """The environment that a site-packages folder belongs to, whose lib folder may hold shared copies (conda)."""
    if root.name == "site-packages" and len(root.parents) > 2:
        return root.parents[2] if root.parent.name.startswith("python") else root.parents[1]
    return root


def _check(folder: Path) -> None:
    if not folder.exists():
        there = next((parent for parent in folder.absolute().parents if parent.exists()), None)
        raise RequestError(f"there is no folder {folder}", found=f"{there} exists" if there else "", try_next=_EXAMPLES)
    if not folder.is_dir():
        if folder.suffix == ".whl":
            unpack = f"python -m zipfile -e {quote(str(folder))} unpacked/ && holdfast doctor --env unpacked/"
            raise RequestError(f"{folder} is a packed wheel", found="a file", try_next=(unpack,))
        raise RequestError(f"{folder} is a file, not a folder", found="a file", try_next=_EXAMPLES)
    names = [child.name for child in folder.iterdir()]
    if not names:
        raise RequestError(f"{folder} is empty", found="no files at all", try_next=_EXAMPLES)
    if all(name.endswith(".whl") for name in names):
        unpack = f'for w in {quote(str(folder))}/*.whl; do python -m zipfile -e "$w" unpacked/; done'
        raise RequestError(
            f"{folder} contains only packed wheels",
            found=", ".join(sorted(names)[:3]),
            try_next=(unpack, "holdfast doctor --env unpacked/"),
        )


def _is_root(folder: Path) -> bool:
    return any(child.name.endswith((".dist-info", ".egg-info")) for child in folder.iterdir())


def _unlinked(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Each folder once, since lib64 is often a link to lib."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.is_dir():
            seen.setdefault(folder.resolve(), folder)
    return tuple(seen.values())
