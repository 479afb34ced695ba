"""Probes of the operating system, the chip, this Python, containers, Rosetta, and power on a Mac."""

import multiprocessing
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.facts import Answer, Power
from holdfast.machine.commands import output_of

_CONTAINER_WORDS = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden|buildkit")
_ARM_PARTS = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2"}
# Parts of a base folder that show who built the interpreter; the first match counts.
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


def probe_os() -> Answer[str]:
    """The family of operating system."""
    names = {"linux": "linux", "darwin": "macos", "win32": "windows"}
    return Answer(names.get(sys.platform, sys.platform), "sys.platform")


def probe_os_version() -> Answer[str]:
    """The version as the vendor writes it."""
    if sys.platform == "darwin":  # Python's own answer is "10.16" when it was built on an old system
        return Answer(output_of("sw_vers", "-productVersion").strip(), "sw_vers")
    if sys.platform == "linux":
        return Answer(read_linux_version(platform.freedesktop_os_release(), platform.release()), "os-release, uname")
    return Answer(platform.version(), "platform.version")


def read_linux_version(release: Mapping[str, str], kernel: str) -> str:
    """The name of a Linux system with its kernel, and whether it runs inside Windows."""
    name = release.get("PRETTY_NAME") or release.get("NAME") or "Linux"
    number = re.match(r"[\d.]+\d", kernel)
    where = " under WSL" if "microsoft" in kernel.lower() else ""
    return f"{name}, kernel {number[0] if number else kernel}{where}"


def probe_arch() -> Answer[str]:
    """The architecture of this Python, which under Rosetta is not the chip's."""
    return Answer(platform.machine(), "uname")


def probe_chip() -> Answer[str]:
    """The name of the processor."""
    if sys.platform == "darwin":
        return Answer(output_of("sysctl", "-n", "machdep.cpu.brand_string").strip(), "sysctl machdep.cpu.brand_string")
    if sys.platform == "linux":
        return Answer(read_chip(Path("/proc/cpuinfo").read_text(errors="replace")), "/proc/cpuinfo")
    return Answer(platform.processor(), "platform.processor")


def read_chip(cpuinfo: str) -> str:
    """Find the processor's name in /proc/cpuinfo; ARM gives only part numbers."""
    fields = dict(re.findall(r"^([^\n:]+?)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))
    for key in ("model name", "Model", "Hardware", "cpu model"):
        if fields.get(key):
            return " ".join(fields[key].split())
    part = fields.get("CPU part", "")
    return _ARM_PARTS.get(part, f"ARM part {part}" if part else "")


def probe_is_rosetta() -> Answer[bool]:
    """Whether this is an Intel Python on an Apple chip."""
    if sys.platform != "darwin":
        return Answer(False, "only macOS has Rosetta")
    return Answer(
        read_translated(output_of("sysctl", "-in", "sysctl.proc_translated")), "sysctl sysctl.proc_translated"
    )


def read_translated(text: str) -> bool:
    """Read `sysctl -in sysctl.proc_translated`: 1 when translated, 0 when native, empty on an Intel Mac."""
    return text.strip() == "1"


def apple_generation(chip: str) -> int | None:
    """The generation of an Apple chip: 2 for "Apple M2 Pro"; None for any other."""
    found = re.search(r"\bApple M(\d+)\b", chip)
    return int(found[1]) if found else None


def probe_in_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Answer[bool]:
    """Whether this process runs in a container, whose limits differ from the machine's."""
    for mark in (".dockerenv", "run/.containerenv"):
        if (root / mark).exists():
            return Answer(True, f"/{mark} exists")
    for name in ("KUBERNETES_SERVICE_HOST", "SINGULARITY_NAME", "APPTAINER_NAME"):
        if name in environ:
            return Answer(True, f"{name} is set")
    control_group = root / "proc/1/cgroup"
    found = _CONTAINER_WORDS.search(control_group.read_text()) if control_group.exists() else None
    return Answer(found is not None, f"/proc/1/cgroup names {found[0]}" if found else "no sign of a container")


def probe_python_version() -> Answer[str]:
    """The version of this Python."""
    return Answer(platform.python_version(), "platform.python_version")


def probe_python_build() -> Answer[str]:
    """Who built this Python, with which compiler, and what is unusual about it."""
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
    """Who built an interpreter, judging by its installation folder; empty if unknown."""
    return next((maker for part, maker in _MAKERS if part in f"{base_folder}/"), "")


def probe_python_path() -> Answer[str]:
    """The path of this Python: findings are about its packages."""
    return Answer(sys.executable, "sys.executable")


def probe_start_method() -> Answer[str]:
    """The default start method of multiprocessing."""
    return Answer(multiprocessing.get_all_start_methods()[0], "multiprocessing.get_all_start_methods")


def probe_power() -> Answer[Power | None]:
    """Whether a Mac runs on battery, when it falls asleep, and whether it saves power."""
    if sys.platform != "darwin":
        return Answer(None, "only available on macOS")
    return Answer(read_power(output_of("pmset", "-g", "batt"), output_of("pmset", "-g")), "pmset -g")


def read_power(battery: str, settings: str) -> Power:
    """Read `pmset -g batt` and `pmset -g`, which shows the settings of the source in use."""
    minutes = _setting(settings, "sleep")
    return Power(
        on_battery="'Battery Power'" in battery,
        sleep_after_minutes=minutes or None,  # 0 means never
        low_power_mode=_setting(settings, "lowpowermode") == 1,
    )


def _setting(settings: str, name: str) -> int | None:
    found = re.search(rf"^\s*{name}\s+(\d+)\b", settings, re.MULTILINE)
    return int(found[1]) if found else None
