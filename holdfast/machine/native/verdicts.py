"""Says what each order of imports leads to: one OpenMP copy or several, a crash or not; and the protobuf clash."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Literal

from holdfast.core.facts import NativeConflict
from holdfast.machine.native import dynamic_loader
from holdfast.machine.native.dynamic_loader import LibraryCopy, LibraryFinder, Process, Reply, simulate
from holdfast.machine.native.runtimes import OpenmpRequest, ProtobufExport, openmp_requests
from holdfast.machine.native.scan import Scan

Outcome = Literal["shared", "coexists", "tolerated", "crash", "not-found"]

WITH_HOMEBREW = "Homebrew's libomp is installed"
WITHOUT_HOMEBREW = "Homebrew's libomp is not installed"
_KMP = ("libomp", "libiomp")
_LOCK_WAITS = 'the newer protobuf waits forever on the older one\'s std::mutex: "[mutex.cc : 452] RAW: Lock blocking"'
_LOCK_FAILS = 'the older protobuf locks the newer one\'s absl::Mutex: "mutex lock failed: Invalid argument"'


def judge_openmp(scan: Scan, homebrew: bool | None) -> tuple[NativeConflict, ...]:
    """What every ordered pair of distributions that use OpenMP leads to, and any distribution that clashes alone.

    When it is not known whether Homebrew's libomp is there, both cases are played, and where they differ each says so.
    """
    if homebrew is not None or scan.os != "macos" or dynamic_loader.HOST_SYSTEM == "macos":
        return tuple(_pairs(scan, LibraryFinder(scan, homebrew)))
    with_it = {_order(pair): pair for pair in _pairs(scan, LibraryFinder(scan, True))}
    without = {_order(pair): pair for pair in _pairs(scan, LibraryFinder(scan, False))}
    conflicts = []
    for order in dict.fromkeys((*with_it, *without)):
        one, other = with_it.get(order), without.get(order)
        if one == other and one:
            conflicts.append(one)
            continue
        conflicts += [
            replace(pair, when=when) for pair, when in ((one, WITH_HOMEBREW), (other, WITHOUT_HOMEBREW)) if pair
        ]
    return tuple(conflicts)


def loaded_alone(scan: Scan, homebrew: bool | None) -> Mapping[str, Process]:
    """What each distribution that uses OpenMP loads when it is imported alone."""
    finder = LibraryFinder(scan, homebrew)
    return {owner: simulate(scan, finder, requests) for owner, requests in _by_owner(scan).items()}


def judge_protobuf(exports: Sequence[ProtobufExport]) -> tuple[NativeConflict, ...]:
    """The pairs whose two protobuf generations share one lock on macOS, with the symptom of each order."""
    conflicts = []
    for first, second in permutations(exports, 2):
        if first.generation == second.generation:
            continue
        old_first = first.generation == "old"
        conflicts.append(
            NativeConflict(
                runtime="protobuf",
                first=first.owner,
                second=second.owner,
                copies=2,
                outcome="hang" if old_first else "abort",
                because=_LOCK_WAITS if old_first else _LOCK_FAILS,
                files=(first.files[0], second.files[0]),
            )
        )
    return tuple(conflicts)


def _order(pair: NativeConflict) -> tuple[str, str]:
    return pair.first, pair.second


def _by_owner(scan: Scan) -> dict[str, list[OpenmpRequest]]:
    owners: dict[str, list[OpenmpRequest]] = {}
    for request in openmp_requests(scan):
        owners.setdefault(request.owner, []).append(request)
    return dict(sorted(owners.items()))


def _pairs(scan: Scan, finder: LibraryFinder) -> Iterator[NativeConflict]:
    owners = _by_owner(scan)
    for owner, requests in owners.items():
        process = simulate(scan, finder, requests)
        if len(process.copies) > 1:
            yield _judge(scan.os, owner, owner, process)
    for first, second in permutations(owners, 2):
        process = simulate(scan, finder, [*owners[first], *owners[second]])
        if _takes_part(process, first) and _takes_part(process, second):
            yield _judge(scan.os, first, second, process)


def _takes_part(process: Process, owner: str) -> bool:
    """False when all that the distribution asked for is spare and missing, such as numba's OpenMP layer."""
    return any(reply.copy or not reply.request.is_spare for reply in process.replies if reply.request.owner == owner)


def _judge(system: str, first: str, second: str, process: Process) -> NativeConflict:
    missing = [reply for reply in process.replies if reply.copy is None and not reply.request.is_spare]
    if missing:
        outcome, because = _missing(missing[0])
    elif len(process.copies) == 1:
        outcome, because = "shared", _why_shared(second, process)
    else:
        outcome, because = _several(system, process.copies, is_alone=first == second)
    return NativeConflict(
        runtime="openmp",
        first=first,
        second=second,
        copies=len(process.copies),
        outcome=outcome,
        because=because,
        files=tuple(copy.shown for copy in process.copies),
    )


def _missing(reply: Reply) -> tuple[Outcome, str]:
    request = reply.request
    where = ", ".join(request.search) if request.search else "no folder to look in"
    return "not-found", f"{request.owner} needs {request.reference}, which nothing provides (searched: {where})"


def _why_shared(second: str, process: Process) -> str:
    copy = process.copies[0]
    how = next((reply.how for reply in process.replies if reply.request.owner == second), "")
    return f"{copy.shown} also serves {second}: {how}"


def _several(system: str, copies: Sequence[LibraryCopy], is_alone: bool) -> tuple[Outcome, str]:
    kmp = [copy for copy in copies if copy.kind in _KMP]
    if len(kmp) < 2:
        kinds = sorted({copy.kind for copy in copies})
        who = " and ".join(kinds) if len(kinds) > 1 else f"copies of {kinds[0]}"
        return "coexists", f"{who} do not conflict; more threads than cores"
    if system == "macos":
        return _several_on_macos(kmp)
    if is_alone:
        return "tolerated", "it is shipped like this, and no failures are reported"
    names = ", ".join(copy.shown for copy in kmp)
    if system == "windows":
        return "crash", f"these see each other and stop the process with OMP: Error #15: {names}"
    return "crash", f"these are all KMP runtimes, the one mix known to deadlock or abort on Linux: {names}"


def _several_on_macos(kmp: Sequence[LibraryCopy]) -> tuple[Outcome, str]:
    merging = [copy for copy in kmp if copy.merges]
    older = [copy for copy in kmp if not copy.merges]
    if len(merging) >= 2:
        return "crash", (
            "both copies export __kmp_suspend_64 weakly and macOS merges the two, so threads of one copy run on the "
            "tables of the other (segmentation fault), unless OMP: Error #15 stops the process first"
        )
    if len(older) >= 2:
        return (
            "crash",
            "both copies are libomp 11 or older and register the same way: OMP: Error #15 may stop the process",
        )
    return "tolerated", (
        f"the copy in {older[0].owner} is libomp 11 or older, which shares no waiting code with the other; "
        "more threads than cores"
    )
