"""The Python that answers: its version, who built it, where it lies, how it starts workers."""

import multiprocessing
import platform
import sys
import sysconfig
from pathlib import Path

from holdfast.core.facts import Answer

# What a base folder tells of who built the interpreter. The first that fits is taken.
_MAKERS = (
    ("/.pyenv/", "pyenv"),
    ("/uv/python/", "uv"),
    ("/.local/share/mise/", "mise"),
    ("/opt/homebrew/", "Homebrew"),
    ("/usr/local/Cellar/", "Homebrew"),
    ("/Library/Frameworks/Python.framework/", "python.org"),
    ("/Applications/Xcode.app/", "Xcode"),
    ("/Library/Developer/CommandLineTools/", "Xcode"),
    ("/nix/store/", "Nix"),
)


def probe_python_version() -> Answer[str]:
    """The version of this Python."""
    return Answer(platform.python_version(), "platform.python_version")


def probe_python_build() -> Answer[str]:
    """Who built this Python, with which compiler, and how it is unusual."""
    base = Path(sys.base_prefix)
    maker = "conda" if (base / "conda-meta").is_dir() else maker_of(str(base.resolve()))
    unusual = [
        "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "",
        "debug" if sysconfig.get_config_var("Py_DEBUG") else "",
        "in a virtual environment" if sys.prefix != sys.base_prefix else "",
    ]
    parts = [platform.python_implementation(), maker, platform.python_compiler().strip(), *unusual]
    return Answer(", ".join(part for part in parts if part), "sys.base_prefix, sysconfig")


def maker_of(base_folder: str) -> str:
    """Name who built an interpreter, from the folder it was installed in; empty when that tells nothing."""
    return next((maker for part, maker in _MAKERS if part in f"{base_folder}/"), "")


def probe_python_path() -> Answer[str]:
    """Where this Python lies: findings are about the packages of this one."""
    return Answer(sys.executable, "sys.executable")


def probe_start_method() -> Answer[str]:
    """How multiprocessing starts a worker here unless told otherwise."""
    return Answer(multiprocessing.get_all_start_methods()[0], "multiprocessing.get_all_start_methods")
