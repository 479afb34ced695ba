"""`holdfast worker`: run jobs of the service on this machine."""

import os
import sys
from pathlib import Path

import click

from holdfast.cli.serve import require_packages
from holdfast.core.errors import RequestError


@click.command()
@click.option(
    "--slots", type=click.IntRange(1, 256), default=1, show_default=True, help="Maximum number of runs at a time."
)
@click.option(
    "--queues",
    default="",
    metavar="NAMES",
    help="Queues to take jobs from, comma-separated: any, cpu, cuda, mps; default: all that this machine supports.",
)
@click.option("--name", default="", metavar="NAME", help="Name on the page; default: the name of this machine.")
@click.option(
    "--home", type=click.Path(path_type=Path), metavar="FOLDER", help="Path of the service's folder on this machine."
)
def worker(slots: int, queues: str, name: str, home: Path | None) -> None:
    """Run jobs of the service on this machine until Ctrl-C.

    Set HOLDFAST_DATABASE_URL and HOLDFAST_BROKER_URL to the service's database and queue. HOLDFAST_HOME is the folder
    that all machines share; with HOLDFAST_STORE it is a local folder. On Ctrl-C, running runs save and return to the
    queue, and another worker continues them.
    """
    click.echo("holdfast worker")
    sys.stdout.flush()
    if home:
        os.environ["HOLDFAST_HOME"] = str(home.expanduser().absolute())
    require_packages()
    if not os.environ.get("HOLDFAST_BROKER_URL"):
        raise RequestError(
            "HOLDFAST_BROKER_URL is not set, so there is no queue to take jobs from",
            found="on a single machine, `holdfast serve` runs jobs itself",
            try_next=("HOLDFAST_BROKER_URL=redis://HOST:6379/0 holdfast worker", "read docs/service.md"),
        )
    from holdfast.service.child_process import set_up

    set_up()
    from holdfast.service.celery_worker import work

    work(
        slots=slots, queues=tuple(part.strip() for part in queues.split(",") if part.strip()), name=name, say=click.echo
    )
