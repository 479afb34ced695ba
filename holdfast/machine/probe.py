"""The list of every probe, and the start of asking this machine.

Reads: the machine. Leaves: facts, each with the source it was taken from.
"""

from typing import Any

from holdfast.core.facts import Answer
from holdfast.machine import cpu, disk, gpu, hub, interpreter, libraries, memory, power, system, trials, variables
from holdfast.machine.asking import Asking, Probe
from holdfast.machine.native.survey import survey_roots

_BACKSTOP_SECONDS = 30.0  # on top of the limits that the trials keep by themselves


def ask_this_machine(device_limit_seconds: float) -> Asking:
    """Start asking everything about this machine and this Python."""
    doing = {"native": "reading native libraries"}
    children = trials.Children()

    def try_devices() -> Answer[Any]:
        return trials.probe_trials(
            device_limit_seconds, children, tell=lambda device: doing.update(trials=f"one training step on {device}")
        )

    # The CPU's child and then the accelerators' children, each within the limit.
    trial_probe = Probe("trials", try_devices, 2 * device_limit_seconds + _BACKSTOP_SECONDS)
    return Asking((trial_probe, *PROBES), doing, children.stop).start()


def probe_packages() -> Answer[dict[str, Any]]:
    """The distributions that this Python would import, and what is odd about their records."""
    folders = libraries.import_folders()
    found = libraries.read_distributions(folders)
    value = {"distributions": found.versions, "unanswered": found.oddities}
    return Answer(value, f"metadata in {len(folders)} folders of sys.path")


def probe_native() -> Answer[dict[str, Any]]:
    """Which OpenMP copies installed packages carry, and what loading two of them together leads to."""
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
    Probe("python_version", interpreter.probe_python_version),
    Probe("python_build", interpreter.probe_python_build),
    Probe("python_path", interpreter.probe_python_path),
    Probe("start_method", interpreter.probe_start_method),
    Probe("cpu_count", cpu.probe_cpu_count),
    Probe("cpu_count_physical", cpu.probe_cpu_count_physical),
    Probe("cpu_flags", cpu.probe_cpu_flags),
    Probe("memory_bytes", memory.probe_memory_bytes),
    Probe("memory_physical_bytes", memory.probe_memory_physical_bytes),
    Probe("memory_free_bytes", memory.probe_memory_free_bytes),
    Probe("swap_bytes", memory.probe_swap_bytes),
    Probe("shm_bytes", memory.probe_shm_bytes),
    Probe("shm_free_bytes", memory.probe_shm_free_bytes),
    Probe("open_file_limit", disk.probe_open_file_limit),
    Probe("disks", disk.probe_disks, fills=("disks",)),
    Probe("distributions", probe_packages, fills=("distributions",)),
    Probe("torch", libraries.probe_torch),
    Probe("variables", variables.probe_variables),
    Probe("models", hub.probe_models),
    Probe("power", power.probe_power),
    Probe("native", probe_native, 60.0, fills=("openmp_runtimes", "conflicts")),
    Probe("gpus", gpu.probe_gpus, 40.0),
    Probe("driver_version", gpu.probe_driver_version, 20.0),
    Probe("driver_cuda", gpu.probe_driver_cuda, 20.0),
    Probe("gpu_processes", gpu.probe_gpu_processes, 20.0),
)
