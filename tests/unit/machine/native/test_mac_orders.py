"""On a Mac: how many OpenMP copies each order of imports loads, and which protobufs clash."""

import mac_packages as mac
import pytest
from build_binaries import LIBOMP_11, LIBOMP_12, install, macho
from import_orders import orders

from holdfast.machine.native import dynamic_loader
from holdfast.machine.native.native_report import survey_folder

pytestmark = pytest.mark.usefixtures("on_linux")


def test_torch_and_faiss_may_crash_in_both_orders(tmp_path):
    for package in (mac.torch, mac.faiss, mac.sklearn):
        package(tmp_path)
    assert orders(survey_folder(tmp_path)) == {
        ("torch", "faiss-cpu"): (2, "crash"),
        ("faiss-cpu", "torch"): (2, "crash"),
        ("torch", "scikit-learn"): (2, "tolerated"),
        ("scikit-learn", "torch"): (2, "tolerated"),
        ("faiss-cpu", "scikit-learn"): (2, "tolerated"),
        ("scikit-learn", "faiss-cpu"): (2, "tolerated"),
    }


@pytest.mark.parametrize(
    ("version", "torch_first", "xgboost_first"),
    [
        ("2.5.1", (1, "shared"), (2, "crash")),  # the install name is the request itself
        ("2.8.0", (1, "shared"), (2, "crash")),  # the install name is Homebrew's path
        ("2.13.0", (2, "crash"), (2, "crash")),
        ("2.15.0", (2, "crash"), (2, "crash")),
    ],
)
def test_the_order_of_torch_and_xgboost_matters_for_some_versions(tmp_path, version, torch_first, xgboost_first):
    mac.torch(tmp_path, version)
    mac.xgboost(tmp_path)
    found = orders(survey_folder(tmp_path, homebrew=True))
    assert found == {("torch", "xgboost"): torch_first, ("xgboost", "torch"): xgboost_first}


def test_torch_first_works_up_to_2_10_without_homebrew(tmp_path):
    mac.torch(tmp_path / "old", "2.8.0")
    mac.xgboost(tmp_path / "old")
    mac.torch(tmp_path / "new", "2.13.0")
    mac.xgboost(tmp_path / "new")
    old, new = (survey_folder(tmp_path / name, homebrew=False) for name in ("old", "new"))
    assert orders(old) == {("torch", "xgboost"): (1, "shared"), ("xgboost", "torch"): (1, "not-found")}
    assert orders(new) == {("torch", "xgboost"): (1, "not-found"), ("xgboost", "torch"): (1, "not-found")}
    assert [(one.owner, one.helped_by) for one in old.missing] == [("xgboost 3.0.5", ("torch 2.8.0",))]
    assert [(one.owner, one.helped_by) for one in new.missing] == [("xgboost 3.0.5", ())]


def test_unknown_homebrew_reports_both_cases(tmp_path):
    mac.torch(tmp_path)
    mac.xgboost(tmp_path)
    report = survey_folder(tmp_path)
    assert report.homebrew is None
    assert orders(report) == {
        ("torch", "xgboost"): (1, "shared"),
        ("xgboost", "torch", "brew"): (2, "crash"),
        ("xgboost", "torch", "no brew"): (1, "not-found"),
    }


def test_on_a_mac_homebrew_is_looked_for(tmp_path, monkeypatch):
    brew = tmp_path / "brew"
    brew.mkdir()
    (brew / "libomp.dylib").write_bytes(macho(name=f"{brew}/libomp.dylib", symbols=LIBOMP_12))
    monkeypatch.setattr(dynamic_loader, "HOST_SYSTEM", "macos")
    monkeypatch.setattr(dynamic_loader, "_HOMEBREW", {"arm64": str(brew)})
    monkeypatch.setattr(mac, "HOMEBREW", str(brew))
    mac.torch(tmp_path / "site", "2.13.0")
    mac.xgboost(tmp_path / "site")
    report = survey_folder(tmp_path / "site")
    assert report.homebrew is True
    assert orders(report) == {("torch", "xgboost"): (2, "crash"), ("xgboost", "torch"): (2, "crash")}


def test_xgboost_and_lightgbm_share_homebrews_copy(tmp_path):
    mac.xgboost(tmp_path)
    mac.xgboost(tmp_path, "4.6.0", name="lightgbm")
    found = orders(survey_folder(tmp_path, homebrew=True))
    assert set(found.values()) == {(1, "shared")}


def test_a_link_to_the_same_file_is_one_copy(tmp_path):
    mac.torch(tmp_path)
    mac.faiss(tmp_path)
    copy = tmp_path / "faiss/.dylibs/libomp.dylib"
    copy.unlink()
    copy.symlink_to("../../torch/lib/libomp.dylib")
    report = survey_folder(tmp_path)
    assert set(orders(report).values()) == {(1, "shared")}
    assert {one.file: one.link_to for one in report.carried} == {
        "faiss/.dylibs/libomp.dylib": "torch/lib/libomp.dylib",
        "torch/lib/libomp.dylib": "",
    }
    assert report.openmp_runtimes == ("torch 2.8.0: torch/lib/libomp.dylib",)


