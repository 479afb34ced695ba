"""From a folder to facts: who owns which native file, what is left out, what is told of each package."""

from pathlib import Path

import mac_packages as mac
import pytest
from build_binaries import LIBOMP_12, fat, install, macho, pe
from import_orders import orders

from holdfast.core.errors import RequestError
from holdfast.machine.native.native_report import survey_folder
from holdfast.machine.native.runtimes import openmp_kind

pytestmark = pytest.mark.usefixtures("on_linux")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("@rpath/libomp.dylib", "libomp"),
        ("libomp140.x86_64-342e80.dll", "libomp"),
        ("libomp-7dc934.dll", "libomp"),
        ("libomp.so.5", "libomp"),
        ("libiomp5md.dll", "libiomp"),
        ("libiompstubs5md.dll", None),
        ("libomptarget.so", None),
        ("libgomp-e985bcbb.so.1.0.0", "libgomp"),
        ("VCOMP140.DLL", "vcomp"),
        ("vcomp140-55aba23c.dll", "vcomp"),
        ("libcomp.so", None),
    ],
)
def test_runtimes_are_known_by_their_many_names(name, kind):
    assert openmp_kind(name) == kind


def test_a_file_without_a_record_belongs_to_its_top_folder(tmp_path):
    mac.torch(tmp_path)
    install(
        tmp_path, "faiss-cpu", "1.12.0", {"faiss/_core.so": macho(needed=["@loader_path/libomp.dylib"])}, record=False
    )
    assert [one.owner for one in survey_folder(tmp_path).uses] == ["faiss", "torch 2.8.0"]


def test_a_recorded_file_beside_site_packages_is_found(tmp_path):
    site = tmp_path / "lib/python3.11/site-packages"
    mac.torch(site)
    (tmp_path / "lib/libiomp5.dylib").write_bytes(macho(name="@rpath/libiomp5.dylib", symbols=LIBOMP_12))
    install(site, "intel-openmp", "2023.2.0", {})
    (site / "intel_openmp-2023.2.0.dist-info/RECORD").write_text("../../libiomp5.dylib,sha256=x,1\n")
    report = survey_folder(tmp_path)
    assert [one.owner for one in report.carried if one.kind == "libiomp"] == ["intel-openmp 2023.2.0"]


def test_fat_files_follow_the_architecture_of_the_others(tmp_path):
    for index in range(3):
        install(tmp_path, f"thin{index}", "1", {f"thin{index}/a.so": macho(arch="x86_64")})
    both = fat(macho(arch="x86_64", name="intel"), macho(arch="arm64", name="apple"))
    install(tmp_path, "both", "1", {"both/a.dylib": both})
    report = survey_folder(tmp_path)
    assert (report.arch, report.native_files, report.left_out) == ("x86_64", 4, {})


def test_files_of_another_system_are_left_out_and_counted(tmp_path):
    mac.torch(tmp_path)
    install(tmp_path, "stray", "1", {"stray/a.dll": pe(needed=["VCOMP140.DLL"])})
    report = survey_folder(tmp_path)
    assert report.left_out == {"windows x86_64": 1}
    assert all(one.owner != "stray 1" for one in report.uses)


def test_hostile_references_and_records_are_survived(tmp_path):
    names = ["@loader_path/libomp-" + "a" * 300 + ".dylib", "@rpath/libomp." + "1." * 30000 + "dylib", "libomp.dylib"]
    install(
        tmp_path,
        "hostile",
        "1",
        {"hostile/a.so": macho(needed=[*names, "@loader_path/" + "b" * 300 + "/libomp.dylib"])},
    )
    record = tmp_path / "hostile-1.dist-info/RECORD"
    record.write_bytes(
        b'"unclosed.so\n/etc/libx.so,,\n../../../../../../libx.so,,\n\xff\xfe.so,,\na\0b.so,,\n'
        + b"c" * 5000
        + b".so,,\n"
    )
    report = survey_folder(tmp_path)
    assert report.native_files == 1
    assert report.conflicts == ()


