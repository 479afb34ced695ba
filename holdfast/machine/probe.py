"""The list of all probes of this machine, and the facts of a folder of installed packages.

Every fact comes with the source it was taken from. Of a folder, nothing is imported or run.
"""

from pathlib import Path
from typing import Any

from holdfast.core.facts import Answer, MachineFacts
from holdfast.machine import gpu, hub, libraries, resources, system, trials, variables
from holdfast.machine.commands import Unanswerable
from holdfast.machine.libraries import read_distributions, read_torch_build, unmet_requirements
from holdfast.machine.native.native_report import NativeReport, survey_folder, survey_roots
from holdfast.machine.probe_runner import Probe, ProbeRunner

_BACKSTOP_SECONDS = 30.0  # on top of the limits that the trials keep by themselves


def ask_this_machine(device_limit_seconds: float) -> ProbeRunner:
    """Start all probes of this machine and this Python."""
    doing = {"native": "reading native libraries"}
    children = trials.Children()

    def try_devices() -> Answer[Any]:
        return trials.probe_trials(
            device_limit_seconds, children, tell=lambda device: doing.update(trials=f"testing {device}")
        )

    # The CPU's child and then the accelerators' children, each within the limit.
    trial_probe = Probe("trials", try_devices, 2 * device_limit_seconds + _BACKSTOP_SECONDS)
    return ProbeRunner((trial_probe, *PROBES), doing, children.stop).start()


def facts_of_folder(folder: Path) -> tuple[MachineFacts, NativeReport]:
    """Read an environment, a site-packages folder or unpacked wheels; raises RequestError for any other folder."""
    report = survey_folder(folder)
    roots = [Path(root) for root in report.roots]
    installed = read_distributions(roots)
    unanswered = [f"distributions: {oddity}" for oddity in installed.oddities]
    unanswered += [f"native: {file.path}: {file.reason}" for file in report.unreadable]
    torch: dict[str, Any] = {}
    for root in roots:
        if (root / "torch" / "version.py").is_file():
            try:
                torch = {"torch": read_torch_build(root / "torch")}
            except Unanswerable as error:
                unanswered.append(f"torch: {error}")
            break
    scanned = f"{report.native_files} native files"
    facts = MachineFacts(
        os=report.os,
        arch=report.arch,
        distributions=installed.versions,
        unmet=unmet_requirements(roots, installed.versions),
        openmp_runtimes=report.openmp_runtimes,
        conflicts=report.conflicts,
        unanswered=tuple(unanswered),
        sources={"distributions": ", ".join(report.roots), "openmp_runtimes": scanned, "conflicts": scanned}
        | {name: str(root / "torch" / "version.py") for name in torch},
        **torch,
    )
    return facts, report


def probe_packages() -> Answer[dict[str, Any]]:
    """The distributions that this Python would import, and oddities in their records."""
    folders = libraries.import_folders()
    found = libraries.read_distributions(folders)
    unmet = libraries.unmet_requirements(folders, found.versions)
    value = {"distributions": found.versions, "unmet": unmet, "unanswered": found.oddities}
    return Answer(value, f"metadata in {len(folders)} folders of sys.path")


def probe_native() -> Answer[dict[str, Any]]:
    """The OpenMP copies that installed packages carry, and what happens if two of them are loaded together."""
    roots = [folder for folder in libraries.import_folders() if folder.name in ("site-packages", "dist-packages")]
    report = survey_roots(roots)
    unread = [f"{file.path}: {file.reason}" for file in report.unreadable]
    value = {
        "conflicts": report.conflicts,
        "openmp_runtimes": report.openmp_runtimes,
        "unanswered": unread,
        "report": report,
    }
    return Answer(value, f"{report.native_files} native files in {', '.join(report.roots)}")


PROBES = (
    Probe("os", system.probe_os),
    Probe("os_version", system.probe_os_version),
    Probe("arch", system.probe_arch),
    Probe("chip", system.probe_chip),
    Probe("is_rosetta", system.probe_is_rosetta),
    Probe("in_container", system.probe_in_container),
    Probe("python_version", system.probe_python_version),
    Probe("python_build", system.probe_python_build),
    Probe("python_path", system.probe_python_path),
    Probe("start_method", system.probe_start_method),
    Probe("cpu_count", resources.probe_cpu_count),
    Probe("cpu_count_physical", resources.probe_cpu_count_physical),
    Probe("cpu_flags", resources.probe_cpu_flags),
    Probe("memory_bytes", resources.probe_memory_bytes),
    Probe("memory_physical_bytes", resources.probe_memory_physical_bytes),
    Probe("memory_free_bytes", resources.probe_memory_free_bytes),
    Probe("swap_bytes", resources.probe_swap_bytes),
    Probe("shm_bytes", resources.probe_shm_bytes),
    Probe("shm_free_bytes", resources.probe_shm_free_bytes),
    Probe("open_file_limit", resources.probe_open_file_limit),
    Probe("disks", resources.probe_disks, fills=("disks",)),
    Probe("distributions", probe_packages, fills=("distributions", "unmet")),
    Probe("torch", libraries.probe_torch),
    Probe("variables", variables.probe_variables),
    Probe("models", hub.probe_models),
    Probe("power", system.probe_power),
    Probe("native", probe_native, 60.0, fills=("openmp_runtimes", "conflicts")),
    Probe("gpus", gpu.probe_gpus, 40.0),
    Probe("driver_version", gpu.probe_driver_version, 20.0),
    Probe("driver_cuda", gpu.probe_driver_cuda, 20.0),
    Probe("gpu_processes", gpu.probe_gpu_processes, 20.0),
)
