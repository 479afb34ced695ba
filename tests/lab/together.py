"""Two machines on one: supervisors with names of their own that share a run's folder, and scripts that meet."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from holdfast.core.event_log import read_events
from holdfast.core.events import Event
from holdfast.core.heartbeat import read_beat
from holdfast.core.notice import read_notice
from holdfast.core.records import LeaseNotice
from holdfast.core.runfolder import EVENTS, LEASES, NODES, NOTICE, attempt_folder, part_folder
from holdfast.runs.lease import newest_lease
from tests.lab.supervised import LIMIT_SECONDS, SCRIPTS, Supervised, hear_ctrl_c, weights

Found = TypeVar("Found")
Reported = TypeVar("Reported", bound=Event)
LEASE_SECONDS = 8


@dataclass
class Together:
    """A run of two machines, a and b."""

    folder: Path
    is_light: bool = True  # pair.py, which needs no torch; or ranks.py under torchrun
    nodes: int = 2
    wait_seconds: int = 600
    variables: dict[str, str] = field(default_factory=dict)
    machines: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    port: int = 0

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def start(self, name: str, *more: str) -> "subprocess.Popen[bytes]":
        """Start one machine's supervisor, with the same command on each, or more words of the script's."""
        options = ("--run", str(self.run), "--nodes", str(self.nodes), "--nodes-wait", str(self.wait_seconds))
        own = {"HOLDFAST_NODE": name, "HOLDFAST_NODE_LEASE_SECONDS": str(LEASE_SECONDS), "GLOO_SOCKET_IFNAME": "lo"}
        state = {"XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1"}
        self.machines[name] = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "run", *options, "--", *self._command(), *more],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / f"{name}.out").open("ab"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **state, **own, **self.variables},
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=hear_ctrl_c,
        )
        return self.machines[name]

    def _command(self) -> tuple[str, ...]:
        if self.is_light:
            return (sys.executable, str(SCRIPTS / "pair.py"), str(self.output), str(self.port))
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", "127.0.0.1")
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting)
        return (*torchrun, str(SCRIPTS / "ranks.py"), str(self.output))

    @property
    def has_learned_the_same(self) -> bool:
        """Whether the script ended with what one ends with that nothing happens to."""
        if self.is_light:
            return json.loads((self.output / "final.json").read_text()) == unbroken_total()
        return weights(self.output) == unbroken_weights()

    def start_both(self) -> None:
        """Start both machines; a leads."""
        before = newest_lease(self.run)
        self.start("a")
        self.wait_until(lambda: newest_lease(self.run) > before and self.leader, "nobody took the lead")
        self.start("b")

    def finish(self) -> Supervised:
        """Wait for every machine to end; all must say the same."""
        codes = {name: machine.wait(LIMIT_SECONDS) for name, machine in self.machines.items()}
        said = "\n".join(f"== {name}\n{self.said(name)}" for name in self.machines)
        assert len(set(codes.values())) == 1, f"{codes}\n{said}"
        return Supervised(run=self.run, exit_code=codes["a"], output=said)

    def close(self) -> None:
        """End what a failed test left."""
        for machine in self.machines.values():
            if machine.poll() is None:
                machine.kill()
                machine.wait()

    def said(self, name: str) -> str:
        """What one machine's supervisor has printed."""
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def reported(self, kind: type[Reported]) -> list[Reported]:
        """The events of one kind that any machine has reported."""
        files = (self.run / EVENTS, *sorted((self.run / NODES).glob(f"*/{EVENTS}")))
        return [event for file in files for event in read_events(file) if isinstance(event, kind)]

    def rank_of(self, name: str, step: int, attempt: int = 1) -> int:
        """Wait until a machine's rank has done that many steps; give its pid."""
        whole = attempt_folder(self.run, attempt)
        part = whole if self.leader == name else part_folder(whole, name)
        return self.wait_until(lambda: _stepping(part, step), f"step {step} of attempt {attempt} never came on {name}")

    @property
    def leader(self) -> str:
        """The machine that leads now."""
        notice = read_notice(max((self.run / LEASES).glob("*"), default=self.run) / NOTICE, LeaseNotice)
        return notice.said.node if notice else ""

    def wait_until(self, happens: Callable[[], Found], why: str) -> Found:
        """Wait for something to be true."""
        return wait_until(happens, lambda: "\n".join([why, *(self.said(name) for name in self.machines)]))


def wait_until(happens: Callable[[], Found], why: str | Callable[[], str]) -> Found:
    """Wait for something to be true."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if found := happens():
            return found
        time.sleep(0.02)
    raise AssertionError(why if isinstance(why, str) else why())


def _stepping(part: Path, step: int) -> int:
    for page in (part / "beats").glob("*"):
        beat = read_beat(page)
        if beat and beat.step >= step:
            return int(page.name)
    return 0


@cache
def unbroken_weights() -> str:
    """The weights of ranks.py that nothing happens to: both ranks' gradients added up, in one process."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        optimizer.zero_grad()
        for rank in (0, 1):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + rank))
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    state = model.state_dict()
    return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()


def unbroken_total() -> int:
    """What pair.py ends with that nothing happens to."""
    total = 0
    for step in range(60):
        total = (total * 31 + sum((step * 7919 + part * 104729) % 1_000_003 for part in (0, 1))) % 1_000_003
    return total
