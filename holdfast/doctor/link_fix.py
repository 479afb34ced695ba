"""Lets packages of a virtual environment use torch's OpenMP copy through links, and takes that back (macOS layouts).

dyld reuses a loaded library when a link leads to the same file, so a link in place of the second libomp leaves one.
The original is kept beside the link by a hard link or a rename and never written through: installers share files with
their caches. Planning touches nothing; applying follows the plan and can be killed and repeated at any point.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.text import plural
from holdfast.doctor.link_log import LOG_NAME, LinkEntry, digest, read_log, write_log
from holdfast.machine.libraries import canonical
from holdfast.machine.native.binary import Corrupt
from holdfast.machine.native.folders import environment_of, find_roots
from holdfast.machine.native.loaders import Copy, Process
from holdfast.machine.native.macho_symbols import exported_symbols, openmp_imports
from holdfast.machine.native.scan import Scan, scan_roots
from holdfast.machine.native.verdicts import crashing_orders, loaded_alone

_KEPT_SUFFIX = ".holdfast-original"
_DRAFT_SUFFIX = ".holdfast-draft"
_FIX_ELSEWHERE = "use the other remedies: holdfast explain openmp-duplicate"


@dataclass(frozen=True, slots=True)
class FixPlan:
    """What `--fix` would do in an environment."""

    environment: str
    actions: tuple[LinkEntry, ...]
    done: tuple[LinkEntry, ...]  # links that stand already
    left: tuple[str, ...]  # what no link can help, with the reason


@dataclass(frozen=True, slots=True)
class UndoStep:
    """What `--unfix` would do about one link on record."""

    entry: LinkEntry
    what: Literal["restore", "forget", "leave"]  # forget: ours no more; leave: cannot be undone
    because: str


@dataclass(frozen=True, slots=True)
class UnfixPlan:
    """What `--unfix` would do in an environment."""

    environment: str
    steps: tuple[UndoStep, ...]


def plan_fix(folder: Path) -> FixPlan:
    """Find every OpenMP copy that can safely become a link to torch's; change nothing."""
    environment = _environment(folder)
    scan = scan_roots(find_roots(environment))
    if scan.os != "macos":
        raise RequestError(
            "links to torch's OpenMP copy help macOS packages only",
            seen=f"packages for {scan.os or 'no system'} in {environment}",
            try_next=(_FIX_ELSEWHERE,),
        )
    alone = loaded_alone(scan, homebrew=False)
    serving = _torch_copy(alone)
    if serving is None:
        raise RequestError(
            f"no torch with an OpenMP copy of its own in {environment}",
            seen=", ".join(sorted(alone)) or "no package that uses OpenMP",
            try_next=(_FIX_ELSEWHERE,),
        )
    recorded = read_log(environment)
    done = tuple(entry for entry in recorded if _is_ours(environment, entry) and (environment / entry.link).exists())
    actions = [entry for entry in recorded if _is_half_done(environment, entry)]
    left = []
    links: dict[str, str] = {}
    for copy in _seconds(alone, serving):
        refusal = _refusal(environment, scan, copy, serving, alone) or _harm(scan, links, copy, serving)
        if refusal:
            left.append(f"{copy.owner}: {refusal}")
        else:
            links[copy.path] = serving.path
            actions.append(_entry(environment, copy, serving))
    left += _helpless(environment, recorded, alone, {entry.owner for entry in actions})
    return FixPlan(str(environment), tuple(actions), done, tuple(left))


def apply_fix(plan: FixPlan) -> tuple[str, ...]:
    """Make the planned links and say what was done; the record is written first."""
    environment = Path(plan.environment)
    said = []
    try:
        planned = {entry.link: entry for entry in (*read_log(environment), *plan.actions)}
        if plan.actions:
            write_log(environment, tuple(planned.values()))
        for entry in plan.actions:
            _link(environment, entry)
            said.append(f"{entry.link} is now a link to {entry.target}; the original is {entry.kept}")
    except OSError as error:
        raise _blocked(environment, error, "--fix or --unfix") from None
    return tuple(said)


def plan_unfix(folder: Path) -> UnfixPlan:
    """See what can be taken back; change nothing."""
    environment = _environment(folder)
    return UnfixPlan(str(environment), tuple(_undo_step(environment, entry) for entry in read_log(environment)))


