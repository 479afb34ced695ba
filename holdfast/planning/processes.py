"""How many processes share each step of a run, and what keeps a machine from it. Pure functions.

Each process takes its part of the same examples, and they add up their gradients: what is learned does not depend on
how many there are. On the CPU they share the cores, on cards each has its own.
"""

from collections.abc import Mapping

from holdfast.core.errors import MachineError, RequestError
from holdfast.core.facts import Gpu, MachineFacts
from holdfast.core.plan import Choice
from holdfast.core.request import TrainRequest, nodes_of
from holdfast.core.text import plural

# What depends on the number of processes; everything else of a plan stays when a run goes on with another number.
SHARED_SETTINGS = ("nodes", "processes", "threads", "shard", "micro_tokens", "gradient_checkpointing")


def choose_processes(request: TrainRequest, machine: MachineFacts, device: str, batch_size: int) -> Choice[int]:
    """As many of each machine as were asked for, where this one can have them; otherwise one."""
    asked, nodes = request.processes or 1, nodes_of(request)
    if asked * nodes == 1:
        return Choice(1, "as asked" if request.processes else "more were not asked for")
    _require_system(machine, device, f"--nodes {nodes}" if asked == 1 else f"--processes {asked}")
    if nodes > batch_size:
        raise RequestError(
            f"--nodes {nodes} is more than there are examples in a step",
            seen=f"a batch of {plural(batch_size, 'example')}; each machine needs at least one of them",
            try_next=(f"--nodes {batch_size}", f"--batch-size {nodes}, which changes what is learned"),
        )
    (most, what), most_of_batch = _most(machine, device), batch_size // nodes
    fewer = min(most, most_of_batch)
    instead = (f"--processes {fewer}",) if fewer > 1 else ("leave --processes out",)
    if asked > most_of_batch and most_of_batch <= most:
        of_machines = f" of {nodes} machines" if nodes > 1 else ""
        larger = (f"--batch-size {asked * nodes}, which changes what is learned",) if asked <= most else ()
        raise RequestError(
            f"--processes {asked} is more than there are examples in a step",
            seen=f"a batch of {plural(batch_size, 'example')}; each process{of_machines} needs at least one of them",
            try_next=(*instead, *larger),
        )
    if asked > most:
        other = ("--device cpu",) if device == "cuda" and cores_of(machine) >= asked else ()
        raise MachineError(
            f"--processes {asked} is more than this machine has {what}",
            seen=f"{plural(most, what.removesuffix('s'))}; each process takes one of its own",
            try_next=(*instead, *other),
        )
    return Choice(asked, "as asked; each takes a part of every step" if asked > 1 else "one on each machine")


def cores_of(machine: MachineFacts) -> int:
    """Cores that compute: two threads of one core do not get on faster than one."""
    allowed = machine.cpu_count or 1
    return min(allowed, machine.cpu_count_physical or allowed)


def cards_of(machine: MachineFacts) -> tuple[Gpu, ...]:
    """The cards that a process each may have."""
    return tuple(gpu for gpu in machine.gpus if gpu.kind in ("cuda", "rocm"))


def fewer_processes(settings: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Half as many processes with as many threads in all; nothing where there is one, or where none has all weights."""
    known = {**settings, **changes}
    count, threads = int(str(known.get("processes") or 1)), int(str(known.get("threads") or 1))
    if count < 2 or known.get("shard"):
        return {}
    is_lowered = threads < int(str(settings.get("threads") or 1))  # one thread was a remedy: it stays
    return {"processes": count // 2, "threads": threads if is_lowered else threads * count // (count // 2)}


def _most(machine: MachineFacts, device: str) -> tuple[int, str]:
    if device == "cuda":
        return len(cards_of(machine)), "cards"
    return machine.cpu_count or 1, "cores"


def _require_system(machine: MachineFacts, device: str, asked: str) -> None:
    option = asked.partition(" ")[0]
    if device == "mps":
        raise MachineError(
            f"{asked} cannot be had on Apple's GPU",
            seen="torch has no collective backend for MPS: its processes could not add up their gradients",
            try_next=(f"leave {option} out", "--device cpu"),
        )
    if machine.os not in ("linux", "macos", ""):
        raise MachineError(
            f"{asked} cannot be had on {machine.os}",
            seen="several processes were tried on Linux and macOS only",
            try_next=(f"leave {option} out",),
        )
