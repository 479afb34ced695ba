"""The one reader of Holdfast's own environment variables."""

import os
import socket
import sys
from pathlib import Path

ATTEMPT_VARIABLE = "HOLDFAST_ATTEMPT"  # set to the attempt's folder in all of its processes


def wants_color() -> bool:
    """Whether the user accepts color in the terminal (https://no-color.org)."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def cache_folder() -> Path:
    """The folder for files that Holdfast can download or make again: models, prepared data, proofs on this machine."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]).expanduser() / "holdfast"
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return home / "holdfast"


def private_models_folder() -> Path | None:
    """The folder for hub models that only one user's token can fetch (HOLDFAST_PRIVATE_MODELS).

    The job service gives each user a separate one, and shares only what the hub gives to anyone. None: one user.
    """
    given = os.environ.get("HOLDFAST_PRIVATE_MODELS")
    return Path(given) if given else None


def state_folder() -> Path:
    """The folder for what Holdfast has learned on this machine (XDG_STATE_HOME, or its equivalent on a Mac)."""
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "holdfast"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "holdfast"
    return Path.home() / ".local" / "state" / "holdfast"


def node_name() -> str:
    """The name of this machine among those of a run: HOLDFAST_NODE, else Slurm's name for it, else its host name."""
    return given_node_name() or socket.gethostname()


def given_node_name() -> str:
    """The name that HOLDFAST_NODE or Slurm gives this machine; empty without one."""
    return os.environ.get("HOLDFAST_NODE") or os.environ.get("SLURMD_NODENAME") or ""


def node_address() -> str:
    """The address at which other machines reach this one (HOLDFAST_NODE_ADDRESS); empty to detect it."""
    return os.environ.get("HOLDFAST_NODE_ADDRESS", "").strip()


def lease_seconds() -> float:
    """How long a supervisor may be silent before another machine takes over its run (HOLDFAST_NODE_LEASE_SECONDS)."""
    try:
        return max(5.0, float(os.environ.get("HOLDFAST_NODE_LEASE_SECONDS", "60")))
    except ValueError:
        return 60.0


def service_home() -> Path:
    """The folder of the job service: database, datasets and runs (HOLDFAST_HOME)."""
    if given := os.environ.get("HOLDFAST_HOME"):
        return Path(given).expanduser().absolute()
    return state_folder() / "service"


def service_variable(name: str, default: str = "") -> str:
    """A setting of the job service, such as HOLDFAST_DATABASE_URL; docs/service.md lists them."""
    return os.environ.get(f"HOLDFAST_{name}", default)
