"""`holdfast jobs` against a small server on the loopback: what is sent, what is printed, and every failure in words."""

import io
import json
import ssl
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from holdfast.cli import server
from holdfast.cli.jobs import jobs
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError, RequestError
from holdfast.core.evidence import Cause
from holdfast.core.observations import ExitStatus
from holdfast.core.records import Result
from holdfast.runs.state import Records, fold
from holdfast.runs.state_values import from_snapshot, snapshot_fields

JOB = {
    "id": 7, "name": "bank", "owner": "ada", "team": None, "dataset": 3, "parent": None, "model": None, "settings": {},
    "goal": "model", "device": "", "priority": 0, "state": "running", "stop_asked": False, "worker": "studio",
    "task": "classify", "phase": "step", "step": 4, "steps": 20, "loss": 0.51234, "eta_seconds": 12.0, "attempts": 1,
    "metrics": {}, "sentence": "", "error": None, "run": None, "silent_since": None,
}  # fmt: skip
CAUSE = Cause(
    slug="openmp-duplicate", confidence="proven", title="two OpenMP runtimes", exit=ExitStatus(signal="SIGABRT")
)


def run_of(steps: int, *events: ev.Event, **known: object) -> dict:
    """A run as the server returns it, through JSON."""
    done = [ev.StepDone(step=at, loss=0.5, time=at * 2.0) for at in range(steps)]
    state = fold([ev.AttemptStarted(number=1), ev.TrainingStarted(first_step=0, steps=20), *done, *events])
    return json.loads(json.dumps(snapshot_fields(replace(state, **known))))


class Fake:
    """Answers each address with what was put there, in turn; remembers what was asked."""

    def __init__(self):
        self.answers, self.heard = {}, []
        fake = self

        class Listener(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                fake.heard.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
                found = fake.answers.get((self.command, self.path.partition("?")[0]), (404, {"error": PROBLEM}))
                status, body = (found.pop(0) if len(found) > 1 else found[0]) if isinstance(found, list) else found
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", "https://elsewhere.example/api/jobs")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = do_PUT = answer  # noqa: N815  (http.server's names)

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Listener)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def run(self, *arguments):
        return CliRunner().invoke(jobs, [*arguments], env={"HOLDFAST_SERVER": self.url, "HOLDFAST_TOKEN": "hfk_x"})


PROBLEM = {"what": "there is no run 7", "found": "", "try_next": [], "slug": ""}


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr("holdfast.cli.server._ASK_SECONDS", 0.01)
    monkeypatch.setattr("holdfast.cli.jobs._ASK_SECONDS", 0.01)
    made = Fake()
    yield made
    made.server.shutdown()
    made.server.server_close()


def failed(result):
    assert isinstance(result.exception, HoldfastError), result.exception
    return result.exception


def dataset(state, **more):
    return {"id": 3, "name": "bank", "state": state, "choices": {}, "problem": None, **more}


def test_submit_uploads_surveys_and_sends_given_settings(fake, tmp_path):
    file = tmp_path / 'odd "name".csv'
    file.write_bytes(b"a,b\n" * 1000)
    fake.answers = {
        ("GET", "/api/datasets"): (200, {"items": [], "next": None}),
        ("POST", "/api/datasets"): (201, dataset("surveying")),
        ("GET", "/api/datasets/3"): [(200, dataset("surveying")), (200, dataset("ready"))],
        ("POST", "/api/jobs"): (201, {**JOB, "state": "queued"}),
    }
    result = fake.run("submit", str(file), "--max-steps", "20", "--learning-rate", "1e-4", "--mining")
    assert result.exit_code == 0, result.output
    assert "jobs watch 7" in result.output
    _, _, headers, body = next(heard for heard in fake.heard if heard[:2] == ("POST", "/api/datasets"))
    assert headers["Authorization"] == "Bearer hfk_x"
    assert b"a,b\n" * 1000 in body
    assert b'filename="odd %22name%22.csv"' in body
    asked = json.loads(fake.heard[-1][3])
    assert asked["settings"] == {"max_steps": "20", "lr": "1e-4", "mining": True}
    assert (asked["dataset"], asked["goal"]) == (3, "model")


