"""Chooses the number of processes that share each step, and refuses a number that the machine cannot run.

Each process takes its part of the same examples, and they add up their gradients, so the number of processes does not
affect what the model learns. On the CPU they share the cores; with GPUs each process has its own. Pure functions.
"""

from holdfast.core.errors import MachineError, RequestError, leave_out, set_to
from holdfast.core.facts import Gpu, MachineFacts
from holdfast.core.plan import Choice
from holdfast.core.settings import TrainRequest, nodes_of
from holdfast.core.text import plural

_CHANGES_LEARNING = "changes what the model learns"
_PLURAL = {"nodes": "machines", "processes": "processes"}


def choose_processes(request: TrainRequest, machine: MachineFacts, device: str, batch_size: int) -> Choice[int]:
    """As many on each machine as were requested, if this machine can run them; otherwise one."""
    asked, nodes = request.processes or 1, nodes_of(request)
    if asked * nodes == 1:
        return Choice(1, "as requested" if request.processes else "one is the default")
    _require_support(machine, device, "nodes" if asked == 1 else "processes")
    if nodes > batch_size:
        raise RequestError(
            f"{nodes} machines cannot share a batch of {plural(batch_size, 'example')}",
            found="each machine needs at least one example per step",
            try_next=[set_to("nodes", batch_size), set_to("batch_size", nodes, note=_CHANGES_LEARNING)],
            setting="nodes",
        )
    most, most_of_batch = _limit(machine, device), batch_size // nodes
    fewer = min(most, most_of_batch)
    instead = set_to("processes", fewer) if fewer > 1 else leave_out("processes")
    if asked > most_of_batch and most_of_batch <= most:
        larger = [set_to("batch_size", asked * nodes, note=_CHANGES_LEARNING)] if asked <= most else []
        of_machines = f" on each of {nodes} machines" if nodes > 1 else ""
        raise RequestError(
            f"{asked} processes{of_machines} cannot share a batch of {plural(batch_size, 'example')}",
            found="each process needs at least one example per step",
            try_next=[instead, *larger],
            setting="processes",
        )
    if asked > most:
        noun = "GPU" if device == "cuda" else "core"
        other = [set_to("device", "cpu")] if device == "cuda" and cores_of(machine) >= asked else []
        raise MachineError(
            f"{asked} processes need {asked} {noun}s, and this machine has {most}",
            found=f"{plural(most, noun)}; each process needs its own",
            try_next=[instead, *other],
            setting="processes",
        )
    return Choice(asked, "as requested; each takes a part of every step" if asked > 1 else "one on each machine")


def cores_of(machine: MachineFacts) -> int:
    """Physical cores this process may use: two threads on one core are no faster than one."""
    allowed = machine.cpu_count or 1
    return min(allowed, machine.cpu_count_physical or allowed)


def cards_of(machine: MachineFacts) -> tuple[Gpu, ...]:
    """The GPUs that can each run one process."""
    return tuple(gpu for gpu in machine.gpus if gpu.kind in ("cuda", "rocm"))


def _limit(machine: MachineFacts, device: str) -> int:
    return len(cards_of(machine)) if device == "cuda" else machine.cpu_count or 1


def _require_support(machine: MachineFacts, device: str, setting: str) -> None:
    if device == "mps":
        raise MachineError(
            f"several {_PLURAL[setting]} are not supported on Apple GPUs",
            found="torch has no collective backend for MPS, so the processes could not add up their gradients",
            try_next=[leave_out(setting), set_to("device", "cpu")],
            setting=setting,
        )
    if machine.os not in ("linux", "macos", ""):
        raise MachineError(
            f"several {_PLURAL[setting]} are not supported on {machine.os}",
            found="they were only tested on Linux and macOS",
            try_next=[leave_out(setting)],
            setting=setting,
        )
