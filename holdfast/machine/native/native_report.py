"""Reports on a folder of installed packages: its native runtimes, and what happens if they are loaded together.

It reads any site-packages folder, environment or folder of unpacked wheels, for any system. Nothing is imported or run.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import RequestError
from holdfast.core.facts import MachineFacts, NativeConflict
from holdfast.machine.native import dynamic_loader
from holdfast.machine.native.binary import Unreadable
from holdfast.machine.native.runtimes import (
    Blas,
    Carried,
    OpenmpUse,
    ProtobufExport,
    blas_libraries,
    carried_runtimes,
    openmp_uses,
    protobuf_exports,
)
from holdfast.machine.native.scan import Scan, scan_roots
from holdfast.machine.native.site_packages import find_roots
from holdfast.machine.native.verdicts import (
    WITH_HOMEBREW,
    WITHOUT_HOMEBREW,
    judge_openmp,
    judge_protobuf,
    loaded_alone,
)


@dataclass(frozen=True, slots=True)
class HiddenImport:
    """A package that imports another one whenever it is installed."""

    importer: str
    imported: str
    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """An OpenMP runtime that a distribution needs and that is missing if it is imported alone."""

    owner: str
    reference: str
    looks_in: tuple[str, ...]
    is_spare: bool  # the package works without it
    helped_by: tuple[str, ...] = ()  # these provide it if imported first
    when: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeReport:
    """The native libraries of a folder, and what follows from them."""

    roots: tuple[str, ...]
    os: str
    arch: str
    native_files: int
    homebrew: bool | None  # None: unknown
    distributions: Mapping[str, str]
    carried: tuple[Carried, ...]
    uses: tuple[OpenmpUse, ...]
    blas: tuple[Blas, ...]
    protobuf: tuple[ProtobufExport, ...]
    conflicts: tuple[NativeConflict, ...]
    missing: tuple[Missing, ...]
    hidden: tuple[HiddenImport, ...]
    unreadable: tuple[Unreadable, ...]
    left_out: Mapping[str, int]

    @property
    def openmp_runtimes(self) -> tuple[str, ...]:
        """One entry per OpenMP copy that installed packages carry, for `MachineFacts`."""
        return tuple(f"{copy.owner}: {copy.file}" for copy in self.carried if not copy.link_to)


def survey_folder(folder: Path, homebrew: bool | None = None) -> NativeReport:
    """Read a folder and simulate its loader; `homebrew`: whether Homebrew's libomp exists, None to check on a Mac."""
    report = survey_roots(find_roots(folder), homebrew)
    if not report.distributions and not report.native_files and not report.unreadable:
        raise RequestError(
            f"{folder} contains no installed packages",
            found="no *.dist-info folders and no native libraries",
            try_next=("holdfast doctor --env .venv", "holdfast doctor --env path/to/site-packages"),
        )
    return report


def survey_roots(roots: Sequence[Path], homebrew: bool | None = None) -> NativeReport:
    """Read folders that act as site-packages, such as those on this Python's path."""
    on_mac = dynamic_loader.HOST_SYSTEM == "macos"
    scan = scan_roots(roots, prefer="x86_64" if on_mac and platform.machine() == "x86_64" else "arm64")
    if homebrew is None and on_mac:
        homebrew = dynamic_loader.has_homebrew_libomp(scan.arch)
    protobuf = protobuf_exports(scan)
    conflicts = judge_openmp(scan, homebrew) if scan.os in dynamic_loader.SYSTEMS else ()
    alone = loaded_alone(scan, homebrew) if scan.os in dynamic_loader.SYSTEMS else {}
    loaded = {copy.path for process in alone.values() for copy in process.copies}
    return NativeReport(
        roots=scan.roots,
        os=scan.os,
        arch=scan.arch,
        native_files=len(scan.files),
        homebrew=homebrew,
        distributions=scan.distributions,
        carried=carried_runtimes(scan, loaded),
        uses=openmp_uses(scan),
        blas=blas_libraries(scan),
        protobuf=protobuf,
        conflicts=conflicts + judge_protobuf(protobuf),
        missing=_missing(scan, homebrew, conflicts),
        hidden=_hidden_imports(scan.distributions),
        unreadable=scan.unreadable,
        left_out=scan.left_out,
    )


def _missing(scan: Scan, homebrew: bool | None, conflicts: Sequence[NativeConflict]) -> tuple[Missing, ...]:
    if scan.os not in dynamic_loader.SYSTEMS:
        return ()
    cases = [(homebrew, "")]
    if homebrew is None and scan.os == "macos":
        cases = [(True, WITH_HOMEBREW), (False, WITHOUT_HOMEBREW)]
    found: dict[Missing, list[str]] = {}
    for present, when in cases:
        for owner, process in loaded_alone(scan, present).items():
            for reply in process.replies:
                if reply.copy is None:
                    request = reply.request
                    helpers = tuple(
                        pair.first
                        for pair in conflicts
                        if pair.second == owner and pair.outcome == "shared" and pair.when in ("", when)
                    )
                    missing = Missing(owner, request.reference, request.search, request.is_spare, helpers)
                    found.setdefault(missing, []).append(when)
    return tuple(
        Missing(
            one.owner,
            one.reference,
            one.looks_in,
            one.is_spare,
            one.helped_by,
            whens[0] if len(whens) < len(cases) else "",
        )
        for one, whens in found.items()
    )


# Packages that import others on their own, so that a library is loaded although no script imports it.
_HIDDEN = (
    HiddenImport("pandas", "pyarrow", "pandas imports pyarrow when it is installed"),
    HiddenImport("lightgbm", "scikit-learn", "lightgbm imports scikit-learn when it is installed"),
    HiddenImport("xgboost", "scikit-learn", "xgboost imports scikit-learn when it is installed"),
    HiddenImport("xgboost-cpu", "scikit-learn", "xgboost imports scikit-learn when it is installed"),
    HiddenImport("transformers", "tensorflow", "transformers 4 may import tensorflow when it is installed"),
)


def _hidden_imports(distributions: Mapping[str, str]) -> tuple[HiddenImport, ...]:
    """The installed packages that are imported although the user's script does not import them."""
    installed = MachineFacts(distributions=distributions)
    return tuple(
        hidden
        for hidden in _HIDDEN
        if hidden.importer in distributions
        and hidden.imported in distributions
        and (hidden.importer != "transformers" or installed.has_below("transformers", "5"))
    )
