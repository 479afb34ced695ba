"""The one reader of Holdfast's own environment variables."""

import os
import sys
from pathlib import Path


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
