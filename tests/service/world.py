"""A small world for tests: four users, a team, and one of everything, with a run folder."""

from dataclasses import dataclass, field

from django.contrib.auth.models import Group, User
from django.test import Client

from holdfast.core import events as ev
from holdfast.core.artifacts import write_artifact
from holdfast.core.evidence import Cause, Diagnosis, Passage
from holdfast.core.plan import Remedy
from holdfast.core.records import AttemptStart, Outcome, Result, write_record
from holdfast.service.jobs.api_tokens import make_token
from holdfast.service.jobs.models import ApiToken, Dataset, Hook, Job, Secret, TrainedModel, Worker
from holdfast.service.jobs.notices import make_hook
from holdfast.service.jobs.secrets import keep_secret
from tests.service.folders import log, write_plan

PASSWORD = "a long enough one"
HUB_TOKEN = "hf_" + "Zq3" * 11
TRACKER_KEY = "f00dfeed" * 5


@dataclass
class World:
    """Ada owns everything, Bob is in her team, Eve is a stranger, Root is the admin."""

    ada: User
    bob: User
    eve: User
    root: User
    team: Group
    dataset: Dataset
    job: Job
    model: TrainedModel
    hook: Hook
    secret: Secret
    token: ApiToken
    worker: Worker
    texts: dict[str, str] = field(default_factory=dict)  # of tokens, by name

    def client(self, name, *, scope="admin"):
        """A client that shows a person's token."""
        key = f"{name} {scope}" if scope != "admin" else name
        if key not in self.texts:
            _, self.texts[key] = make_token(getattr(self, name), key, scope=scope)
        return Client(headers={"Authorization": f"Bearer {self.texts[key]}"})


def make_world():
    ada, bob, eve = (User.objects.create_user(name, f"{name}@example.org", PASSWORD) for name in ("ada", "bob", "eve"))
    root = User.objects.create_superuser("root", "root@example.org", PASSWORD)
    team = Group.objects.create(name="lab")
    ada.groups.add(team)
    bob.groups.add(team)
    worker = Worker.objects.create(name="studio", host="studio", devices=["cpu"], checkup={"findings": [{"slug": "x"}]})
    dataset = Dataset.objects.create(
        owner=ada, team=team, name="bank", file_name="bank.csv", state="ready", facts={"rows": 20}, size_bytes=20
    )
    dataset.path.parent.mkdir(parents=True)
    dataset.path.write_text("question,intent\n" + "why,card\nhow,cash\n" * 10)
    job = Job.objects.create(
        owner=ada, team=team, name="bank", dataset=dataset, state="finished", goal="model", task="classify", attempts=2,
        request={"task": "classify", "epochs": 1}, metrics={"test": {"accuracy": 0.9}}, step=4, steps=4, worker=worker,
    )  # fmt: skip
    write_run(job.folder)
    model = TrainedModel.objects.create(
        owner=ada, team=team, job=job, name="bank", task="classify", metrics={"test": {"accuracy": 0.9}}
    )
    hook = make_hook(ada, "webhook", "https://example.org/hook")
    keep_secret(ada, "WANDB_API_KEY", TRACKER_KEY)
    secret = keep_secret(ada, "HF_TOKEN", HUB_TOKEN)
    token, text = make_token(ada, "laptop", scope="admin")
    return World(ada, bob, eve, root, team, dataset, job, model, hook, secret, token, worker, {"ada": text})


def write_run(run):
    """A run that failed once, was helped, and finished."""
    run.mkdir(parents=True)
    write_artifact(run, "request.json", {"kind": "train", "data": "/somewhere/bank.csv"})
    write_plan(run)
    write_artifact(run, "metrics.json", {"test": {"accuracy": 0.9}, "validation": {"accuracy": float("nan")}})
    write_record(run, Result(state="finished", exit_code=0, attempts=2, seconds=3.0))
    log(run / "events.jsonl", ev.StorageTrouble(error=f"with {HUB_TOKEN}"))
    attempt(run, 1, "died", 2)
    attempt(run, 2, "finished", 4)
    diagnosis = Diagnosis(
        slug="openmp-duplicate",
        title="two OpenMP runtimes",
        confidence="proven",
        because=(Passage("log", 3, f"OMP: Error #15 {HUB_TOKEN}"),),
        remedies=(Remedy("one thread", {"threads": 1}),),
    )
    write_record(run / "attempts" / "01", diagnosis)
    (run / "attempts" / "01" / "stacks").mkdir()
    (run / "attempts" / "01" / "stacks" / "python-77.txt").write_text("Thread 1\n  File loop.py, line 3\n")
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    (run / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 8000)


def attempt(run, number, outcome, reached):
    folder = run / "attempts" / f"{number:02d}"
    folder.mkdir(parents=True)
    remedy = "one thread" if number > 1 else ""
    write_record(folder, AttemptStart(number=number, fallback=remedy, started=1.7e9))
    known = {"fallback": remedy, "step_reached": reached, "started": 1.7e9, "seconds": 1.5}
    if outcome == "died":
        said = Passage("log", 2, f"HF_TOKEN={HUB_TOKEN}")
        cause = Cause(slug="openmp-duplicate", confidence="proven", title="two OpenMP runtimes", proof=said)
        known |= {"cause": cause, "diagnosis": "openmp-duplicate"}
    write_record(folder, Outcome(number=number, outcome=outcome, **known))
    log(
        folder / "events.jsonl",
        *(ev.StepDone(time=2.0 + step, step=step, loss=1 / (step + 1)) for step in range(reached)),
        ev.Evaluated(time=9.0, step=reached, metrics={"f1": 0.5}),
    )
    (folder / "output.log").write_text(f"loading\nWANDB_API_KEY={TRACKER_KEY}\nlogged in with {HUB_TOKEN}\nstep 1\n")
