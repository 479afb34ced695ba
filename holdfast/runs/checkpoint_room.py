"""Refuses a run whose checkpoints cannot fit on its disk, before anything is spent on it."""

from pathlib import Path

from holdfast.core.disk_space import room_at, room_words
from holdfast.core.errors import MachineError
from holdfast.core.runfolder import checkpoints_folder
from holdfast.core.text import human_bytes
from holdfast.planning.memory_model import checkpoint_bytes
from holdfast.planning.train_plan import TrainPlan


def require_room(run: Path, plan: TrainPlan) -> None:
    """Refuse where two checkpoints cannot fit, as the engine does once it has loaded all."""
    lora = plan.choices.get("lora")
    need = 2 * checkpoint_bytes(plan.model, lora=bool(lora and lora.value))
    if room_at(run).free_bytes >= need or checkpoints_folder(run).exists():
        return
    raise MachineError(
        f"the disk of {run} has no room for two checkpoints, so a full disk could end the run",
        seen=f"{room_words(run)}; two checkpoints need {human_bytes(need)}",
        try_next=("make room there", "--out FOLDER, on another disk"),
        slug="disk-full",
    )