def test_a_known_file_is_not_uploaded_again(fake, tmp_path):
    (tmp_path / "bank.csv").write_text("a,b\n")
    fake.answers = {
        ("GET", "/api/datasets"): (200, {"items": [dataset("ready")], "next": None}),
        ("POST", "/api/jobs"): (201, JOB),
    }
    result = fake.run("submit", str(tmp_path / "bank.csv"), "--json")
    assert json.loads(result.output)["id"] == 7
    assert not [heard for heard in fake.heard if heard[:2] == ("POST", "/api/datasets")]


def test_a_refused_file_shows_the_surveys_error(fake, tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    problem = {"what": "this is an image", "found": "PNG", "try_next": ["a table"]}
    fake.answers = {
        ("GET", "/api/datasets"): (200, {"items": [], "next": None}),
        ("POST", "/api/datasets"): (201, dataset("refused", problem=problem)),
    }
    error = failed(fake.run("submit", str(tmp_path / "x.png")))
    assert (error.what, error.found, error.try_next) == (problem["what"], "PNG", ("a table",))


def test_snapshot_gives_the_same_run_state():
    ended = ev.AttemptEnded(number=1, outcome="died", slug="openmp-duplicate", step=4, cause=CAUSE)
    state = from_snapshot(run_of(4, ended, ev.AttemptStarted(number=2, fallback="one thread"), ev.Resumed(step=3)))
    assert (state.state, state.step, state.steps, state.loss) == ("training", 3, 20, 0.5)
    assert state.attempts[0].cause == CAUSE
    assert [(one.outcome, one.fallback) for one in state.attempts] == [("died", ""), ("running", "one thread")]
    assert state.attempts[1].resumed.step == 3
    assert from_snapshot(run_of(4)).seconds_left == 16 * 2.0


def test_watch_prints_each_change_then_the_cause(fake):
    ended = ev.AttemptEnded(number=1, outcome="died", slug="openmp-duplicate", step=9, cause=CAUSE)
    over = {"is_supervised": False, "records": Records(result=Result(state="failed", exit_code=4, slug=CAUSE.slug))}
    runs = [run_of(4), run_of(4), run_of(9), run_of(9, ended, **over)]
    states = [{**JOB, "run": run} for run in runs]
    states[-1]["state"] = "failed"
    fake.answers = {("GET", "/api/jobs/7"): [(200, state) for state in states]}
    result = fake.run("watch", "7")
    first, second, *rest = result.output.splitlines()
    assert [line.split("/20")[0].split()[-1] for line in (first, second)] == ["4", "9"]
    shown = "\n".join(rest)
    assert CAUSE.title in shown
    assert f"[{CAUSE.slug}]" in shown
    assert rest[-1].endswith("jobs logs 7")
    assert result.exit_code == 4


def test_watching_outlives_a_restart_of_the_server(fake, monkeypatch):
    monkeypatch.setattr(server.time, "sleep", lambda seconds: None)
    down = (503, {"error": {**PROBLEM, "what": "down"}})
    fake.answers = {
        ("GET", "/api/jobs/7"): [(200, JOB), down, down, (200, {**JOB, "state": "finished"})],
    }
    result = fake.run("watch", "7")
    assert result.exit_code == 0
    assert result.stderr.count("retrying") == 1
    assert "jobs download 7" in result.stdout


def test_a_model_is_unpacked_and_a_broken_download_leaves_nothing(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr("config.json", "{}")
        made.writestr("../outside", "no")
    fake.answers = {
        ("GET", "/api/jobs/7"): (200, {**JOB, "state": "finished"}),
        ("GET", "/api/jobs/7/model"): [(200, packed.getvalue()[:-30]), (200, packed.getvalue())],
    }
    assert "incomplete" in failed(fake.run("download", "7", "--to", "mine/model")).what
    assert sorted(tmp_path.rglob("*")) in ([], [tmp_path / "mine"])
    assert fake.run("download", "7", "--to", "mine/model").exit_code == 0
    assert (tmp_path / "mine" / "model" / "config.json").read_text() == "{}"
    assert not (tmp_path / "mine" / "outside").exists()
    assert not list(tmp_path.rglob(".*"))
    assert "already exists" in failed(fake.run("download", "7", "--to", "mine/model")).what


def test_the_servers_error_is_shown(fake):
    problem = {"what": "2 things cannot be used", "found": "--epochs 0\n--lr 5", "try_next": ["x"], "slug": ""}
    fake.answers = {("POST", "/api/jobs/7/resume"): (409, {"error": problem})}
    error = failed(fake.run("resume", "7"))
    assert (error.what, error.found, error.try_next) == (problem["what"], problem["found"], ("x",))
    assert failed(fake.run("show", "7")).what == PROBLEM["what"]


def test_token_redirect_and_foreign_server_errors_differ(fake):
    fake.answers = {("GET", "/api/jobs"): (401, {"error": PROBLEM})}
    refused = failed(fake.run("list"))
    assert "jobs token" in refused.try_next[0]
    assert fake.url in refused.found
    fake.answers = {("GET", "/api/jobs"): (302, b"")}
    error = failed(fake.run("list"))
    assert error.try_next == ("--server https://elsewhere.example",)
    assert len(fake.heard) == 2, "the token was not sent elsewhere"
    for strange in ((200, b"<html>"), (200, b"[]"), (500, b"<html>")):
        fake.answers = {("GET", "/api/jobs"): strange}
        foreign = failed(fake.run("list"))
        assert fake.url in foreign.what
        assert foreign.found
        assert foreign.try_next == ()


def test_an_unreachable_server_error_says_what_to_do():
    result = CliRunner().invoke(jobs, ["list", "--server", "http://127.0.0.1:9", "--token", "hfk_x"])
    error = failed(result)
    assert "http://127.0.0.1:9" in error.what
    assert "holdfast serve" in error.try_next
    assert error.exit_code == 3


def test_an_untrusted_certificate_is_reported(monkeypatch):
    reason = ssl.SSLCertVerificationError(1, "certificate verify failed")
    reason.verify_message = "self-signed certificate"
    error = server._unreachable(server.urllib.error.URLError(reason), "https://lab")
    assert "https://lab" in error.what
    assert error.found == "self-signed certificate"
    assert error.try_next[0].startswith("SSL_CERT_FILE=")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "https://user:pw@lab", "user:pw@lab"])
