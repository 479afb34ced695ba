"""`holdfast serve`: the job service with its web page, on this machine."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from holdfast.core.env import service_variable
from holdfast.core.errors import MachineError

PORT = 8420
_PACKAGES = ("django", "ninja", "celery", "whitenoise", "uvicorn", "cryptography")


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any other address requires a password.",
)
@click.option("--port", type=click.IntRange(1, 65_535), default=PORT, show_default=True, help="Port to listen on.")
@click.option(
    "--runs-at-once",
    type=click.IntRange(0, 256),
    help="Maximum number of runs on this machine at a time; 0: only the page.",
)
@click.option(
    "--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder for everything the service keeps."
)
@click.option("--user", default="", metavar="NAME", help="Name of the first user; default: your name on this machine.")
@click.option("--no-browser", is_flag=True, help="Do not open the page.")
def serve(host: str, port: int, runs_at_once: int | None, home: Path | None, user: str, no_browser: bool) -> None:
    """Start the job service with its web page: upload datasets, start and watch runs, try models.

    Nothing else has to be installed or started. Press Ctrl-C to stop: running runs save, and the next start continues
    them.
    """
    click.echo("holdfast serve")
    sys.stdout.flush()
    if home:
        os.environ["HOLDFAST_HOME"] = str(home.expanduser().absolute())
    if runs_at_once is not None:
        os.environ["HOLDFAST_RUNS_AT_ONCE"] = str(runs_at_once)
    require_packages()

    from holdfast.service.child_process import set_up
    from holdfast.service.hosts import hosts_of

    os.environ["HOLDFAST_HOSTS"] = ",".join(hosts_of(host, service_variable("HOSTS").split(",")))
    set_up()
    from holdfast.service.local_service import Address
    from holdfast.service.local_service import serve as serve_pages

    serve_pages(Address(host=host, port=port), user=user, say=_say, open_page=None if no_browser else _open_page)


def require_packages() -> None:
    """Refuse when the service's packages are not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MachineError(
            "the packages of the job service are not installed",
            found=f"missing: {', '.join(missing)}",
            try_next=("pip install 'holdfast[serve]'",),
        )


def _say(words: str) -> None:
    click.echo(words)
    sys.stdout.flush()


def _open_page(url: str) -> None:
    """Open the page in a browser, if there is a display."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    import webbrowser

    webbrowser.open(url)
