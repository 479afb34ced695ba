"""From a folder to verdicts: who owns what, how many OpenMP copies each order loads, which protobufs clash."""

from pathlib import Path

import mac_packages as mac
import pytest
from build_binaries import GOMP, KMP, LIBOMP_11, LIBOMP_12, elf, fat, install, macho, pe

from holdfast.core.errors import RequestError
from holdfast.core.facts import NativeConflict
from holdfast.machine.native import loaders
from holdfast.machine.native.runtimes import openmp_kind
from holdfast.machine.native.survey import NativeReport, survey_folder, survey_roots

CRASH, ALIVE = ("2", "crash"), ("2", "tolerated")


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    """The verdicts about foreign folders must not depend on the machine that runs the tests."""
    monkeypatch.setattr(loaders, "HOST_SYSTEM", "linux")


def orders(report: NativeReport, runtime: str = "openmp") -> dict[tuple[str, ...], tuple[int, str]]:
    """Each order by package names, with the copies and the outcome; the case is added where there is one."""

    def key(pair: NativeConflict) -> tuple[str, ...]:
        names = (pair.first.split()[0], pair.second.split()[0])
        return (*names, "brew" if pair.when.endswith("is installed") else "no brew") if pair.when else names

    return {key(pair): (pair.copies, pair.outcome) for pair in report.conflicts if pair.runtime == runtime}


def test_torch_and_faiss_may_crash_in_both_orders_and_sklearn_is_tolerated(tmp_path):
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


def test_without_homebrew_torch_first_still_works_up_to_2_10_and_fails_later(tmp_path):
    mac.torch(tmp_path / "old", "2.8.0")
    mac.xgboost(tmp_path / "old")
    mac.torch(tmp_path / "new", "2.13.0")
    mac.xgboost(tmp_path / "new")
    old, new = (survey_folder(tmp_path / name, homebrew=False) for name in ("old", "new"))
    assert orders(old) == {("torch", "xgboost"): (1, "shared"), ("xgboost", "torch"): (1, "not-found")}
    assert orders(new) == {("torch", "xgboost"): (1, "not-found"), ("xgboost", "torch"): (1, "not-found")}
    assert [(one.owner, one.helped_by) for one in old.missing] == [("xgboost 3.0.5", ("torch 2.8.0",))]
    assert [(one.owner, one.helped_by) for one in new.missing] == [("xgboost 3.0.5", ())]


def test_when_homebrew_is_not_known_both_cases_are_told(tmp_path):
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
    monkeypatch.setattr(loaders, "HOST_SYSTEM", "macos")
    monkeypatch.setattr(loaders, "_HOMEBREW", {"arm64": str(brew)})
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


def test_numba_without_a_runtime_is_no_conflict(tmp_path):
    mac.torch(tmp_path, "2.15.0")
    mac.numba(tmp_path)
    report = survey_folder(tmp_path)
    assert report.conflicts == ()
    assert [(one.owner, one.is_spare) for one in report.missing] == [("numba 0.68.1", True)]


def test_a_copy_that_nobody_loads_is_listed_and_not_counted(tmp_path):
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


def test_a_package_that_loads_two_copies_by_itself_is_told(tmp_path):
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
def test_two_generations_of_protobuf_clash_only_when_both_export_their_lock(
    tmp_path, name, version, old, binding, outcomes
):
    mac.protobuf_user(tmp_path, "tensorflow", "2.20.0", old=False)
    mac.protobuf_user(tmp_path, name, version, old=old, binding=binding)
    assert orders(survey_folder(tmp_path), "protobuf") == outcomes


def test_linux_shares_by_soname_and_lets_libgomps_coexist(tmp_path):
    gomp = {GOMP: "strong"}
    hashed = "libgomp-e985bcbb.so.1.0.0"
    for dist, module in (("scikit-learn", "scikit_learn"), ("faiss-cpu", "faiss_cpu")):
        install(
            tmp_path,
            dist,
            "1",
            {
                f"{module}.libs/{hashed}": elf(name=hashed, symbols=gomp),
                f"{module}/_core.so": elf(needed=[hashed], rpaths=f"$ORIGIN/../{module}.libs"),
            },
        )
    install(
        tmp_path,
        "torch",
        "2.13.0+cpu",
        {
            "torch/lib/libgomp.so.1": elf(name="libgomp.so.1", symbols=gomp),
            "torch/lib/libtorch_cpu.so": elf(needed=["libgomp.so.1"], rpaths="$ORIGIN"),
        },
    )
    install(tmp_path, "lightgbm", "4.7.0", {"lightgbm/lib_lightgbm.so": elf(needed=["libgomp.so.1"])})
    install(tmp_path, "numba", "0.68.1", {"numba/omppool.so": elf(needed=["libgomp.so.1.0.0"])})
    found = orders(survey_folder(tmp_path))
    assert found["scikit-learn", "faiss-cpu"] == (1, "shared")
    assert found["torch", "scikit-learn"] == found["faiss-cpu", "lightgbm"] == (2, "coexists")
    assert found["torch", "lightgbm"] == found["lightgbm", "torch"] == (1, "shared")
    assert found["torch", "numba"] == (2, "coexists")  # numba asks for another name of the system's file
    assert found["numba", "lightgbm"] == found["lightgbm", "numba"] == (1, "shared")


