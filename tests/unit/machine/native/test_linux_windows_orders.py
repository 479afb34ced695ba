"""On Linux and Windows: how many OpenMP copies each order of imports loads, and what comes of it."""

from pathlib import Path

import pytest
from build_binaries import GOMP, KMP, elf, install, pe
from import_orders import orders

from holdfast.machine.native.native_report import survey_folder

pytestmark = pytest.mark.usefixtures("on_linux")


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


def test_windows_aborts_for_two_kmp_runtimes(tmp_path):
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
