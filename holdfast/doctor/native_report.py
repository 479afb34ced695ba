"""Lists a folder's native libraries as `doctor -v` prints them; what is wrong with them is among the findings.

One line per thing: who carries and who asks for an OpenMP runtime, which BLAS, which protobuf, every harmless pair.
"""

import textwrap
from collections.abc import Iterator

from holdfast.core.text import plural
from holdfast.doctor.native_findings import VERDICTS, case_text, copies_text, missing_text, order_text, pairings
from holdfast.machine.native.binary import printable
from holdfast.machine.native.runtimes import Carried
from holdfast.machine.native.survey import NativeReport

_SYSTEMS = {"macos": "macOS", "linux": "Linux", "windows": "Windows"}
_KINDS = {"libiomp": "Intel's libiomp", "libgomp": "GNU libgomp", "vcomp": "Microsoft's vcomp"}
_GENERATIONS = {"old": "21 or older, std::mutex", "new": "22 or later, absl::Mutex"}

_Line = tuple[str, str]  # subject and text


def native_details(report: NativeReport, width: int | None = None) -> list[str]:
    """Write what is there, folded to the width when there is one."""
    lines = [
        *_carried(report),
        *_uses(report),
        *_blas(report),
        *_calm_pairs(report),
        *_protobuf(report),
        *_notes(report),
    ]
    if not report.uses and not report.carried and report.native_files:
        lines.insert(0, ("OpenMP", "no package here carries or asks for an OpenMP runtime"))
    subject_width = max((len(subject) for subject, _ in lines), default=0)
    indent = len("[ok] ") + subject_width + 2
    return [
        row
        for subject, text in lines
        for row in _folded(f"[ok] {subject:<{subject_width}}  {printable(text)}", width, indent)
    ]


def _carried(report: NativeReport) -> Iterator[_Line]:
    for copy in report.carried:
        if copy.link_to:
            yield "carries OpenMP", f"{copy.owner}: {copy.file} is a link to {copy.link_to}"
            continue
        details = [_kind(report.os, copy)]
        if copy.name and copy.name != copy.file.rsplit("/", 1)[-1]:
            details.append(f"calls itself {copy.name}")
        details += [f"built for {_SYSTEMS.get(report.os, report.os)} {copy.built_for}"] if copy.built_for else []
        details += [] if copy.used else ["loaded by nobody"]
        yield "carries OpenMP", f"{copy.owner}: {copy.file} ({', '.join(details)})"


def _kind(system: str, copy: Carried) -> str:
    if system == "macos" and copy.kind in ("libomp", "libiomp"):
        age = "12 or later" if copy.merges else "11 or older"
        return f"libomp {age}" if copy.kind == "libomp" else f"Intel's libiomp, as libomp {age}"
    return _KINDS.get(copy.kind, "LLVM libomp")


def _uses(report: NativeReport) -> Iterator[_Line]:
    for owner in dict.fromkeys(use.owner for use in report.uses):
        uses = [use for use in report.uses if use.owner == owner]
        yield "uses OpenMP", f"{owner}: " + ", ".join(f"{use.reference} ({plural(use.files, 'file')})" for use in uses)
    for missing in report.missing:
        if missing.is_spare:
            yield "uses OpenMP", f"{missing_text(missing)}; it uses another threading layer"


def _blas(report: NativeReport) -> Iterator[_Line]:
    for owner in dict.fromkeys(blas.owner for blas in report.blas):
        yield "BLAS", f"{owner}: {'; '.join(blas.library for blas in report.blas if blas.owner == owner)}"


def _calm_pairs(report: NativeReport) -> Iterator[_Line]:
    for group in pairings(report.conflicts):
        pair = group.main
        if pair.runtime == "openmp" and pair.outcome in ("shared", "coexists", "tolerated"):
            what = f"{copies_text(pair)}, {VERDICTS[pair.outcome]}{case_text(pair)}"
            yield "OpenMP", f"{order_text(group)}: {what}: {pair.because}"


def _protobuf(report: NativeReport) -> Iterator[_Line]:
    for export in report.protobuf:
        generation = f"protobuf {_GENERATIONS[export.generation]}"
        yield "protobuf", f"{export.owner}: exports its lock from {export.files[0]} ({generation})"
    if len(report.protobuf) > 1 and len({export.generation for export in report.protobuf}) == 1:
        yield "protobuf", "all of one generation, no clash"


def _notes(report: NativeReport) -> Iterator[_Line]:
    for hidden in report.hidden:
        yield "note", f"{hidden.why}, so it is loaded even if your script never names it"
    for system, count in report.left_out.items():
        yield "left out", f"{plural(count, 'file')} for {system}, unlike the others"


def _folded(text: str, width: int | None, indent: int) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(
        text, max(width, 60), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