def test_numba_without_a_runtime_is_not_a_conflict(tmp_path):
    mac.torch(tmp_path, "2.15.0")
    mac.numba(tmp_path)
    report = survey_folder(tmp_path)
    assert report.conflicts == ()
    assert [(one.owner, one.is_spare) for one in report.missing] == [("numba 0.68.1", True)]


def test_unloaded_copy_is_listed_but_not_counted(tmp_path):
    """torch 2.2.2 for Intel carries libiomp5 twice and uses one of them."""
    install(
        tmp_path,
        "torch",
        "2.2.2",
        {
            "functorch/.dylibs/libiomp5.dylib": macho(arch="x86_64", name="/DLC/libiomp5.dylib", symbols=LIBOMP_12),
            "torch/lib/libiomp5.dylib": macho(arch="x86_64", name="@rpath/libiomp5.dylib", symbols=LIBOMP_12),
            "torch/lib/libtorch_cpu.dylib": macho(
                arch="x86_64", needed=["@loader_path/../../functorch/.dylibs/libiomp5.dylib"]
            ),
        },
    )
    report = survey_folder(tmp_path)
    assert report.conflicts == ()
    assert {one.file: one.used for one in report.carried} == {
        "functorch/.dylibs/libiomp5.dylib": True,
        "torch/lib/libiomp5.dylib": False,
    }


def test_package_loading_two_copies_is_reported(tmp_path):
    """torch 2.3.0 did (pytorch/pytorch#122705)."""
    install(
        tmp_path,
        "torch",
        "2.3.0",
        {
            "functorch/.dylibs/libomp.dylib": macho(name="/DLC/libomp.dylib", symbols=LIBOMP_12),
            "torch/lib/libomp.dylib": macho(name="@rpath/libomp.dylib", symbols=LIBOMP_12),
            "functorch/_C.so": macho(needed=["@loader_path/.dylibs/libomp.dylib"]),
            "torch/lib/libtorch_cpu.dylib": macho(needed=["@loader_path/libomp.dylib"]),
        },
    )
    assert orders(survey_folder(tmp_path)) == {("torch", "torch"): (2, "crash")}


def test_a_runtime_linked_into_an_extension_counts_as_a_copy(tmp_path):
    mac.torch(tmp_path)
    install(tmp_path, "static", "1.0", {"static/_core.so": macho(symbols=LIBOMP_12, kind=8)})
    assert orders(survey_folder(tmp_path))["torch", "static"] == (2, "crash")


def test_two_old_copies_see_each_other(tmp_path):
    for name in ("one", "two"):
        install(
            tmp_path,
            name,
            "1",
            {
                f"{name}/.dylibs/libomp.dylib": macho(name=f"/DLC/{name}", symbols=LIBOMP_11),
                f"{name}/_core.so": macho(needed=["@loader_path/.dylibs/libomp.dylib"]),
            },
        )
    assert orders(survey_folder(tmp_path))["one", "two"] == (2, "crash")


def test_rpaths_of_the_loading_library_are_searched_too(tmp_path):
    install(
        tmp_path,
        "deep",
        "1",
        {
            "deep/lib/libomp.dylib": macho(name="/DLC/libomp.dylib", symbols=LIBOMP_12),
            "deep/lib/libdeep.dylib": macho(name="@rpath/libdeep.dylib", needed=["@rpath/libomp.dylib"]),
            "deep/_core.so": macho(needed=["@rpath/libdeep.dylib"], rpaths=["@loader_path/lib"]),
        },
    )
    report = survey_folder(tmp_path, homebrew=False)
    assert report.missing == ()
    assert [one.used for one in report.carried] == [True]


@pytest.mark.parametrize(
    ("name", "version", "old", "binding", "outcomes"),
    [
        (
            "pyarrow",
            "21.0.0",
            True,
            "weak",
            {("pyarrow", "tensorflow"): (2, "hang"), ("tensorflow", "pyarrow"): (2, "abort")},
        ),
        ("pyarrow", "22.0.0", False, "local", {}),
        ("tensorflow-text", "2.21.1", False, "weak", {}),
        ("sentencepiece", "0.2.2", True, "local", {}),
    ],
)
def test_protobuf_generations_clash_only_if_both_export_the_lock(tmp_path, name, version, old, binding, outcomes):
    mac.protobuf_user(tmp_path, "tensorflow", "2.20.0", old=False)
    mac.protobuf_user(tmp_path, name, version, old=old, binding=binding)
    assert orders(survey_folder(tmp_path), "protobuf") == outcomes
