"""A Slurm cluster of two machines on this one: a key, munged, slurmctld and two slurmd of its own, all on loopback."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
_START_SECONDS, _LIMIT_SECONDS = 60.0, 400.0
_CONFIG = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=20
InactiveLimit=0
KillWait=60
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,requeue_delay=1
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing_tools() -> str:
    """What keeps a cluster from being started here; empty when nothing does."""
    lost = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lost:
        return f"not installed: {', '.join(lost)} (Debian: munge slurmctld slurmd slurm-client)"
    return "" if os.geteuid() == 0 else "slurmd wants to be root"


def own_programs() -> str:
    """The PATH on which `holdfast` and `torchrun` of this Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@dataclass
class Slurm:
    """The cluster, while it is up."""

    folder: Path
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self) -> None:
        """Start all of it and wait until both machines may be used."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        ports = _free_ports(3)
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(_CONFIG.format(host=host, folder=self.folder, ports=ports))
        (self.folder / "state").mkdir()
        places = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / place}" for name, place in places.items()]
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={key}", *options)
        self.wait_until(lambda: (self.folder / "munge.socket").exists(), "munged did not start")
        self._start("slurmctld", "slurmctld", "-D")
        for name in ("one", "two"):
            self.start_machine(name)
        self.wait_until(lambda: self.ask("sinfo", "-h", "-o", "%t %D").split() == ["idle", "2"], "no idle machines")

    def start_machine(self, name: str) -> None:
        """Start the daemon of one machine."""
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-N", name)

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which Slurm's commands speak to this cluster, and find our Python's programs."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": own_programs()}

    def ask(self, *command: str, **variables: str) -> str:
        """What a command of Slurm answers."""
        done = subprocess.run(
            command, env={**self.variables, **variables}, cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        return done.stdout + done.stderr

    def submit(self, script: Path, *words: str, options: tuple[str, ...] = (), **variables: str) -> str:
        """Put a job into the queue; give its number."""
        said = self.ask("sbatch", "--parsable", *options, str(script), *words, **variables)
        assert said.strip().isdigit(), said
        return said.strip()

    def state_of(self, job: str) -> str:
        """The state of a job: PENDING, RUNNING, COMPLETED, ..."""
        said = self.ask("scontrol", "show", "job", job, "--oneliner").split()
        return next((word.partition("=")[2] for word in said if word.startswith("JobState=")), "")

    def wait_until(self, happens: Callable[[], object], why: str, seconds: float = _LIMIT_SECONDS) -> None:
        """Wait for something to be true."""
        deadline = time.monotonic() + seconds
        while not happens():
            if time.monotonic() > deadline:
                logs = [
                    f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log")
                ]
                raise AssertionError("\n".join([why, *logs]))
            time.sleep(0.3)

    def close(self) -> None:
        """End the jobs and the daemons."""
        if "slurmctld" in self.daemons:
            self.ask("scancel", "--user=root")
            time.sleep(1)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=self.variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def _free_ports(count: int) -> list[int]:
    places = [socket.socket() for _ in range(count)]
    for place in places:
        place.bind(("127.0.0.1", 0))
    ports = [place.getsockname()[1] for place in places]
    for place in places:
        place.close()
    return ports
