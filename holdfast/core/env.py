"""The one reader of Holdfast's own environment variables."""

import os
import socket
import sys
from pathlib import Path

ATTEMPT_VARIABLE = "HOLDFAST_ATTEMPT"  # the folder of its attempt, in the environment of every process of it


def wants_color() -> bool:
    """Say whether the terminal's owner accepts colour (https://no-color.org)."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def cache_folder() -> Path:
    """Where Holdfast keeps what it can make or fetch again: models, prepared data, what was proven on this machine."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]).expanduser() / "holdfast"
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return home / "holdfast"


def state_folder() -> Path:
    """Where this user's machine keeps what Holdfast has learned (XDG_STATE_HOME; on a Mac its own folder)."""
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "holdfast"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "holdfast"
    return Path.home() / ".local" / "state" / "holdfast"


def node_name() -> str:
    """What this machine is called among those of a run (HOLDFAST_NODE); as Slurm calls it, or its host name."""
    return os.environ.get("HOLDFAST_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def node_address() -> str:
    """Where the other machines of a run reach this one (HOLDFAST_NODE_ADDRESS); empty: found out."""
    return os.environ.get("HOLDFAST_NODE_ADDRESS", "").strip()


def lease_seconds() -> float:
    """How long a supervisor may be silent before another machine takes its run over (HOLDFAST_NODE_LEASE_SECONDS)."""
    try:
        return max(5.0, float(os.environ.get("HOLDFAST_NODE_LEASE_SECONDS", "60")))
    except ValueError:
        return 60.0


def service_home() -> Path:
    """Where the job service keeps its database, datasets and runs (HOLDFAST_HOME)."""
    if given := os.environ.get("HOLDFAST_HOME"):
        return Path(given).expanduser().absolute()
    return state_folder() / "service"


def service_variable(name: str, default: str = "") -> str:
    """A setting of the job service, such as HOLDFAST_DATABASE_URL; docs/service.md lists them."""
    return os.environ.get(f"HOLDFAST_{name}", default)
