"""Small stand-ins for macOS wheels, with the install names, references and symbols of the real ones."""

from pathlib import Path

from build_binaries import KMP, LIBOMP_11, LIBOMP_12, OLD_PROTOBUF, SHUTDOWN, install, macho

HOMEBREW = "/opt/homebrew/opt/libomp/lib"
USES = {KMP: "imported"}


def torch(site: Path, version: str = "2.8.0") -> None:
    """torch as published: the copy's install name and the reference to it changed twice."""
    release = tuple(int(part) for part in version.split(".")[:2])
    name, reference = f"{HOMEBREW}/libomp.dylib", "@rpath/libomp.dylib"
    if release < (2, 7):
        name = "@rpath/libomp.dylib"
    elif release >= (2, 11):
        name = "/opt/llvm-openmp/lib/libomp.dylib"
    if release >= (2, 14):
        reference = "@loader_path/libomp.dylib"
    install(
        site,
        "torch",
        version,
        {
            "torch/lib/libomp.dylib": macho(name=name, symbols=LIBOMP_12),
            "torch/lib/libtorch_cpu.dylib": macho(
                name="@rpath/libtorch_cpu.dylib",
                needed=[reference, "/System/Library/Frameworks/Accelerate.framework/Versions/A/Accelerate"],
                rpaths=["@loader_path"],
                symbols=USES,
            ),
            "torch/_C.cpython-311-darwin.so": macho(
                needed=["@rpath/libtorch_cpu.dylib"], rpaths=["@loader_path/lib"], kind=8
            ),
            "torch/bin/protoc.dylib": macho(needed=["/nowhere/libomp.dylib"]),
        },
    )


def faiss(site: Path, version: str = "1.12.0") -> None:
    """faiss-cpu: always its own copy."""
    install(
        site,
        "faiss-cpu",
        version,
        {
            "faiss/.dylibs/libomp.dylib": macho(name="/DLC/faiss/.dylibs/libomp.dylib", symbols=LIBOMP_12),
            "faiss/_swigfaiss.cpython-311-darwin.so": macho(
                needed=["@loader_path/.dylibs/libomp.dylib"], symbols=USES, kind=8
            ),
        },
    )


def sklearn(site: Path, version: str = "1.7.2") -> None:
    """scikit-learn: its own copy, libomp 11."""
    install(
        site,
        "scikit-learn",
        version,
        {
            "sklearn/.dylibs/libomp.dylib": macho(
                name="/DLC/sklearn/.dylibs/libomp.dylib", symbols=LIBOMP_11, built_for=(11, 0)
            ),
            "sklearn/cluster/_k_means_lloyd.so": macho(
                needed=["@loader_path/../.dylibs/libomp.dylib"], symbols=USES, kind=8
            ),
            "sklearn/_loss/deep/_loss.so": macho(
                needed=["@loader_path/../../.dylibs/libomp.dylib"], symbols=USES, kind=8
            ),
        },
    )


def xgboost(site: Path, version: str = "3.0.5", name: str = "xgboost") -> None:
    """xgboost (and lightgbm): no copy, asks for Homebrew's."""
    library = macho(name=f"@rpath/lib{name}.dylib", needed=["@rpath/libomp.dylib"], rpaths=[HOMEBREW], symbols=USES)
    install(site, name, version, {f"{name}/lib/lib{name}.dylib": library})


def numba(site: Path, version: str = "0.68.1") -> None:
    """numba: one optional file that asks and has nowhere to look."""
    install(
        site,
        "numba",
        version,
        {"numba/np/ufunc/omppool.cpython-311-darwin.so": macho(needed=["@rpath/libomp.dylib"], symbols=USES, kind=8)},
    )


def protobuf_user(site: Path, name: str, version: str, *, old: bool, binding: str = "weak") -> None:
    """tensorflow, pyarrow, sentencepiece...: a protobuf copy that exports its lock, or keeps it."""
    symbols = {SHUTDOWN: binding} | ({OLD_PROTOBUF: "strong"} if old else {})
    module = name.replace("-", "_")
    install(
        site, name, version, {f"{module}/lib{module}.dylib": macho(name=f"@rpath/lib{module}.dylib", symbols=symbols)}
    )
