"""Prints what a folder's native libraries are and lead to: one line per thing, its box first, the next command last.

Short when all is well: harmless pairs are only counted when they are many.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.core.plan import Remedy
from holdfast.core.text import human_bytes, plural
from holdfast.doctor.native_findings import (
    VERDICTS,
    Pairing,
    case_text,
    copies_text,
    missing_text,
    native_findings,
    native_value,
    order_text,
    pair_remedies,
    pairings,
    remedies_for_missing,
)
from holdfast.machine.native.advice import is_linkable, protobuf_remedies
from holdfast.machine.native.binary import printable
from holdfast.machine.native.runtimes import Carried, ProtobufExport
from holdfast.machine.native.survey import NativeReport

__all__ = ("native_details", "native_findings", "native_lines", "native_value", "render_native")

Mark = Literal["ok", "!", "x"]

_SYSTEMS = {"macos": "macOS", "linux": "Linux", "windows": "Windows"}
_CALM_PAIRS_SHOWN = 6
_REMEDIES_SHOWN = 3
_KINDS = {"libiomp": "Intel's libiomp", "libgomp": "GNU libgomp", "vcomp": "Microsoft's vcomp"}
_GENERATIONS = {"old": "21 or older, std::mutex", "new": "22 or later, absl::Mutex"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report and what stands under it."""

    mark: Mark
    subject: str
    text: str
    below: tuple[str, ...] = ()


def render_native(report: NativeReport, *, verbose: bool = False, width: int | None = None) -> str:
    """Write the whole report: what is there, what it leads to, what to do, and the next command."""
    lines = native_lines(report, verbose=verbose)
    return "\n".join([*_head(report, width), *_boxed(lines, width), "", *_folded(_close(report), width, 0, 0)])


def native_details(report: NativeReport, width: int | None = None) -> list[str]:
    """Write what is there besides the findings: who carries and asks for what, BLAS, and every harmless pair."""
    return _boxed([line for line in native_lines(report, verbose=True) if not line.below], width)


def native_lines(report: NativeReport, *, verbose: bool = False) -> tuple[Line, ...]:
    """One line per thing; harmless pairs and files are counted unless they are few or `verbose` asks for them."""
    groups = pairings(report.conflicts)
    lines = (
        *_carried_lines(report),
        *_use_lines(report),
        *_blas_lines(report),
        *_pair_lines(report, groups, verbose),
        *_missing_lines(report),
        *_protobuf_lines(report, groups, verbose),
        *_note_lines(report, verbose),
    )
    if not report.uses and not report.carried and report.native_files:
        return Line("ok", "OpenMP", "no package here carries or asks for an OpenMP runtime"), *lines
    return lines


def _head(report: NativeReport, width: int | None) -> list[str]:
    system = f"{_SYSTEMS.get(report.os, report.os)} {report.arch}" if report.os else "no native files"
    brew = ""
    if report.os == "macos" and any("/libomp" in rpath for use in report.uses for rpath in use.rpaths):
        known = {True: "with", False: "without", None: "with or without (not known)"}
        brew = f", {known[report.homebrew]} Homebrew's libomp"
    return [
        *_folded(f"native libraries in {printable(report.folder)}", width, 0, 2),
        *_folded(
            f"{system}{brew}: {plural(report.native_files, 'native file')} ({human_bytes(report.native_bytes)}) of "
            f"{plural(len(report.distributions), 'distribution')}, read in {report.seconds:.1f} s",
            width,
            0,
            2,
        ),
        "",
    ]


def _carried_lines(report: NativeReport) -> Iterator[Line]:
    for copy in report.carried:
        if copy.link_to:
            yield Line("ok", "carries OpenMP", f"{copy.owner}: {copy.file} is a link to {copy.link_to}")
            continue
        details = [_kind(report.os, copy)]
        if copy.name and copy.name != copy.file.rsplit("/", 1)[-1]:
            details.append(f"calls itself {copy.name}")
        details += [f"built for {_SYSTEMS.get(report.os, report.os)} {copy.built_for}"] if copy.built_for else []
        details += [] if copy.used else ["loaded by nobody"]
        yield Line("ok", "carries OpenMP", f"{copy.owner}: {copy.file} ({', '.join(details)})")


def _kind(system: str, copy: Carried) -> str:
    if system == "macos" and copy.kind in ("libomp", "libiomp"):
        age = "12 or later" if copy.merges else "11 or older"
        return f"libomp {age}" if copy.kind == "libomp" else f"Intel's libiomp, as libomp {age}"
    return _KINDS.get(copy.kind, "LLVM libomp")


def _use_lines(report: NativeReport) -> Iterator[Line]:
    owners = dict.fromkeys(use.owner for use in report.uses)
    for owner in owners:
        uses = [use for use in report.uses if use.owner == owner]
        text = ", ".join(f"{use.reference} ({plural(use.files, 'file')})" for use in uses)
        yield Line("ok", "uses OpenMP", f"{owner}: {text}")


def _blas_lines(report: NativeReport) -> Iterator[Line]:
    for owner in dict.fromkeys(blas.owner for blas in report.blas):
        yield Line("ok", "BLAS", f"{owner}: {'; '.join(blas.library for blas in report.blas if blas.owner == owner)}")