def apply_unfix(plan: UnfixPlan) -> tuple[str, ...]:
    """Put the originals back and say what was done. A link that cannot be undone stays on record."""
    environment = Path(plan.environment)
    said = []
    try:
        for step in plan.steps:
            path, kept = environment / step.entry.link, environment / step.entry.kept
            if step.what == "restore":
                kept.replace(path)
            elif step.what == "forget":
                kept.unlink(missing_ok=True)
            for draft in (_draft(path), _draft(kept)):
                draft.unlink(missing_ok=True)
            said.append(f"{step.entry.link}: {step.because}")
        write_log(environment, tuple(step.entry for step in plan.steps if step.what == "leave"))
    except OSError as error:
        raise _blocked(environment, error, "--unfix") from None
    return tuple(said)


def render_fix(plan: FixPlan) -> str:
    """Write what `--fix` would do, for a person to agree to."""
    lines = [f"[ok] {entry.owner}: {entry.link} is a link to {entry.target} already" for entry in plan.done]
    for entry in plan.actions:
        lines.append(f"[!]  {entry.owner}: {entry.link} would become a link to {entry.target}")
        lines.append(f"     the original stays as {entry.kept}")
    lines += [f"[x]  {reason}" for reason in plan.left]
    if plan.actions:
        count = plural(len(plan.actions), "link")
        close = (
            f"{count} to make in {plan.environment}; on record in {LOG_NAME}. By dyld's rules one copy is then left; "
            "should an import fail afterwards, --unfix puts the originals back"
        )
    else:
        close = f"nothing to link in {plan.environment}"
    return "\n".join([*lines, "", close])


def render_unfix(plan: UnfixPlan) -> str:
    """Write what `--unfix` would do, for a person to agree to."""
    if not plan.steps:
        return f"no links of ours are on record in {plan.environment}"
    boxes = {"restore": "[!] ", "forget": "[ok]", "leave": "[x] "}
    lines = [f"{boxes[step.what]} {step.entry.owner}: {step.entry.link}: {step.because}" for step in plan.steps]
    count = sum(step.what == "restore" for step in plan.steps)
    return "\n".join([*lines, "", f"{plural(count, 'original')} to put back in {plan.environment}"])


def _environment(folder: Path) -> Path:
    environment = environment_of(folder) if folder.exists() else None
    if environment is None:
        raise RequestError(
            f"{folder} is not inside a virtual environment, and links are made nowhere else",
            seen="no pyvenv.cfg in it or above it",
            try_next=("python -m venv .venv", _FIX_ELSEWHERE),
        )
    return Path(os.path.realpath(environment))


def _torch_copy(alone: Mapping[str, Process]) -> Copy | None:
    for owner, process in alone.items():
        if owner.startswith("torch ") and len(process.copies) == 1:
            return process.copies[0]
    return None


def _seconds(alone: Mapping[str, Process], serving: Copy) -> tuple[Copy, ...]:
    """The KMP copies that packages load besides torch's."""
    copies = {
        copy.path: copy
        for process in alone.values()
        for copy in process.copies
        if copy.key != serving.key and copy.owner != serving.owner and copy.kind in ("libomp", "libiomp")
    }
    return tuple(copies.values())


def _refusal(environment: Path, scan: Scan, copy: Copy, serving: Copy, alone: Mapping[str, Process]) -> str:
    """Why a copy must not become a link; empty when it may."""
    path = Path(copy.path)
    if path.is_symlink():
        return f"{copy.shown} is a link already, and not one of ours"
    if not path.parent.resolve().is_relative_to(environment):
        return f"{copy.shown} lies outside the environment"
    try:
        needed: set[str] = set()
        for process in alone.values():
            for reply in process.replies:
                if reply.copy and reply.copy.path == copy.path:
                    needed |= openmp_imports(reply.request.path, scan.arch)
        lacking = sorted(needed - exported_symbols(serving.path, scan.arch))
    except (Corrupt, OSError) as error:
        return f"its symbols cannot be compared: {error}"
    return f"torch's copy lacks what it needs: {', '.join(lacking[:5])}" if lacking else ""


def _harm(scan: Scan, links: Mapping[str, str], copy: Copy, serving: Copy) -> str:
    """Why a link would make things worse: an old copy that lived with xgboost's may not when it becomes torch's."""
    for homebrew in (True, False):
        before = crashing_orders(scan, homebrew, {})
        after = crashing_orders(scan, homebrew, {**links, copy.path: serving.path})
        for first, second in sorted(after - before):
            return f"left as it is, because with a link {first} then {second} may crash, which it does not now"
    return ""


