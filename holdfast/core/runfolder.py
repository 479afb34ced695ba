"""The names of files and folders inside a run folder, and nothing else."""

from pathlib import Path

DOUBTFUL = "doubtful_labels.csv"  # rows whose label is probably wrong, on request
DROPPED = "dropped.csv"  # the rows of the data that are not used
REQUEST, MACHINE, DATASET, PLAN, DOCTOR = "request.json", "machine.json", "dataset.json", "plan.json", "doctor.json"
DETECTED, MODEL_FACTS = "detected.json", "model.json"
STAGES = "stages.json"  # what each artifact of the pipeline was made from
RESULT, METRICS, REPORT = "result.json", "metrics.json", "report.html"
PROOF, FORECAST = "proof.json", "forecast.json"
RESUME_CHECK = "resume_check.json"  # whether a killed run repeated its steps
MISJUDGED = "misjudged.json"  # examples that the finished model misclassifies
ABOUT_MODEL = "holdfast.json"  # in the model's folder: its inputs and outputs
SETTINGS, BEAT, EVENTS = "settings.json", "beat", "events.jsonl"
MANIFEST = "manifest.json"
SUPERVISOR, CHILD, OUTPUT, BEATS, STACKS = "supervisor.json", "child.json", "output.log", "beats", "stacks"
SAMPLES, EVIDENCE, DIAGNOSIS, DECISION = "samples.jsonl", "evidence.json", "diagnosis.json", "decision.json"
START, OUTCOME = "start.json", "outcome.json"  # what an attempt changed, written first; how it ended, written last
STOP = "stop"  # created in an attempt's folder when it should save and end
SUPERVISOR_LOG = "supervisor.log"  # written by a supervisor in the background
LEASES, NODES, NOTICE = (
    "leases",
    "nodes",
    "notice",
)  # of several machines: who leads, who takes part, their status
REFUSED = "refused.json"  # why the request, or the settings of an attempt, were refused: an error record


def attempt_folder(run: Path, number: int) -> Path:
    """The folder of one attempt, counted from 1."""
    return run / "attempts" / f"{number:02d}"


def part_folder(attempt: Path, node: str) -> Path:
    """The folder of another machine's part of an attempt, with the same file names."""
    return attempt / NODES / node


def run_of(attempt: Path) -> Path:
    """The run that owns the folder of an attempt, or of one machine's part of it."""
    return attempt.parents[3] if attempt.parent.name == NODES else attempt.parents[1]


def attempt_folders(run: Path) -> list[Path]:
    """The folders of all attempts, in order."""
    return sorted((run / "attempts").glob("[0-9]*"), key=lambda folder: int(folder.name))


def checkpoints_folder(run: Path) -> Path:
    """The folder of a run's checkpoints, shared by its attempts."""
    return run / "checkpoints"


def model_folder(run: Path) -> Path:
    """The folder of the finished model."""
    return run / "model"
