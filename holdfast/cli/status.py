"""`holdfast status`: where a run is, from its folder alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.core.artifacts import to_json

if TYPE_CHECKING:
    from holdfast.runs.state import RunState


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def status(folder: Path, as_json: bool) -> None:
    """Show the state of RUN: phase, step, loss, time left, and every attempt with its cause."""
    from holdfast.cli.screen import run_lines, width
    from holdfast.runs.state import read_request, read_state

    run = folder.resolve()
    read_request(run)
    state = read_state(run)
    if as_json:
        click.echo(to_json(status_fields(state)))
        return
    for line in run_lines(state, width()):
        click.echo(line)


def status_fields(state: "RunState") -> dict[str, object]:
    """What `status --json` prints. Fields may be added, but none renamed: programs read them."""
    from holdfast.runs.wording import cause_text, headline, machines_text

    attempts = [
        {
            "rung": attempt.remedy,
            "outcome": attempt.outcome,
            "diagnosis": cause_text(attempt) or None,
            "noticed_after_seconds": attempt.noticed_after_seconds,
            "step_reached": attempt.step,
            "slug": attempt.slug,
        }
        for attempt in state.attempts
    ]
    return {
        "state": state.state,
        "phase": state.phase,
        "step": state.step,
        "steps": state.steps,
        "loss": state.loss,
        "metrics": state.metrics,
        "eta_seconds": round(state.seconds_left, 1) if state.seconds_left is not None else None,
        "attempts": attempts,
        "processes": state.processes,
        "nodes": state.nodes,
        "here": machines_text(state.waiting) if state.waiting else "",
        "sentence": headline(state),
    }