def test_linux_warns_of_libomp_with_libiomp_only(tmp_path):
    kmp = {KMP: "strong"}
    for name, library in (("one", "libomp.so.5"), ("two", "libiomp5.so"), ("three", "libgomp-1.so.1.0.0")):
        symbols = {GOMP: "strong"} if "gomp" in library else kmp
        install(
            tmp_path,
            name,
            "1",
            {
                f"{name}/{library}": elf(name=library, symbols=symbols),
                f"{name}/_core.so": elf(needed=[library], rpaths="$ORIGIN"),
            },
        )
    found = orders(survey_folder(tmp_path))
    assert found["one", "two"] == found["two", "one"] == (2, "crash")
    assert found["one", "three"] == found["two", "three"] == (2, "coexists")


def windows_torch(site: Path) -> None:
    install(
        site,
        "torch",
        "2.8.0",
        {
            "torch/lib/libiomp5md.dll": pe(name="libiomp5md.dll", exports=[KMP, "omp_get_max_threads"]),
            "torch/lib/libiompstubs5md.dll": pe(name="libiompstubs5md.dll", exports=["omp_get_max_threads"]),
            "torch/lib/torch_cpu.dll": pe(name="torch_cpu.dll", needed=["libiomp5md.dll"]),
        },
    )


def test_windows_stops_with_error_15_for_two_kmp_runtimes_and_shares_by_base_name(tmp_path):
    windows_torch(tmp_path)
    hashed = "libomp140.x86_64-b75298b2.dll"
    install(
        tmp_path,
        "faiss-cpu",
        "1.11.0",
        {
            f"faiss_cpu.libs/{hashed}": pe(name="libomp140.x86_64.dll", exports=[KMP]),
            "faiss/_swigfaiss.pyd": pe(needed=[hashed]),
        },
    )
    install(
        tmp_path,
        "ctranslate2",
        "4.8.4",
        {
            "ctranslate2/libiomp5md.dll": pe(name="libiomp5md.dll", exports=[KMP]),
            "ctranslate2/_ext.pyd": pe(needed=["LIBIOMP5MD.dll"]),
        },
    )
    install(
        tmp_path,
        "scikit-learn",
        "1.9.1",
        {"sklearn/.libs/vcomp140.dll": pe(name="VCOMP140.DLL"), "sklearn/_loss.pyd": pe(needed=["VCOMP140.DLL"])},
    )
    install(tmp_path, "lightgbm", "4.7.0", {"lightgbm/lib_lightgbm.dll": pe(needed=["VCOMP140.DLL"])})
    found = orders(survey_folder(tmp_path))
    assert found["torch", "faiss-cpu"] == found["faiss-cpu", "torch"] == (2, "crash")
    assert found["torch", "ctranslate2"] == (1, "shared")
    assert found["torch", "scikit-learn"] == (2, "coexists")
    assert found["scikit-learn", "lightgbm"] == found["lightgbm", "scikit-learn"] == (1, "shared")


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
    assert [(one.path, one.reason) for one in report.unreadable] == [
        ("faiss/broken.so", "20 bytes at 4 were promised, the file has 4")
    ]
    assert orders(report)["torch", "faiss-cpu"] == (2, "crash")


def test_blas_is_told_for_each_package(tmp_path):
    mac.torch(tmp_path)
    install(tmp_path, "numpy", "2.0", {"numpy/.dylibs/libscipy_openblas64_.dylib": macho(name="/DLC/x")})
    install(tmp_path, "inside", "1", {"inside/core.so": macho(symbols={"mkl_serv_set_num_threads": "local"})})
    assert {one.owner: one.library for one in survey_folder(tmp_path).blas} == {
        "torch 2.8.0": "Accelerate",
        "numpy 2.0": "OpenBLAS, its own copy numpy/.dylibs/libscipy_openblas64_.dylib",
        "inside 1": "MKL, linked into inside/core.so",
    }


def test_hidden_imports_are_told_when_both_are_installed(tmp_path):
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


def test_an_environment_a_site_folder_and_unpacked_wheels_give_the_same(tmp_path):
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
    assert survey_folder(environment).environment == survey_folder(site).environment == str(environment)
    assert survey_roots([flat]).environment == ""


def test_a_relative_folder_works(tmp_path, monkeypatch):
    mac.torch(tmp_path / "site")
    mac.faiss(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert orders(survey_folder(Path("site")))["torch", "faiss-cpu"] == (2, "crash")


def test_a_healthy_environment_without_native_files_is_no_error(tmp_path):
    install(tmp_path, "click", "8.1", {})
    report = survey_folder(tmp_path)
    assert (report.native_files, report.conflicts, report.distributions) == (0, (), {"click": "8.1"})


@pytest.mark.parametrize(
    "what", ["missing", "file", "wheel", "empty", "wheels only", "nothing installed", "bare environment"]
)
def test_a_folder_that_cannot_be_surveyed_says_what_it_is_and_what_to_do(tmp_path, what):
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