def test_unreadable_files_are_listed_and_stop_nothing(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    (tmp_path / "faiss/broken.so").write_bytes(b"\xcf\xfa\xed\xfe")
    report = survey_folder(tmp_path)
    assert [one.path for one in report.unreadable] == ["faiss/broken.so"]
    assert orders(report)["torch", "faiss-cpu"] == (2, "crash")


def test_blas_is_reported_per_package(tmp_path):
    mac.torch(tmp_path)
    install(tmp_path, "numpy", "2.0", {"numpy/.dylibs/libscipy_openblas64_.dylib": macho(name="/DLC/x")})
    install(tmp_path, "inside", "1", {"inside/core.so": macho(symbols={"mkl_serv_set_num_threads": "local"})})
    found = {one.owner: one.library for one in survey_folder(tmp_path).blas}
    assert {owner: (words.split(",")[0], words.split()[-1]) for owner, words in found.items()} == {
        "torch 2.8.0": ("Accelerate", "Accelerate"),
        "numpy 2.0": ("OpenBLAS", "numpy/.dylibs/libscipy_openblas64_.dylib"),
        "inside 1": ("MKL", "inside/core.so"),
    }


def test_hidden_imports_are_reported_if_both_are_installed(tmp_path):
    mac.xgboost(tmp_path)
    mac.sklearn(tmp_path)
    install(tmp_path, "pandas", "3.0", {})
    install(tmp_path, "transformers", "5.1.0", {})
    install(tmp_path, "tensorflow", "2.20.0", {})
    assert [(one.importer, one.imported) for one in survey_folder(tmp_path).hidden] == [("xgboost", "scikit-learn")]
    install(tmp_path, "pyarrow", "21.0.0", {})
    (tmp_path / "transformers-5.1.0.dist-info").rename(tmp_path / "transformers-4.57.0.dist-info")
    found = {one.importer for one in survey_folder(tmp_path).hidden}
    assert found == {"xgboost", "pandas", "transformers"}


def test_environment_site_folder_and_wheels_agree(tmp_path):
    environment, flat, unpacked = tmp_path / "env", tmp_path / "flat", tmp_path / "wheels"
    site = environment / "lib/python3.11/site-packages"
    for place in (site, flat):
        mac.torch(place)
        mac.faiss(place)
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (environment / "lib64").symlink_to("lib")
    mac.torch(unpacked / "torch")
    mac.faiss(unpacked / "faiss")
    expected = {("torch", "faiss-cpu"): (2, "crash"), ("faiss-cpu", "torch"): (2, "crash")}
    for folder in (environment, site, flat, unpacked):
        assert orders(survey_folder(folder)) == expected, folder


def test_a_relative_folder_works(tmp_path, monkeypatch):
    mac.torch(tmp_path / "site")
    mac.faiss(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert orders(survey_folder(Path("site")))["torch", "faiss-cpu"] == (2, "crash")


def test_environment_without_native_files_is_healthy(tmp_path):
    install(tmp_path, "click", "8.1", {})
    report = survey_folder(tmp_path)
    assert (report.native_files, report.conflicts, report.distributions) == (0, (), {"click": "8.1"})


@pytest.mark.parametrize(
    "what", ["missing", "file", "wheel", "empty", "wheels only", "nothing installed", "bare environment"]
)
def test_folder_that_cannot_be_surveyed_explains_why(tmp_path, what):
    folder = tmp_path / "here"
    if what in ("file", "wheel"):
        folder = tmp_path / ("a.whl" if what == "wheel" else "a.txt")
        folder.write_text("x")
    elif what != "missing":
        folder.mkdir()
    if what == "wheels only":
        (folder / "torch-2.8.0.whl").write_text("x")
    if what == "nothing installed":
        (folder / "notes.txt").write_text("x")
    if what == "bare environment":
        (folder / "pyvenv.cfg").write_text("home = x\n")
    with pytest.raises(RequestError) as caught:
        survey_folder(folder)
    assert str(folder) in caught.value.what
    assert caught.value.try_next
