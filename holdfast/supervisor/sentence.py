"""Says in one sentence how an attempt ended and why, with the proof; or that it is unknown, and what was ruled out."""

import re
from pathlib import Path

from holdfast.core.evidence import Diagnosis, Evidence, Passage
from holdfast.core.text import human_bytes
from holdfast.supervisor.collect import read_collected

_MOST_CHARACTERS = 240
_KILLS = re.compile(r"oom_kill \+(?P<kills>\d+) in (?:cgroup (?P<group>\S+?)|(?P<system>the whole system)),")
# What other processes of a job say after one of them has failed.
_ECHO = re.compile(
    r"ChildFailedError|failed \(exitcode: |CalledProcessError|SignalException"
    r"|Connection (?:closed|reset) by peer|Broken pipe"
)
_VICTIM = r"^kernel log: .*Killed process (\d+) \(([^)]*)\).*anon-rss:(\d+)kB, file-rss:(\d+)kB"
_RANK_STANDS = r"^rank \d+ \(pid \d+\) (?:holds the others up: it |)(?:stands at|waits for the others in) "
_MOST_RANKS = 3
_LIMIT = re.compile(r"\blimit (?P<limit>[\d.]+ \w+)")


def one_sentence(attempt: Path, evidence: Evidence, diagnosis: Diagnosis) -> str:
    """The end of an attempt in one sentence."""
    seen = read_collected(attempt)
    where = _where(seen)
    how = f"{_how(evidence)}{where}"
    if diagnosis.slug == "unknown" and evidence.ended_well:
        return "ended with code 0, and nothing in its output is a known failure"
    if diagnosis.slug == "unknown":
        return _unknown(how, evidence)
    if diagnosis.slug == "host-oom" and (kill := evidence.samples.first(_KILLS.pattern)):
        return _memory_kill(kill.text, evidence, seen, where)
    is_sure = (
        diagnosis.confidence == "proven" or diagnosis.slug == "segfault-other"
    )  # which claims no more than it sees
    doubt = "" if is_sure else "probably "
    proof = "; ".join(filter(None, [_proof(diagnosis, evidence), _place(diagnosis, evidence)]))
    return f"{how}: {doubt}{diagnosis.title}" + (f" ({proof})" if proof else "")


def _how(evidence: Evidence) -> str:
    ending = next((passage.text for passage in evidence.exit), "")
    if ending == "hang":
        return "hung"
    if ending == "code 0":
        return "ended with code 0"
    return f"ended by {ending}" if ending.startswith("signal") else f"ended with {ending}" if ending else "ended"


def _where(seen: dict[str, object]) -> str:
    phase, step, steps = seen.get("phase"), seen.get("step"), seen.get("steps")
    if not phase:
        return ""
    of = f" of {steps}" if steps else ""
    return f" in phase {phase}" + (f" at step {step}{of}" if step else "")


def _memory_kill(line: str, evidence: Evidence, seen: dict[str, object], where: str) -> str:
    """The kernel's kill, with the numbers that prove it."""
    kills, limit = _KILLS.search(line), _LIMIT.search(line)
    count = int(kills["kills"]) if kills else 1
    told = [f"cgroup limit {limit['limit']}"] if limit else []
    counted = f"{count} OOM {'kill' if count == 1 else 'kills'} counted"
    told.append(counted + (" in the whole system" if kills and kills["system"] else ""))
    told.append(f"{_held(evidence, seen)}{where}".strip())
    return "killed by the kernel for memory: " + ", ".join(filter(None, told))


def _held(evidence: Evidence, seen: dict[str, object]) -> str:
    """What the victim held: by the kernel's own word where it may be read, else by our last look at the tree."""
    for match, _ in evidence.samples.search(_VICTIM):
        return f"resident {human_bytes(1024 * (int(match[3]) + int(match[4])))} of pid {match[1]} ({match[2]})"
    resident = seen.get("resident_bytes")
    return f"resident {human_bytes(resident)}" if isinstance(resident, int) and resident else ""


def _proof(diagnosis: Diagnosis, evidence: Evidence) -> str:
    """The strongest line, what was measured before what was printed; the title may say it already."""
    given_up = evidence.samples.first(r"^given up: ")
    if given_up and "holds the others up" in given_up.text:  # it names the rank; the stacks say it better
        return "" if evidence.samples.first(_RANK_STANDS) else _short(given_up.text.removeprefix("given up: "))
    passages: list[Passage] = sorted(diagnosis.because, key=lambda passage: passage.source != "sample")
    texts = [passage.text.strip() for passage in passages if passage.text.strip() not in ("hang", diagnosis.title)]
    if not texts or texts[0].startswith(("signal ", "code ")):
        return ""
    if texts[0].startswith("verdict "):
        return _short(given_up.text.removeprefix("given up: ") if given_up else texts[0].partition(": ")[2])
    return _short(texts[0])


def _place(diagnosis: Diagnosis, evidence: Evidence) -> str:
    """Where the program hung, or native code crashed, as far as the stack shows it."""
    if ranks := [passage.text for _, passage in evidence.samples.search(_RANK_STANDS)]:
        more = f"; and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
        return "; ".join(ranks[:_MOST_RANKS]) + more
    if own := evidence.samples.first(r"^(?:stands|crashed) at \S+:\d+"):
        return own.text
    if diagnosis.slug != "segfault-other":
        return ""
    crashed = [stack.frames[0] for stack in evidence.stacks if stack.crashed and stack.frames]
    if not crashed:
        return ""
    frame = crashed[-1]
    return f"in {frame.function}" + (f", {'/'.join(Path(frame.module).parts[-3:])}" if frame.module else "")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _MOST_CHARACTERS else flat[:_MOST_CHARACTERS] + " ..."


def _unknown(how: str, evidence: Evidence) -> str:
    """What is known although the cause is not: the error, or why the run was given up, and what was ruled out."""
    given_up = evidence.samples.first(r"^given up: ")
    errors = [passage.text for passage in evidence.errors if not _ECHO.search(passage.text)]
    errors = errors or [passage.text for passage in evidence.errors]
    told = f"; the last error was {_short(errors[-1])!r}" if errors else ""
    told = f" ({_short(given_up.text.removeprefix('given up: '))})" if given_up else told
    if first := evidence.samples.first(r"^rank \d+ .*(?:before the other ranks|while other ranks were at work)"):
        told += f"; {_short(first.text)}"
    ruled_out = what_was_ruled_out(evidence)
    return f"{how}: the cause is unknown{told}" + (f"; ruled out: {', '.join(ruled_out)}" if ruled_out else "")


def what_was_ruled_out(evidence: Evidence) -> list[str]:
    """What was asked and answered with no."""
    lines = evidence.samples.joined
    if not lines:
        return []
    ruled_out = []
    if re.search(r"^no OOM kill counted", lines, re.MULTILINE):
        ruled_out.append("a memory kill (none was counted)")
    if not re.search(r"ended by signal|ended by code", lines):
        ruled_out.append("a crash of another process of the run")
    if not re.search(r"^free space on (?!/dev/shm)", lines, re.MULTILINE):
        ruled_out.append("a full disk")
    if (verdict := re.search(r"^verdict (\w[\w ]*):", lines, re.MULTILINE)) and verdict[1] != "deadlock":
        ruled_out.append(f"a deadlock (it was {verdict[1]})")
    return ruled_out