def test_an_invalid_address_is_refused(url):
    with pytest.raises(RequestError):
        server.find_server(url, "hfk_x")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("holdfast.lab", "https://holdfast.lab"),
        ("holdfast.lab:8420/", "https://holdfast.lab:8420"),
        ("localhost:8420", "http://localhost:8420"),
        (" 127.0.0.1:8420 ", "http://127.0.0.1:8420"),
        ("[::1]:8420", "http://[::1]:8420"),
        ("http://holdfast.lab", "http://holdfast.lab"),
    ],
)
def test_bare_server_names_get_a_scheme(monkeypatch, given, url):
    monkeypatch.setenv("HOLDFAST_SERVER", given)
    assert server.find_server(None, "hfk_x").url == url


def test_a_missing_token_error_says_where_to_get_one(monkeypatch):
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    with pytest.raises(RequestError) as caught:
        server.find_server("http://127.0.0.1:1", None)
    assert "jobs token" in caught.value.try_next[1]


def test_submit_has_no_path_options():
    text = CliRunner().invoke(jobs, ["submit", "--help"]).output
    assert "--max-steps" in text
    for name in ("--out ", "--from ", "--validation ", "--chat-template", "--report-to", "--offline"):
        assert name not in text


def test_the_command_line_loads_neither_django_nor_ninja():
    code = (
        "import sys, holdfast.cli.jobs; print([name for name in ('django', 'ninja', 'torch') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["token", "mine"], ["cleanup"]])
def test_service_commands_refuse_a_missing_service(words, tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    with pytest.raises(RequestError, match="no job service in") as refused:
        jobs.main([*words], standalone_mode=False)
    assert "--home FOLDER" in refused.value.try_next[0]
    assert not (tmp_path / "home").exists()
