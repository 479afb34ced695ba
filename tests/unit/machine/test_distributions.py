"""Installed distributions and the torch build, from whole and from broken folders."""

import importlib.metadata
from pathlib import Path

import pytest

from holdfast.core.facts import TorchBuild
from holdfast.machine.commands import Unanswerable
from holdfast.machine.libraries import import_folders, read_distributions, read_torch_build

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: x\n\nVersion: not this one\n"


def install(folder: Path, name: str, version: str, record: str = "") -> Path:
    info = folder / (record or f"{name.replace('-', '_')}-{version}.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(name=name, version=version))
    return info


def test_names_are_canonical_and_versions_come_from_the_metadata(tmp_path):
    install(tmp_path, "Sentence_Transformers", "5.1.0", "sentence_transformers-5.1.0.dist-info")
    install(tmp_path, "torch", "2.8.0+cpu")
    found = read_distributions([tmp_path])
    assert found.versions == {"sentence-transformers": "5.1.0", "torch": "2.8.0+cpu"}
    assert found.oddities == []


def test_a_record_without_metadata_is_named_by_its_folder(tmp_path):
    (tmp_path / "numpy-2.4.6.dist-info").mkdir()
    (tmp_path / "old_style-1.0-py3.11.egg-info").write_text("Name: old-style\nVersion: 1.0\n")
    assert read_distributions([tmp_path]).versions == {"numpy": "2.4.6", "old-style": "1.0"}


def test_broken_records_are_reported_and_stop_nothing(tmp_path):
    install(tmp_path, "torch", "2.8.0")
    install(tmp_path, "torch", "2.13.0")
    (tmp_path / "nothing.dist-info").mkdir()
    (tmp_path / "garbage-1.0.dist-info").mkdir()
    (tmp_path / "garbage-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00Name\xff: \n")
    found = read_distributions([tmp_path])
    assert found.versions["garbage"] == "1.0"
    nothing, torch = found.oddities
    assert nothing.startswith("nothing.dist-info: ")
    assert torch.startswith("torch ")
    assert torch.endswith(": 2.13.0, 2.8.0")


def test_uninstall_leftovers_matter_only_without_replacement(tmp_path):
    (tmp_path / "~umpy-2.0.dist-info").mkdir()
    assert len(read_distributions([tmp_path]).oddities) == 1
    install(tmp_path, "numpy", "2.4.6")
    found = read_distributions([tmp_path])
    assert (found.versions, found.oddities) == ({"numpy": "2.4.6"}, [])


def test_the_first_folder_on_the_path_wins(tmp_path):
    install(tmp_path / "user", "torch", "2.8.0")
    install(tmp_path / "site", "torch", "2.13.0")
    assert read_distributions([tmp_path / "user", tmp_path / "site"]).versions == {"torch": "2.8.0"}


def test_this_python_gives_the_same_answer_as_importlib():
    expected = {}
    for distribution in importlib.metadata.distributions(path=[str(folder) for folder in import_folders()]):
        expected.setdefault(
            distribution.metadata["Name"].lower().replace("_", "-").replace(".", "-"), distribution.version
        )
    assert read_distributions(import_folders()).versions == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "__version__ = '2.13.0+cpu'\ndebug = False\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
            TorchBuild(version="2.13.0+cpu"),
        ),
        (
            "__version__ = '2.8.0+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            TorchBuild(version="2.8.0+cu128", cuda="12.8"),
        ),
        ("__version__ = '2.1.0'\ncuda = '11.8'\nhip = None\n", TorchBuild(version="2.1.0", cuda="11.8")),
        (
            "__version__ = '2.7.0+rocm6.3'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.3.42131'\n",
            TorchBuild(version="2.7.0+rocm6.3", rocm="6.3.42131"),
        ),
    ],
)
def test_torch_build_is_read(tmp_path, text, expected):
    (tmp_path / "version.py").write_text(text)
    assert read_torch_build(tmp_path) == expected


def test_a_mac_build_with_metal_can_use_mps(tmp_path):
    (tmp_path / "version.py").write_text("__version__ = '2.13.0'\ncuda: Optional[str] = None\n")
    (tmp_path / "lib").mkdir()
    framework = b"/System/Library/Frameworks/MetalPerformanceShadersGraph.framework/Versions/A/"
    (tmp_path / "lib" / "libtorch_cpu.dylib").write_bytes(b"\xcf\xfa\xed\xfe" + b"\0" * 4000 + framework)
    assert read_torch_build(tmp_path).mps
    (tmp_path / "lib" / "libtorch_cpu.dylib").write_bytes(b"\xcf\xfa\xed\xfe" + b"\0" * 4000)
    assert not read_torch_build(tmp_path).mps


def test_a_torch_folder_without_its_version_is_unanswerable(tmp_path):
    with pytest.raises(Unanswerable, match=r"version\.py cannot be read"):
        read_torch_build(tmp_path)
    (tmp_path / "version.py").write_text("")
    with pytest.raises(Unanswerable, match="names no version"):
        read_torch_build(tmp_path)
