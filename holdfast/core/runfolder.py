"""The names inside a run folder, nothing else."""

from pathlib import Path

REQUEST, MACHINE, DATASET, PLAN, DOCTOR = "request.json", "machine.json", "dataset.json", "plan.json", "doctor.json"
RESULT, METRICS, REPORT = "result.json", "metrics.json", "report.html"
PROOF, FORECAST = "proof.json", "forecast.json"
RESUME_CHECK = "resume_check.json"  # whether a killed run repeated its steps
MISJUDGED = "misjudged.json"  # examples that the finished model gets wrong
ABOUT_MODEL = "holdfast.json"  # in the model's folder: what it takes and gives
SETTINGS, BEAT, EVENTS = "settings.json", "beat", "events.jsonl"
MANIFEST = "manifest.json"
SUPERVISOR, CHILD, OUTPUT, BEATS, STACKS = "supervisor.json", "child.json", "output.log", "beats", "stacks"
SAMPLES, EVIDENCE, DIAGNOSIS, DECISION = "samples.jsonl", "evidence.json", "diagnosis.json", "decision.json"
RUNG, OUTCOME = "rung.json", "outcome.json"  # what an attempt changed, written first; how it went, written last
STOP = "stop"  # in an attempt: made when it is to save and end
SUPERVISOR_LOG = "supervisor.log"  # written by a supervisor in the background
LEASES, NODES, NOTICE = "leases", "nodes", "notice"  # who leads a run, which machines take part, what each last said
REFUSED = "refused.json"  # why nothing can come of the request: what, seen, try_next, slug


def attempt_folder(run: Path, number: int) -> Path:
    """The folder of one attempt, counted from 1."""
    return run / "attempts" / f"{number:02d}"


def part_folder(attempt: Path, node: str) -> Path:
    """Where another machine than the one that leads keeps its part of an attempt; the same names are in it."""
    return attempt / NODES / node


def run_of(attempt: Path) -> Path:
    """The run that an attempt's folder, or one machine's part of it, belongs to."""
    return attempt.parents[3] if attempt.parent.name == NODES else attempt.parents[1]


def attempt_folders(run: Path) -> list[Path]:
    """The folders of all attempts, in their order."""
    return sorted((run / "attempts").glob("[0-9]*"), key=lambda folder: int(folder.name))


def checkpoints_folder(run: Path) -> Path:
    """Where a run's checkpoints lie, shared by its attempts."""
    return run / "checkpoints"


def model_folder(run: Path) -> Path:
    """Where the finished model lies."""
    return run / "model"
