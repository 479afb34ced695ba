"""What a person sees of `train`: a line for each thing that is done, and below them, on a terminal, one that moves.

Where there is no terminal the moving part becomes a plain line now and then.
"""

import json
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.cli.output import put
from holdfast.core.artifacts import to_plain
from holdfast.core.env import wants_color
from holdfast.core.runfolder import attempt_folder
from holdfast.core.text import human_bytes, human_seconds, plural, processes_words
from holdfast.runs.follow import Follow, Followed
from holdfast.runs.live import spark_line
from holdfast.runs.status import processes_of
from holdfast.runs.view import changes_words, clean

_MOVES_EVERY_SECONDS = 0.2
_LINE_EVERY_SECONDS = 15.0
_SHOWN_AFTER_SECONDS = 0.5
_SPIN = "|/-\\"
_DEVICE = ("device", "precision", "threads")
_SHOWN_CHOICES = ("epochs", "batch_size", "lr", "max_length")
_BEST_FIRST = ("accuracy", "macro_f1", "micro_f1", "loss", "perplexity", "ndcg@10", "recall@1", "recall@10", "mrr@10")


class TrainView:
    """Shows a run's events."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False):
        self._verbose, self._quiet = verbose, quiet
        self._is_live = sys.stdout.isatty() and wants_color() and not quiet
        self._run: Path | None = None
        self._follow: Follow | None = None
        self._begun = time.monotonic()
        self._phase, self._phase_begun = "start", time.monotonic()
        self._drawn, self._drawn_at, self._told_at = 0, 0.0, time.monotonic()
        self._working: tuple[str, int, int | None] = ("", 0, None)
        self._working_begun = time.monotonic()
        self._attempt, self._peak_bytes, self._processes = 0, 0, 0
        self._state: dict[str, Any] = {}
        self._metrics_step, self._told_first_step, self._is_quiet = 0, 0, False
        self._full_since: int | None = None  # the step saved last when a full disk was told of
        self._lock, self._closed = threading.RLock(), threading.Event()
        if not quiet:
            # Clocks move also while nothing is heard; daemonic, so that it never keeps the command from ending.
            threading.Thread(target=self._tick, name="view", daemon=True).start()

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        """Show one event."""
        with self._lock:
            show = getattr(self, "_on_" + event.replace(" ", "_"), None)
            if show:
                show(details)
            self._draw()

    def say(self, text: str, mark: str = "[ok]", name: str = "") -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        with self._lock:
            self._erase()
            self._print(text, mark, name)

    def close(self) -> None:
        """Take the moving part away."""
        with self._lock:
            self._closed.set()
            self._erase()

    def _print(self, text: str, mark: str, name: str) -> None:
        width = max(38, min(_width(), 110))
        head = f"{mark:<4} {name:<10} " if name else f"{mark:<4} "
        indent = len(head) if width >= 60 else 5
        lines = textwrap.wrap(
            clean(text, 2000),
            width - 1,
            initial_indent=head,
            subsequent_indent=" " * indent,
            break_long_words=True,
            break_on_hyphens=False,
        )
        for line in lines:
            put(f"{line}\n")

    def _tick(self) -> None:
        while not self._closed.wait(_MOVES_EVERY_SECONDS):
            with self._lock:
                if not self._closed.is_set():
                    self._draw()

    # The walk

    def _on_run(self, details: Mapping[str, Any]) -> None:
        self._run = Path(details["folder"])
        self._follow = Follow(self._run)

    def _on_phase(self, details: Mapping[str, Any]) -> None:
        if details["phase"] != self._phase:
            self._phase, self._phase_begun = str(details["phase"]), time.monotonic()
            self._working = ("", 0, None)

    def _on_working(self, details: Mapping[str, Any]) -> None:
        what = str(details["what"])
        if what.partition(":")[0] != self._working[0].partition(":")[0]:
            self._working_begun = time.monotonic()
        self._working = (what, int(details["done"]), details["whole"])

    def _on_note(self, details: Mapping[str, Any]) -> None:
        self.say(str(details["words"]), "[..]", "note")

    def _on_surveyed(self, details: Mapping[str, Any]) -> None:
        splits = ", ".join(f"{name} {rows:,}" for name, rows in details["splits"].items())
        labels = f", {details['labels']:,} labels" if details["labels"] else ""
        self.say(f"{details['task']}, {details['form']}: {details['rows']:,} rows ({splits}){labels}", name="survey")
        for name, choice in details["choices"].items():
            if self._verbose or name in ("text column", "label column", "task"):
                self.say(f"{name}: {choice['value']}  ({choice['because']})", "", "")
        for warning in details["warnings"]:
            self.say(warning, "[!]", "survey")

    def _on_model(self, details: Mapping[str, Any]) -> None:
        weights = f", {details['parameters'] / 1e6:,.1f} million weights" if details["parameters"] else ""
        self.say(f"{details['name']}{weights}, from {details['source']}", name="model")

    def _on_finding(self, details: Mapping[str, Any]) -> None:
        if details["severity"] == "blocker" or self._verbose:
            self.say(f"{details['title']}: {details['seen']} [{details['slug']}]", "[!]", "machine")

    def _on_prepared(self, details: Mapping[str, Any]) -> None:
        splits = details.get("splits") or {}
        tokens = sum(about.get("tokens", 0) for about in splits.values() if isinstance(about, dict))
        how = "found ready" if details["is_reused"] else f"in {human_seconds(details['seconds'])}"
        self.say(f"{tokens:,} tokens, {how}" if tokens else f"ready, {how}", name="data")

    def _on_planned(self, details: Mapping[str, Any]) -> None:
        choices = details["choices"]
        self.say(_plan_words(choices), name="plan")
        shown = {*_SHOWN_CHOICES, *_DEVICE, "micro_tokens", "lora", "max_steps", "processes", "nodes"}
        shown |= {"shard"} if (choices.get("shard") or {}).get("value") else set()
        shown -= {"epochs"} if "max_steps" in choices else set()
        for name, choice in choices.items():
            if self._verbose or name in shown:
                self.say(f"{name} {choice['value']}: {choice['because']}", "", "")

    def _on_proof(self, details: Mapping[str, Any]) -> None:
        self.say(
            str(details["words"]), {"failed": "[!]", "skipped": "[--]"}.get(str(details.get("state")), "[ok]"), "prove"
        )

    def _on_forecast(self, details: Mapping[str, Any]) -> None:
        self.say(str(details["words"]), name="forecast")

    # The attempts

    def _on_attempt(self, details: Mapping[str, Any]) -> None:
        self._attempt = int(details["number"])
        if self._follow:
            self._follow.attempt(self._attempt)
        self._processes = 0
        if self._attempt > 1:
            rung = f"{details['rung']}; " if details.get("rung") else ""
            self.say(f"attempt {self._attempt}: {rung}{details['because']}", "[..]", "train")

    def _on_progress(self, details: Mapping[str, Any]) -> None:
        if details.get("step") != self._state.get("step") or details.get("phase") != self._state.get("phase"):
            self._is_quiet = False
        self._state = dict(details)
        if self._run and self._attempt and not self._processes:
            self._processes = processes_of(attempt_folder(self._run, self._attempt))
        self._peak_bytes = max(self._peak_bytes, int(details.get("resident_bytes") or 0))
        if self._follow:
            now = self._follow.look(int(details.get("step") or 0))
            self._tell_first_step(now)
            self._tell_metrics(now)

    def _on_remembered(self, details: Mapping[str, Any]) -> None:
        words = changes_words(details["changes"])
        self.say(
            f"finished here before with {words}; starting from that (holdfast memory --forget starts anew)",
            "[..]",
            "train",
        )

    def _on_quiet(self, details: Mapping[str, Any]) -> None:
        self._is_quiet = True
        words = f": {details['words']}" if details.get("words") else ""
        self.say(
            f"no step for {human_seconds(float(details['seconds']))} in phase {details['phase']}{words}",
            "[..]",
            "train",
        )

    def _on_ended(self, details: Mapping[str, Any]) -> None:
        self.say(
            f"attempt {self._attempt} {details['outcome']} at step {details['step']}: {details['sentence']}",
            "[!]",
            "train",
        )

    def _on_stopping(self, details: Mapping[str, Any]) -> None:
        self.say("stopping: saving first; Ctrl-C again ends at once", "[..]", "train")

    def _on_leftovers_ended(self, details: Mapping[str, Any]) -> None:
        self.say(str(details["words"]), "[..]", "train")

    def _on_waiting(self, details: Mapping[str, Any]) -> None:
        self.say(str(details["words"]), "[..]", "machines")

    _on_leader_gone = _on_storage = _on_waiting

    def _on_save_failed(self, details: Mapping[str, Any]) -> None:
        if details.get("is_full"):
            self._on_disk_full(details)

    def _on_disk_full(self, details: Mapping[str, Any]) -> None:
        """Told once, until something is saved again."""
        now = self._follow.look() if self._follow else Followed()
        saved = max(now.saved_step or 0, now.first_step or 0)
        if saved != self._full_since:
            self._full_since = saved
            since = f"nothing is saved since step {saved:,}" if saved else "nothing can be saved"
            self.say(f"the disk is full: {since}; make room", "[!]", "train")

    def _tell_first_step(self, now: Followed) -> None:
        if self._attempt > 1 and now.first_step is not None and self._told_first_step != self._attempt:
            self._told_first_step = self._attempt
            of = f"step {now.first_step:,} of {now.steps:,}"
            words = f"goes on from {of}" if now.first_step else "nothing had been saved: it goes on from the beginning"
            self.say(words, "[..]", "train")

    def _tell_metrics(self, now: Followed) -> None:
        if now.metrics and now.metrics_step > self._metrics_step:
            self._metrics_step = now.metrics_step
            epoch = f"epoch {now.metrics_step / now.epoch_steps:.3g}, " if now.epoch_steps else ""
            self.say(f"{epoch}step {now.metrics_step:,}: validation {metrics_words(now.metrics)}", name="train")

    # The moving part

    def _draw(self) -> None:
        now = time.monotonic()
        if self._quiet:
            return
        if not self._is_live:
            if now - self._told_at >= _LINE_EVERY_SECONDS and now - self._phase_begun >= 1:
                self._told_at = now
                for line in self._moving(10_000)[:1]:
                    put(f"{line}\n")
            return
        if now - self._drawn_at < _MOVES_EVERY_SECONDS or now - self._phase_begun < _SHOWN_AFTER_SECONDS:
            return
        self._drawn_at = now
        lines = self._moving(_width() - 1)
        self._erase()
        put("".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            put(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _moving(self, width: int) -> list[str]:
        spin = _SPIN[int(time.monotonic() * 4) % 4] if self._is_live else "."
        clock = human_seconds(time.monotonic() - self._phase_begun)
        if self._state and self._follow:
            return [line[:width] for line in self._training(width, spin)]
        what, done, whole = self._working
        line = f"[{spin}{spin}] {what or self._phase}"
        if what.startswith("downloading"):
            line += f": {done / 1e6:.1f}" + (f" of {whole / 1e6:.1f} MB" if whole else " MB")
        elif done or whole:
            line += f": {done:,}" + (f" of {whole:,}" if whole else "")
        line += f", {human_seconds(time.monotonic() - self._working_begun) if what else clock}"
        if whole and 0 < done < whole:
            line += f", about {human_seconds((time.monotonic() - self._working_begun) * (whole - done) / done)} left"
        return [line[:width]]

    def _training(self, width: int, spin: str) -> list[str]:
        assert self._follow
        now, phase = self._follow.now, str(self._state.get("phase", ""))
        clock = human_seconds(time.monotonic() - self._phase_begun)
        if phase in ("step", "first step") and now.steps:
            head = f"[{spin}{spin}] step {now.step:,} of {now.steps:,}"
        else:
            head = f"[{spin}{spin}] {phase or 'starting'}, {clock}" + (
                f", step {now.step:,} of {now.steps:,}" if now.steps else ""
            )
        parts = [f"loss {now.loss:.4g}"] if now.loss is not None else []
        left = now.seconds_left()
        if left is not None:
            parts.append(f"{human_seconds(left)} left")
        if self._state.get("resident_bytes"):
            parts.append(human_bytes(float(self._state["resident_bytes"])))
        if many := processes_words(self._processes):
            parts.append(many)
        lines = [", ".join([head, *parts])]
        if len(lines[0]) > width:
            lines = [head, "     " + ", ".join(parts)]
        if now.steps and self._is_live:
            room = max(10, min(60, width - 12))
            full = int(room * now.step / now.steps)
            lines.append("     " + "█" * full + "░" * (room - full) + f" {now.step / now.steps:4.0%}")
        if self._is_live:
            lines += self._below(now, width)
        return lines

    def _below(self, now: Followed, width: int) -> list[str]:
        """What is worth a second look: the curve of the loss, what is safe on disk, and what a quiet process does."""
        lines = []
        if curve := spark_line(now.losses, max(8, min(40, width - 12))):
            lines.append(f"     {curve} loss")
        safe = f"saved at step {now.saved_step:,}" if now.saved_step is not None else "nothing saved yet"
        attempt = f"attempt {self._attempt}, " if self._attempt > 1 else ""
        lines.append(f"     {attempt}{safe}, {human_seconds(time.monotonic() - self._begun)} in all")
        if self._is_quiet and self._state.get("words"):
            lines.append("     now: " + clean(self._state["words"], width - 10))
        return lines


class EventLines:
    """Prints each event as one line of JSON."""

    def __call__(self, event: str, details: Mapping[str, object]) -> None:
        """Print one event; moving figures are left out."""
        if event not in ("progress", "working", "turn"):
            plain = to_plain(details)
            assert isinstance(plain, dict)
            put(json.dumps({"event": event, "time": round(time.time(), 3), **plain}, ensure_ascii=False) + "\n")

    def say(self, text: str, mark: str = "", name: str = "") -> None:
        """Nothing but events is printed."""

    def close(self) -> None:
        """Nothing to take away."""


def metrics_words(metrics: Mapping[str, float]) -> str:
    """The metrics that say most, in a few words."""
    known = [name for name in _BEST_FIRST if name in metrics]
    names = known[:4] or list(metrics)[:4]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names)


def _plan_words(choices: Mapping[str, Any]) -> str:
    value = {name: choice["value"] for name, choice in choices.items()}
    threads = plural(int(value["threads"] or 1), "thread")
    parts = [str(value["device"]), str(value["precision"])]
    if many := processes_words(int(value.get("processes") or 1)):
        parts.append(f"{many} of {threads}" if value["device"] == "cpu" else many)
    elif value["device"] == "cpu":
        parts.append(threads)
    if nodes := value.get("nodes"):
        parts.append(f"on each of {nodes} machines")
    how = ", ".join(parts)
    lora = ", LoRA" if value.get("lora") else ""
    long = plural(int(value["max_steps"]), "step") if value.get("max_steps") else plural(int(value["epochs"]), "epoch")
    return f"{long}, batch {value['batch_size']}, lr {value['lr']:g}{lora}, on {how}"


def _width() -> int:
    return shutil.get_terminal_size().columns
