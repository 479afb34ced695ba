"""What ranks other than the first tell: nothing. The first tells what is the same for all."""

from holdfast.core.old_events import Events


class Silence(Events):
    """Takes events and keeps none."""

    def __init__(self) -> None:
        """No file is opened."""

    def write(self, event: str, **details: object) -> None:
        """Drop it."""