def _entry(environment: Path, copy: Copy, serving: Copy) -> LinkEntry:
    path = Path(copy.path)
    link = path.relative_to(environment).as_posix()
    target = os.path.relpath(serving.path, path.parent).replace(os.sep, "/")
    return LinkEntry(copy.owner, link, target, link + _KEPT_SUFFIX, digest(path))


def _helpless(
    environment: Path, recorded: tuple[LinkEntry, ...], alone: Mapping[str, Process], helped: set[str]
) -> Iterator[str]:
    for owner, process in alone.items():
        missing = {
            reply.request.reference for reply in process.replies if not reply.copy and not reply.request.is_spare
        }
        if missing and owner not in helped:
            asked = ", ".join(sorted(missing))
            yield f"{owner}: asks for {asked} outside the environment, which no link in it can answer"
    for entry in recorded:
        if _is_ours(environment, entry) and not (environment / entry.link).exists():
            yield f"{entry.owner}: {entry.link} leads nowhere, torch's copy is gone; --unfix puts the original back"


def _is_ours(environment: Path, entry: LinkEntry) -> bool:
    path = environment / entry.link
    return path.is_symlink() and str(path.readlink()) == entry.target


def _is_half_done(environment: Path, entry: LinkEntry) -> bool:
    """The original was moved aside and the link not yet made."""
    path, kept = environment / entry.link, environment / entry.kept
    return not os.path.lexists(path) and kept.is_file() and (path.parent / entry.target).is_file()


def _link(environment: Path, entry: LinkEntry) -> None:
    path, kept = environment / entry.link, environment / entry.kept
    if _is_ours(environment, entry):
        return
    if os.path.lexists(path):
        if path.is_symlink() or digest(path) != entry.sha256:
            raise RequestError(
                f"{path} changed after it was looked at", seen="another content", try_next=("run --fix once more",)
            )
        _keep(path, kept)
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    draft.symlink_to(entry.target)
    draft.replace(path)  # from the original to the link in one step


def _keep(path: Path, kept: Path) -> None:
    """Give the original a second name, or where the file system cannot, move it there."""
    if kept.exists() and kept.samefile(path):
        return
    draft = _draft(kept)
    draft.unlink(missing_ok=True)
    try:
        draft.hardlink_to(path)
    except OSError:
        path.replace(kept)
        return
    draft.replace(kept)


def _undo_step(environment: Path, entry: LinkEntry) -> UndoStep:
    path, kept = environment / entry.link, environment / entry.kept
    if not os.path.lexists(path):
        return _undo_gone(environment, entry)
    if _is_ours(environment, entry):
        if not kept.is_file():
            return UndoStep(entry, "leave", f"the original is gone; reinstall {entry.owner}")
        if digest(kept) != entry.sha256:
            return UndoStep(entry, "leave", f"the kept original was changed; reinstall {entry.owner}")
        return UndoStep(entry, "restore", "the original is put back")
    if path.is_symlink():
        return UndoStep(entry, "leave", f"is a link that we did not make; the original stays as {entry.kept}")
    if digest(path) == entry.sha256:
        return UndoStep(entry, "forget", "is the original; nothing to undo")
    return UndoStep(entry, "forget", f"{entry.owner.partition(' ')[0]} was reinstalled since; left alone")


def _undo_gone(environment: Path, entry: LinkEntry) -> UndoStep:
    name = entry.owner.partition(" ")[0]
    kept = environment / entry.kept
    installed = any(
        canonical(record.name.partition("-")[0]) == name
        for root in find_roots(environment)
        for record in root.glob("*.dist-info")
    )
    if installed and kept.is_file() and digest(kept) == entry.sha256:
        return UndoStep(entry, "restore", "the original is put back")
    if installed:
        return UndoStep(entry, "leave", f"the original is gone; reinstall {entry.owner}")
    return UndoStep(entry, "forget", f"{name} was uninstalled since; nothing to undo")


def _draft(path: Path) -> Path:
    return path.with_name(path.name + _DRAFT_SUFFIX)


def _blocked(environment: Path, error: OSError, again: str) -> MachineError:
    return MachineError(
        f"the environment {environment} could not be changed",
        seen=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "),
        try_next=(f"make it writable and run holdfast doctor {again} again; it goes on where it stopped",),
    )
