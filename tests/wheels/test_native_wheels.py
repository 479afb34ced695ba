"""Reads real wheels of four systems and compares with what is known of them, and with lief.

Fetches about 170 MB from the package registry: `pytest -m wheels`. HOLDFAST_WHEELS names a folder to keep them in.
"""

import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.machine.native.binary import NativeFile
from holdfast.machine.native.native_report import NativeReport, survey_folder
from holdfast.machine.native.reader import read_native
from holdfast.machine.native.runtimes import openmp_requests
from holdfast.machine.native.scan import scan_roots

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(900)]

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text())
PLATFORMS = {
    "macos-arm64": ("macosx_14_0_arm64", "macosx_12_0_arm64", "macosx_11_0_arm64"),
    "macos-x86_64": ("macosx_14_0_x86_64", "macosx_10_15_x86_64", "macosx_10_14_x86_64"),
    "linux-x86_64": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64"),
    "windows-x86_64": ("win_amd64",),
}
OPEN_AND_LOOK = """
import ctypes, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}, sep="\\n")
"""
CASES = [(system, wheel) for system, wheels in EXPECTED.items() for wheel in wheels]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory) -> Path:
    kept = os.environ.get("HOLDFAST_WHEELS")
    return Path(kept) if kept else tmp_path_factory.mktemp("wheels")


def unpack(shelf: Path, system: str, wheel: str, into: Path) -> Path:
    """Fetch a wheel unless it is there, and unpack it."""
    folder = shelf / system / wheel
    if not list(folder.glob("*.whl")):
        platforms = [part for tag in PLATFORMS[system] for part in ("--platform", tag)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.11",
        ]
        subprocess.run([*command, *platforms, "-d", str(folder), wheel], check=True)
    (found,) = folder.glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        archive.extractall(into)
    return into


@pytest.mark.parametrize(("system", "wheel"), CASES)
def test_wheel_provides_and_requires_known_libraries(shelf, tmp_path, system, wheel):
    expected = EXPECTED[system][wheel]
    report = survey_folder(unpack(shelf, system, wheel, tmp_path), homebrew=False)
    assert f"{report.os}-{report.arch}" == system
    assert carried(report) == expected["carries"]
    assert [[use.reference, use.files, list(use.rpaths)] for use in report.uses] == expected["refs"]
    found = [[one.generation, [file.rsplit("/", 1)[-1] for file in one.files]] for one in report.protobuf]
    assert found == ([expected["protobuf"]] if expected.get("protobuf") else [])
    assert report.unreadable == ()


@pytest.mark.parametrize(("system", "wheel"), CASES)
def test_libraries_and_rpaths_agree_with_lief(shelf, tmp_path, system, wheel):
    lief = pytest.importorskip("lief")
    compared = 0
    for path in sorted(unpack(shelf, system, wheel, tmp_path).rglob("*")):
        ours = read_native(str(path)) if path.is_file() and path.suffix in (".so", ".dylib", ".dll", ".pyd") else None
        if not isinstance(ours, NativeFile):
            continue
        theirs = lief.parse(str(path))
        if ours.format == "mach-o":
            libraries = [one.name for one in theirs.libraries]
            own = [one.name for one in theirs.commands if str(one.command).endswith("ID_DYLIB")]
            rpaths = [one.path for one in theirs.commands if str(one.command).endswith("RPATH")]
            assert [name for name in libraries if name not in own or name in ours.needed] == list(ours.needed), path
            assert rpaths == list(ours.rpaths), path
        else:
            assert sorted(theirs.libraries) == sorted(set(ours.needed) - set(ours.optional)), path
        if ours.format == "elf":
            entries = [one for one in theirs.dynamic_entries if hasattr(one, "paths")]
            assert [path for one in entries for path in one.paths] == list(ours.rpaths), path
        compared += 1
    assert compared


def test_torchless_pairs_of_real_wheels_are_judged_as_known(shelf, tmp_path):
    for wheel in ("faiss-cpu==1.12.0", "scikit-learn==1.7.2", "xgboost==3.0.5", "lightgbm==4.6.0"):
        unpack(shelf, "macos-arm64", wheel, tmp_path)
    report = survey_folder(tmp_path, homebrew=True)
    found = {(pair.first.split()[0], pair.second.split()[0]): (pair.copies, pair.outcome) for pair in report.conflicts}
    assert found["faiss-cpu", "xgboost"] == found["xgboost", "faiss-cpu"] == (2, "crash")
    assert found["scikit-learn", "xgboost"] == found["faiss-cpu", "scikit-learn"] == (2, "tolerated")
    assert found["xgboost", "lightgbm"] == found["lightgbm", "xgboost"] == (1, "shared")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="needs this system's own loader")
def test_linux_loader_loads_the_predicted_copies(shelf, tmp_path):
    for wheel in EXPECTED["linux-x86_64"]:
        unpack(shelf, "linux-x86_64", wheel, tmp_path)
    asking: dict[str, list[str]] = {}
    for request in openmp_requests(scan_roots([tmp_path])):
        asking.setdefault(request.owner, []).append(request.path)
    report = survey_folder(tmp_path)
    assert len(report.conflicts) == 12
    for pair in report.conflicts:
        command = [sys.executable, "-c", OPEN_AND_LOOK, *asking[pair.first], *asking[pair.second]]
        mapped = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        inside = f"{tmp_path}{os.sep}"
        seen = {path.removeprefix(inside) if path.startswith(inside) else "the system's libgomp" for path in mapped}
        assert seen == set(pair.files), pair


def carried(report: NativeReport) -> list[list[object]]:
    if report.os == "macos":
        return [[copy.file, copy.name, copy.merges, copy.built_for] for copy in report.carried]
    return [[copy.file, copy.name if report.os == "linux" else None] for copy in report.carried]