def _pair_lines(report: NativeReport, groups: Sequence[Pairing], verbose: bool) -> Iterator[Line]:
    openmp = [group for group in groups if group.main.runtime == "openmp" and group.main.outcome != "not-found"]
    calm = [group for group in openmp if group.main.outcome != "crash"]
    told: set[str] = set()
    for group in openmp:
        pair = group.main
        if pair.outcome == "crash":
            certain = group.either_order and not pair.when
            fixes = pair_remedies(report, pair)
            why = () if pair.because in told else (f"why   {pair.because}",)
            told.add(pair.because)
            yield Line("x" if certain else "!", "OpenMP", _pair_text(group), (*why, *_advice(fixes, verbose)))
        elif verbose or len(calm) <= _CALM_PAIRS_SHOWN:
            yield Line("ok", "OpenMP", f"{_pair_text(group)}: {pair.because}")
    if calm and not verbose and len(calm) > _CALM_PAIRS_SHOWN:
        counted = {
            what: sum(group.main.outcome == what for group in calm) for what in ("shared", "coexists", "tolerated")
        }
        words = {
            "shared": "share one copy",
            "coexists": "load two that coexist",
            "tolerated": "load two, which is tolerated",
        }
        text = ", ".join(f"{count} {words[what]}" for what, count in counted.items() if count)
        yield Line("ok", "OpenMP", f"{plural(len(calm), 'harmless pair')}: {text} (-v lists them)")


def _pair_text(group: Pairing) -> str:
    pair = group.main
    return f"{order_text(group)}: {copies_text(pair)}, {VERDICTS[pair.outcome]}{case_text(pair)}"


def _missing_lines(report: NativeReport) -> Iterator[Line]:
    for missing in report.missing:
        if missing.is_spare:
            text = f"{missing_text(missing)}; it uses another threading layer"
            yield Line("ok", "OpenMP", text)
        else:
            fixes = remedies_for_missing(report, missing)
            yield Line(
                "!" if missing.when or missing.helped_by else "x", "OpenMP", missing_text(missing), _advice(fixes)
            )


def _protobuf_lines(report: NativeReport, groups: Sequence[Pairing], verbose: bool) -> Iterator[Line]:
    for export in report.protobuf:
        yield Line("ok", "protobuf", _export_text(export))
    clashes = [group for group in groups if group.main.runtime == "protobuf"]
    for group in clashes:
        orders = (f"{pair.first} first {VERDICTS[pair.outcome]}: {pair.because}" for pair in group.pairs)
        text = f"{group.main.first} and {group.main.second} clash: {'; '.join(orders)}"
        yield Line("x", "protobuf", text, _advice(protobuf_remedies(group.main), verbose))
    if len(report.protobuf) > 1 and not clashes:
        yield Line("ok", "protobuf", "all of one generation, no clash")


def _export_text(export: ProtobufExport) -> str:
    return f"{export.owner}: exports its lock from {export.files[0]} (protobuf {_GENERATIONS[export.generation]})"


def _note_lines(report: NativeReport, verbose: bool) -> Iterator[Line]:
    for hidden in report.hidden:
        yield Line("ok", "note", f"{hidden.why}, so it is loaded even if your script never names it")
    shown = report.unreadable if verbose else report.unreadable[:3]
    for file in shown:
        yield Line("!", "not read", f"{file.path}: {file.reason}")
    if len(shown) < len(report.unreadable):
        yield Line("!", "not read", f"{len(report.unreadable) - len(shown)} more (-v lists them)")
    for system, count in report.left_out.items():
        yield Line("!", "left out", f"{plural(count, 'file')} for {system}, unlike the others")


def _advice(remedies: Sequence[Remedy], verbose: bool = False) -> tuple[str, ...]:
    lines = []
    for remedy in remedies if verbose else remedies[:_REMEDIES_SHOWN]:
        details = [part for part in (remedy.command, f"cost: {remedy.cost}" if remedy.cost else "") if part]
        lines.append(f"try   {remedy.title}" + (f"   ({'; '.join(details)})" if details else ""))
    if not verbose and len(remedies) > _REMEDIES_SHOWN:
        lines.append(f"      and {len(remedies) - _REMEDIES_SHOWN} more with -v")
    return tuple(lines)


def _close(report: NativeReport) -> str:
    findings = native_findings(report)
    crash = sum(finding.slug == "openmp-duplicate" for finding in findings)
    clash = sum(finding.slug == "abseil-mutex" for finding in findings)
    absent = sum(finding.slug == "native-lib-missing" for finding in findings)
    counts = [plural(crash, "OpenMP pair") + " that may crash"] if crash else []
    counts += [plural(clash, "protobuf clash").replace("clashs", "clashes")] if clash else []
    counts += [plural(absent, "runtime") + " not found"] if absent else []
    if not counts:
        return "no clash among these native libraries."
    advice = ""
    if crash:
        advice = " Do not set KMP_DUPLICATE_LIB_OK: it silences the abort and leaves the crash."
    linkable = any(pair.outcome == "crash" and is_linkable(pair, report.carried) for pair in report.conflicts)
    if linkable and report.environment and report.os == "macos" and not clash:
        following = f"holdfast doctor --env {printable(report.environment)} --fix"
    else:
        following = f"holdfast explain {findings[0].slug}"
    return f"{', '.join(counts)}.{advice} Next: {following}"


def _boxed(lines: Sequence[Line], width: int | None) -> list[str]:
    subject = max((len(line.subject) for line in lines), default=0)
    out = []
    for line in lines:
        box = f"[{line.mark}]"
        out += _folded(f"{box:<4} {line.subject:<{subject}}  {line.text}", width, 0, 5 + subject + 2)
        for text in line.below:
            out += _folded(text, width, 5 + subject + 2, 5 + subject + 8)
    return out


def _folded(text: str, width: int | None, first: int, rest: int) -> list[str]:
    text = printable(text)
    if width is None:
        return [" " * first + text]
    return textwrap.wrap(
        text,
        max(width, 60),
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
