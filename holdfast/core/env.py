"""The one reader of Holdfast's own environment variables."""

import os


def wants_color() -> bool:
    """Say whether the terminal's owner accepts colour (https://no-color.org)."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
