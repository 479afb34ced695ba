"""Runs the stages of a preparation in their order, and skips those whose artifact was made from the same inputs."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from holdfast.core.artifacts import to_plain
from holdfast.core.disk_space import room_at, room_words
from holdfast.core.errors import HoldfastError, MachineError
from holdfast.core.event_log import EventSink
from holdfast.core.events import Planned, StageName, StageStarted
from holdfast.core.facts import DatasetFacts, MachineFacts, ModelFacts
from holdfast.core.prepared import Manifest
from holdfast.core.records import (
    DetectedData,
    Proof,
    RunPlan,
    StagesDone,
    read_data_sha256,
    read_record,
    require_record,
    write_record,
    write_request,
)
from holdfast.core.run_memory import fingerprint_of
from holdfast.core.runfolder import PROOF, attempt_folders, checkpoints_folder
from holdfast.core.settings import SETTINGS, TrainRequest, names_with, nodes_of
from holdfast.core.text import human_bytes
from holdfast.data.amounts import amounts_of
from holdfast.data.data_request import data_request
from holdfast.data.shards import read_manifest
from holdfast.data.sources import Source
from holdfast.machine.probe import ask_this_machine
from holdfast.machine.resources import probe_memory_free_bytes
from holdfast.models.resolve import require_model
from holdfast.pipeline import choices, inputs
from holdfast.pipeline.forecast import write_rough_forecast
from holdfast.pipeline.memory_model import checkpoint_bytes
from holdfast.pipeline.prove import ProofRuns, prove
from holdfast.pipeline.train_plan import keep_learning, make_plan, require_possible

T = TypeVar("T")
# A preset only fills in other settings, and where a run is or how long it waits changes nothing in its plan.
_NOT_PLANNED = frozenset({"preset", *(names_with("own") - {"nodes"})})


def prepare_run(run: Path, request: TrainRequest, report: EventSink, processes: ProofRuns) -> RunPlan:
    """Bring a run to where it can be trained; what is already there and still true costs nothing."""
    return _Preparation(run, request, report, processes).run()


class _Preparation:
    """The stages of one run."""

    def __init__(self, run: Path, request: TrainRequest, report: EventSink, processes: ProofRuns):
        self._run, self._request, self._report, self._processes = run, request, report, processes
        self._prepared = run / "prepared"
        self._machine_here = fingerprint_of()
        self._done = dict((read_record(run, StagesDone) or StagesDone()).inputs)
        self._attempts = attempt_folders(run)
        # What a run has begun to learn must not change: its data is not read again, and its plan keeps what is learned.
        self._earlier = read_record(run, RunPlan) if self._attempts else None
        self._has_begun = self._earlier is not None and read_manifest(self._prepared) is not None
        self._source: Source | None = None

    def run(self) -> RunPlan:
        """Run every stage that is not done yet."""
        with self._machine() as machine:
            data = self._detect()
            model = self._model(data)
            facts = machine()
        dataset, manifest = self._prepare(facts, data, model)
        plan = self._plan(facts, dataset, model, manifest)
        self._prove(plan, facts)
        return plan

    def _stage(
        self,
        name: StageName,
        given: object,
        read: Callable[[], T | None],
        make: Callable[[], T],
        subject: str | None = "",
    ) -> T:
        """The artifact of a stage, made unless it is there from the same inputs; with no subject it reports itself."""
        stamp = _hash(given)
        if self._done.get(name) == stamp and (found := read()) is not None:
            return found
        self._keep(name, None)  # from here on the artifact may be that of neither input
        if subject is not None:
            self._report(StageStarted(stage=name, subject=subject))
        self._processes.warm_up()
        made = make()
        self._keep(name, stamp)
        return made

    def _keep(self, name: str, stamp: str | None) -> None:
        if self._done.get(name) != stamp:
            self._done = {one: known for one, known in {**self._done, name: stamp}.items() if known}
            write_record(self._run, StagesDone(inputs=self._done))

    @contextmanager
    def _machine(self) -> Iterator[Callable[[], MachineFacts]]:
        """The facts of the machine, which are asked for while the data is read."""
        plan_of_it = ("device", "precision", "threads", "processes", "compile")
        given = (self._machine_here, [getattr(self._request, name) for name in plan_of_it])
        known = read_record(self._run, MachineFacts) if self._done.get("machine") == _hash(given) else None
        if known is not None:
            # Everything else about the machine is in the inputs of this stage.
            now = replace(known, memory_free_bytes=probe_memory_free_bytes().value)
            yield lambda: now
            return
        probes = ask_this_machine(0.0)  # devices are tried later, where there are any
        try:
            yield lambda: self._stage(
                "machine",
                given,
                lambda: None,
                lambda: inputs.read_machine(self._run, self._request, probes, self._report),
            )
        finally:
            probes.close()

    def _detect(self) -> DetectedData:
        if self._has_begun and (known := read_record(self._run, DetectedData)):
            return known
        request = self._request
        if request.model and "model" not in self._done:  # a wrong name is found before the data is read
            self._report(StageStarted(stage="model", subject=request.model))
            require_model(request.model, inputs.shown_by(self._report), offline=request.offline)
        paths = (request.data, request.validation, request.test, request.negatives)

        def make() -> DetectedData:
            self._opened()
            return require_record(self._run, DetectedData)

        return self._stage(
            "detect",
            (asdict(data_request(request)), [inputs.stamps_in(path) for path in paths]),
            lambda: inputs.unchanged(read_record(self._run, DetectedData)),
            make,
            request.data,
        )

    def _opened(self) -> Source:
        """The data with its columns found; found again where only its tokens are missing."""
        if self._source is None:
            self._source = inputs.detect_data(self._run, self._request, self._report)
        return self._source

    def _model(self, data: DetectedData) -> ModelFacts:
        if self._has_begun and self._earlier:
            return self._earlier.model
        name = inputs.model_name(self._request, data)

        def read() -> ModelFacts | None:
            known = read_record(self._run, ModelFacts)
            return known if known and (not known.folder or Path(known.folder).is_dir()) else None

        return self._stage(
            "model",
            (name, data.task, self._request.lora),
            read,
            lambda: inputs.take_model(self._run, self._request, data, self._report),
            name or "vectors",
        )

    def _prepare(self, machine: MachineFacts, data: DetectedData, model: ModelFacts) -> tuple[DatasetFacts, Manifest]:
        def read() -> tuple[DatasetFacts, Manifest] | None:
            facts, manifest = read_record(self._run, DatasetFacts), read_manifest(self._prepared)
            return (facts, manifest) if facts and manifest else None

        def make() -> tuple[DatasetFacts, Manifest]:
            require_possible(self._request, machine, data.task, model)
            return inputs.prepare_data(self._run, self._request, self._opened(), model, self._report)

        if self._has_begun and (known := read()):
            return known
        options = asdict(inputs.prepare_options(self._request))
        given = (self._done.get("detect"), data, (model.name, model.folder, self._request.preset), options)
        return self._stage("prepare", given, read, make)

    def _plan(self, machine: MachineFacts, dataset: DatasetFacts, model: ModelFacts, manifest: Manifest) -> RunPlan:
        request = self._request
        planned = {
            name: getattr(request, name)
            for name, one in SETTINGS.items()
            if one.affects != "data" and name not in _NOT_PLANNED
        }
        given = (planned, self._machine_here, model, dataset, manifest.fingerprint, str(self._run))
        try:
            return self._stage(
                "plan",
                given,
                lambda: read_record(self._run, RunPlan),
                lambda: self._make_plan(machine, dataset, model, manifest),
            )
        except HoldfastError:
            earlier = self._earlier
            if earlier and (earlier.processes, earlier.nodes) != (request.processes or 1, nodes_of(request)):
                # The refused number of processes must not come back with the next resume.
                kept = replace(request, processes=earlier.processes, nodes=earlier.nodes)
                write_request(self._run, kept, data_sha256=read_data_sha256(self._run))
            raise

    def _make_plan(
        self, machine: MachineFacts, dataset: DatasetFacts, model: ModelFacts, manifest: Manifest
    ) -> RunPlan:
        batch_size = choices.choose_batch_size(self._request, dataset)
        amounts = amounts_of(self._prepared, batch_size.value)
        plan = make_plan(self._request, self._run, machine, dataset, model, amounts, manifest.choices)
        if self._earlier:
            plan = self._continued(self._earlier, plan)
        require_room(self._run, plan)
        write_record(self._run, plan)
        self._report(Planned(task=plan.task, choices=plan.choices))
        return plan

    def _continued(self, earlier: RunPlan, plan: RunPlan) -> RunPlan:
        """The plan of a run that has begun. Proof holds on the machine where it was made."""
        proof = read_record(self._run, Proof)
        is_same_machine = proof is not None and proof.fingerprint == self._machine_here
        if not is_same_machine:
            (self._run / PROOF).unlink(missing_ok=True)
        if not is_same_machine or (earlier.processes, earlier.nodes) != (plan.processes, plan.nodes):
            write_rough_forecast(self._run, plan, None)  # it is measured again
        return keep_learning(earlier, plan, int(self._attempts[-1].name), is_same_machine=is_same_machine)

    def _prove(self, plan: RunPlan, machine: MachineFacts) -> None:
        if self._attempts:
            return

        def make() -> Proof:
            return prove(self._run, self._request, plan, machine, self._report, self._processes)

        given = (plan.settings, self._machine_here, self._request.prove)
        self._stage("prove", given, lambda: read_record(self._run, Proof), make, None)


def require_room(run: Path, plan: RunPlan) -> None:
    """Refuse where two checkpoints cannot fit, as the engine does once it has loaded all."""
    lora = plan.choices.get("lora")
    need = 2 * checkpoint_bytes(plan.model, lora=bool(lora and lora.value))
    if room_at(run).free_bytes >= need or checkpoints_folder(run).exists():
        return
    raise MachineError(
        f"the disk of {run} has no space for two checkpoints, so a full disk could end the run",
        found=f"{room_words(run)}; two checkpoints need {human_bytes(need)}",
        try_next=("make room there", "--out FOLDER, on another disk"),
        slug="disk-full",
    )


def _hash(given: Any) -> str:
    return hashlib.sha256(json.dumps(to_plain(given), sort_keys=True, default=str).encode()).hexdigest()[:16]
