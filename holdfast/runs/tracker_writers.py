"""How each tracker is written to. Each library is imported only by its own writer, in the follower's process."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

_PROJECT = "holdfast"


class Writer(Protocol):
    """A tracker that takes figures."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        """Open it for a run."""

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Take figures of a step, made at a time in seconds since 1970."""

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Take how the run ended and its last figures."""


class TensorBoard:
    """Event files in RUN/tensorboard, written with the tensorboard package alone: no torch, no TensorFlow."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        proto = "tensorboard.compat.proto"
        self._event = import_module(f"{proto}.event_pb2").Event
        self._summary = import_module(f"{proto}.summary_pb2").Summary
        writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self._file = writer(str(run / "tensorboard"))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Add scalars."""
        found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.add_event(self._event(wall_time=at, step=step, summary=self._summary(value=found)))

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Write what is left."""
        self._file.flush()
        self._file.close()


class MlFlow:
    """A run of the experiment "holdfast", where MLFLOW_TRACKING_URI says, or in MLflow's usual place."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow").MlflowClient()
        experiment = self._client.get_experiment_by_name(_PROJECT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(_PROJECT)
        self._run = self._client.create_run(number, run_name=run.name, tags={"holdfast.run": str(run)}).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        metric = self._entities.Metric
        found = [metric(_plain(name), value, int(at * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=found)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Log the last figures and how it ended."""
        for name, value in final.items():
            self._client.log_metric(self._run, _plain(name), value)
        status = {"finished": "FINISHED", "failed": "FAILED"}.get(state, "KILLED")
        self._client.set_terminated(self._run, status)


class WandB:
    """A run of the project "holdfast"; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._run = import_module("wandb").init(project=_PROJECT, name=run.name, dir=str(run), config=dict(settings))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        self._run.log(dict(values), step=step)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Add the last figures to the summary."""
        self._run.summary.update(dict(final))
        self._run.finish(exit_code=0 if state == "finished" else 1)


class Trackio:
    """A run of the project "holdfast", kept on this machine."""

    def __init__(self, run: Path, settings: Mapping[str, Any]):
        self._library: Any = import_module("trackio")
        self._library.init(project=_PROJECT, name=run.name, config=dict(settings))

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Log metrics."""
        self._library.log(dict(values), step=step)

    def close(self, state: str, final: Mapping[str, float]) -> None:
        """Log the last figures."""
        if final:
            self._library.log(dict(final))
        self._library.finish()


WRITERS: Mapping[str, type[Writer]] = {
    "tensorboard": TensorBoard,
    "mlflow": MlFlow,
    "wandb": WandB,
    "trackio": Trackio,
}


def _plain(name: str) -> str:
    """A name as MLflow allows it: recall@10 is recall_at_10."""
    return name.replace("@", "_at_")
