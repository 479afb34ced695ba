"""What `doctor` says about native libraries: what is wrong among them and how to fix it, and the list that `-v` prints.

Two import orders of the same two packages are one finding if they lead to the same outcome. The wording is careful: a
pair of OpenMP copies "may crash", since no import order fails in every run.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.facts import NativeConflict, release
from holdfast.core.plan import Remedy
from holdfast.core.text import plural
from holdfast.doctor.checkup import Finding
from holdfast.machine.native.binary import printable
from holdfast.machine.native.native_report import Missing, NativeReport
from holdfast.machine.native.runtimes import Carried

_VERDICTS = {
    "shared": "shared",
    "coexists": "coexist",
    "tolerated": "tolerated",
    "crash": "may crash",
    "hang": "may hang",
    "abort": "may abort",
    "not-found": "does not load",
}
_PROTOBUF_FIXED_IN = {
    "pyarrow": "22.0.0",
    "sentencepiece": "0.2.2",
    "array-record": "0.8.6",
    "tink": "1.16.1",
    "ydf": "0.16.1",
}
_ASKS_HOMEBREW = ("xgboost", "lightgbm")
_IMPORT_NAMES = {"faiss-cpu": "faiss", "scikit-learn": "sklearn", "xgboost-cpu": "xgboost"}
_OWN_PROCESS = "only if your code allows it; the only fix without a drawback"
_SYSTEMS = {"macos": "macOS", "linux": "Linux", "windows": "Windows"}
_KINDS = {"libiomp": "Intel's libiomp", "libgomp": "GNU libgomp", "vcomp": "Microsoft's vcomp"}
_GENERATIONS = {"old": "21 or older, std::mutex", "new": "22 or later, absl::Mutex"}

_Line = tuple[str, str]  # subject and text


@dataclass(frozen=True, slots=True)
class _Pairing:
    """Two distributions, with all import orders and cases that have the same outcome."""

    pairs: tuple[NativeConflict, ...]
    either_order: bool

    @property
    def main(self) -> NativeConflict:
        """One of them, as the example for all."""
        return self.pairs[0]


def native_findings(report: NativeReport) -> tuple[Finding, ...]:
    """The problems in the folder as findings, each with its fixes."""
    findings = []
    for group in _pairings(report.conflicts):
        pair = group.main
        if pair.outcome == "crash":
            findings.append(
                Finding(
                    slug="openmp-duplicate",
                    severity="warning",
                    title="two OpenMP runtimes would be loaded into one process",
                    seen=f"{_order_text(group)}: {_copies_text(pair)} of OpenMP loaded, may crash{_case_text(pair)}",
                    why=pair.because,
                    remedies=_openmp_remedies(report.os, pair, report.conflicts),
                )
            )
        elif pair.runtime == "protobuf":
            findings.append(
                Finding(
                    slug="abseil-mutex",
                    severity="warning",
                    title="two generations of protobuf would share one lock",
                    seen="; ".join(
                        f"{one.first} then {one.second} {_VERDICTS[one.outcome]}: {one.because}" for one in group.pairs
                    ),
                    remedies=_protobuf_remedies(pair),
                )
            )
    for missing in report.missing:
        if not missing.is_spare:
            findings.append(
                Finding(
                    slug="native-lib-missing",
                    severity="note" if missing.when else "warning",
                    title="a library that a package needs is missing",
                    seen=_missing_text(missing),
                    remedies=_remedies_for_missing(report, missing),
                )
            )
    return tuple(findings)


def _pairings(conflicts: Sequence[NativeConflict]) -> tuple[_Pairing, ...]:
    """Group the conflicts of two distributions that have the same outcome."""
    groups: dict[tuple[object, ...], list[NativeConflict]] = {}
    for pair in conflicts:
        # Both orders of a protobuf clash belong together: the order only decides the symptom.
        what = "clash" if pair.runtime == "protobuf" else pair.outcome
        key = (pair.runtime, frozenset((pair.first, pair.second)), what, pair.copies, pair.when)
        groups.setdefault(key, []).append(pair)
    return tuple(_Pairing(tuple(group), either_order=len(group) > 1) for group in groups.values())


def _order_text(group: _Pairing) -> str:
    """Which package is imported first, as text."""
    pair = group.main
    if pair.first == pair.second:
        return f"{pair.first} alone"
    return f"{pair.first} and {pair.second}, either order" if group.either_order else f"{pair.first} then {pair.second}"


def _copies_text(pair: NativeConflict) -> str:
    """How many copies are loaded, as text."""
    return "1 copy" if pair.copies == 1 else f"{pair.copies} copies"


def _case_text(one: NativeConflict | Missing) -> str:
    """The condition as text, if there is one."""
    return f" (if {one.when})" if one.when else ""


def _missing_text(missing: Missing) -> str:
    """Which runtime a distribution does not find, as text."""
    where = f"; it searches {', '.join(missing.looks_in)}" if missing.looks_in else ""
    alone = f"unless {' or '.join(missing.helped_by)} is imported first" if missing.helped_by else "on its own"
    return f"{missing.owner} does not find {missing.reference} {alone}{where}{_case_text(missing)}"


def _remedies_for_missing(report: NativeReport, missing: Missing) -> tuple[Remedy, ...]:
    clashing = [
        other
        for pair in report.conflicts
        if pair.outcome == "crash" and missing.owner in (pair.first, pair.second)
        for other in (pair.first, pair.second)
        if other != missing.owner
    ]
    if report.os == "macos" and not missing.when:  # Homebrew's copy is missing; name the clashes that it would bring
        clashing += [copy.owner for copy in report.carried if copy.merges and copy.used]
    return _missing_remedies(report.os, missing.owner, missing.helped_by, tuple(dict.fromkeys(clashing)))


def native_details(report: NativeReport, width: int | None = None) -> list[str]:
    """Native libraries line by line, wrapped to the width if there is one."""
    lines = [
        *_carried(report),
        *_uses(report),
        *_blas(report),
        *_calm_pairs(report),
        *_protobuf(report),
        *_notes(report),
    ]
    if not report.uses and not report.carried and report.native_files:
        lines.insert(0, ("OpenMP", "no package contains or needs an OpenMP runtime"))
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
            details.append(f"named {copy.name}")
        details += [f"built for {_SYSTEMS.get(report.os, report.os)} {copy.built_for}"] if copy.built_for else []
        details += [] if copy.used else ["never loaded"]
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
            yield "uses OpenMP", f"{_missing_text(missing)}; it uses another threading layer"


def _blas(report: NativeReport) -> Iterator[_Line]:
    for owner in dict.fromkeys(blas.owner for blas in report.blas):
        yield "BLAS", f"{owner}: {'; '.join(blas.library for blas in report.blas if blas.owner == owner)}"


def _calm_pairs(report: NativeReport) -> Iterator[_Line]:
    for group in _pairings(report.conflicts):
        pair = group.main
        if pair.runtime == "openmp" and pair.outcome in ("shared", "coexists", "tolerated"):
            what = f"{_copies_text(pair)}, {_VERDICTS[pair.outcome]}{_case_text(pair)}"
            yield "OpenMP", f"{_order_text(group)}: {what}: {pair.because}"


def _protobuf(report: NativeReport) -> Iterator[_Line]:
    for export in report.protobuf:
        generation = f"protobuf {_GENERATIONS[export.generation]}"
        yield "protobuf", f"{export.owner}: exports its lock from {export.files[0]} ({generation})"
    if len(report.protobuf) > 1 and len({export.generation for export in report.protobuf}) == 1:
        yield "protobuf", "all of the same generation, no clash"


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


def _openmp_remedies(system: str, pair: NativeConflict, all_pairs: Sequence[NativeConflict]) -> tuple[Remedy, ...]:
    """Remedies for a pair that may crash, the least costly first.

    Setting KMP_DUPLICATE_LIB_OK is never among them: it hides the abort and leaves the crash.
    """
    first, second = pair.first, pair.second
    names = {first.partition(" ")[0], second.partition(" ")[0]}
    apart = Remedy(f"use {_other(names)} in a separate process (spawn)", cost=_OWN_PROCESS)
    if system == "windows" and "faiss-cpu" in names:
        return (
            Remedy("install a faiss-cpu that uses Microsoft's runtime", command='pip install -U "faiss-cpu>=1.12"'),
            apart,
        )
    if system != "macos":
        return (apart, Remedy("remove one of the two runtimes", cost="its package must work with the other"))
    remedies = []
    if any(_is_other_order(pair, other) and other.outcome == "shared" for other in all_pairs):
        remedies.append(
            Remedy(
                f"import {_module(second)} before {_module(first)}, in every script and worker",
                cost="a single import in the other order loads the second copy again",
            )
        )
    remedies.append(apart)
    older = _older_torch(pair, names)
    if older:
        remedies.append(older)
    remedies.append(
        Remedy(
            "install all of them from conda-forge, where they share one libomp",
            cost="pip wheels installed later bring their own copies again",
        )
    )
    remedies.append(
        Remedy(
            "run on one OpenMP thread",
            change={"threads": 1, "OMP_NUM_THREADS": "1"},
            command="export OMP_NUM_THREADS=1",
            cost="slower on the CPU, same on a GPU; OMP: Error #15 may still occur",
        )
    )
    return tuple(remedies)


def _protobuf_remedies(pair: NativeConflict) -> tuple[Remedy, ...]:
    """Remedies for the protobuf clash. The Python package `protobuf` is not involved."""
    names = (_name(pair.first), _name(pair.second))
    upgrades = [f'"{name}>={_PROTOBUF_FIXED_IN[name]}"' for name in names if name in _PROTOBUF_FIXED_IN]
    remedies = []
    if upgrades:
        remedies.append(
            Remedy("install a version that keeps its protobuf private", command=f"pip install -U {' '.join(upgrades)}")
        )
    if set(names) == {"tensorflow", "pyarrow"}:
        remedies.append(
            Remedy("install the older generation of both", command='pip install "tensorflow<2.20" "pyarrow<22"')
        )
    if "tensorflow" in names:
        remedies += [
            Remedy("stop transformers 4 from loading TensorFlow", command="export USE_TF=0"),
            Remedy(
                "remove TensorFlow from an environment that trains with PyTorch", command="pip uninstall tensorflow"
            ),
        ]
    remedies.append(
        Remedy(
            f"use {names[0]} and {names[1]} in separate processes",
            cost="the import order only decides: hang or abort",
        )
    )
    return tuple(remedies)


def _missing_remedies(
    system: str, owner: str, helped_by: Sequence[str], clashes_with: Sequence[str]
) -> tuple[Remedy, ...]:
    """Remedies for a package that needs an OpenMP runtime and does not carry one."""
    remedies = [
        Remedy(f"import {_module(helper)} first, in every script and worker", cost=f"{_name(owner)} then uses its copy")
        for helper in helped_by
    ]
    if system == "macos":
        also = f"with {', '.join(clashes_with)}, two copies are then loaded and may crash" if clashes_with else ""
        remedies.append(Remedy("install Homebrew's libomp", command="brew install libomp", cost=also))
    else:
        remedies.append(Remedy(f"install the OpenMP runtime that {owner} needs"))
    return tuple(remedies)


def _older_torch(pair: NativeConflict, names: set[str]) -> Remedy | None:
    torch = next((side for side in (pair.first, pair.second) if _name(side) == "torch"), None)
    if torch is None or not names.intersection(_ASKS_HOMEBREW):
        return None
    if release(torch.partition(" ")[2]) < (2, 11):
        return None
    return Remedy(
        f"install a torch whose copy also serves for Homebrew's, and import it before {_other(names)}",
        command='pip install "torch>=2.4,<2.11,!=2.8.0"',
        cost="an older torch; 2.8.0 is excluded because it computes wrong results on MPS",
    )


def _is_other_order(pair: NativeConflict, other: NativeConflict) -> bool:
    same_case = other.when in ("", pair.when)
    return (other.runtime, other.first, other.second) == (pair.runtime, pair.second, pair.first) and same_case


def _other(names: set[str]) -> str:
    """The package to move, never torch."""
    return sorted(names - {"torch"} or names)[0]


def _name(owner: str) -> str:
    return owner.partition(" ")[0]


def _module(owner: str) -> str:
    """The import name, which often differs from the distribution's."""
    return _IMPORT_NAMES.get(_name(owner), _name(owner).replace("-", "_"))
