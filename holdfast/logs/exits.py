"""Finds how a process ended, from its exit status or from messages of shells, launchers and crash reports."""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from holdfast.core.observations import ExitStatus
from holdfast.logs.log_lines import Line

_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGBUS",  # macOS; on Linux 10 is SIGUSR1
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
# Windows ends a process with a status where other systems send a signal.
_WINDOWS_STATUS = {
    0xC0000005: "SIGSEGV",  # access violation
    0xC00000FD: "SIGSEGV",  # stack overflow
    0xC0000409: "SIGABRT",  # fail fast, also of abort()
    0xC0000374: "SIGABRT",  # heap corruption
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC000013A: "SIGINT",
}
_WORDS = (
    (r"segmentation fault|segfault|access violation|stack overflow", "SIGSEGV"),
    (r"\babort(?:ed)?\b", "SIGABRT"),
    (r"bus error", "SIGBUS"),
    (r"illegal (?:hardware )?instruction", "SIGILL"),
    (r"floating.point exception", "SIGFPE"),
    (r"oom.?killed|killed|out of memory", "SIGKILL"),
    (r"terminated", "SIGTERM"),
    (r"trace/bpt trap|trace trap", "SIGTRAP"),
)
_DEATH = (
    r"(?P<word>(?i:segmentation fault|abort(?:ed)?|bus error|illegal (?:hardware )?instruction|floating.point exception"
    r"|killed|terminated|trace trap|abort trap|trace/bpt trap))"
)

# Each captures a word, a signal's name, its number, or an exit code.
_TELLERS = (
    # zsh: segmentation fault  python x.py      [1]    24366 abort      python x.py
    re.compile(rf"^zsh: {_DEATH}\b"),
    re.compile(rf"^\[\d+\]\s+[+-]?\s*\d+ {_DEATH}\b"),
    # ./run.sh: line 2:  1581 Killed      python x.py
    re.compile(rf": line \d+:\s+\d+ {_DEATH}\b"),
    # Abort trap: 6      Segmentation fault (core dumped)      Killed      python x.py
    re.compile(rf"^\s*(?=[A-Z]){_DEATH}(?:: \d+)?(?:\s+\(core dumped\))?\s*(?:python\S* .*)?$"),
    re.compile(rf"(?=[A-Z]){_DEATH}(?:: \d+)? \(core dumped\)"),
    re.compile(rf"(?:Fatal Python error|\bSignal): {_DEATH}"),
    re.compile(rf"^(?:srun|slurmstepd): error: .*: {_DEATH}$|^srun: error: .*: (?P<oom>Out Of Memory)$"),
    re.compile(r"Windows fatal exception: (?P<word>access violation|stack overflow)"),
    re.compile(r"(?:EXCEPTION_|STATUS_)(?P<word>ACCESS_VIOLATION|STACK_OVERFLOW|ILLEGAL_INSTRUCTION)"),
    # terminated with signal SIGSEGV      exited with 'signal 6 (SIGABRT)'      died with <Signals.SIGKILL: 9>
    re.compile(
        r"(?i:received|sent|by|with|got|caught|on|due to|from|terminat\w+|exited|died|crash\w*|fatal|exit\w*)"
        r"[\s:'<(]+(?:(?:fatal )?[Ss]ignals?[\s:.]+)?(?:\d+ \()?(?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL|TRAP|HUP)\b)"
    ),
    re.compile(r"\*\*\* (?P<name>SIG[A-Z]+) (?:received|\()"),
    re.compile(r"\*\*\* (?:Process received signal|Signal) (?P<number>\d+)"),
    re.compile(r"(?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL))\b.{0,20}\b(?:received|was sent)"),
    re.compile(r"(?i:signal) (?P<number>\d+) \(SIG[A-Z]+\)"),
    re.compile(r"(?i:(?:by|with|on|caught|got|received|terminated|killed)) signal:? (?P<number>\d+)\b"),
    re.compile(r"^\s*Exception Type:\s+\w+ \((?P<name>SIG[A-Z]+)\)"),
    re.compile(r"Termination Reason:\s+Namespace SIGNAL, Code (?P<number>\d+)\b"),
    re.compile(r"stop reason = (?P<word>EXC_BAD_ACCESS|EXC_BAD_INSTRUCTION)"),
    re.compile(r"stop reason = signal (?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE|KILL))"),
    # exitcode: -9      exit code 139      exits with return code = -9      returncode=-11      exit status 0xC0000005
    re.compile(
        r"(?i:exit[ _]?(?:code|status)|return[ _]?code|exited with(?: code)?|finished with exit code)\s*[:=]?\s*\(?"
        r"(?P<code>-\d{1,2}|1[34]\d|24[157]|250|-?[123]\d{9}|0x[Cc]0[0-9A-Fa-f]{6})\b"
    ),
    re.compile(r"\b(?P<word>OOMKilled)\b(?!\W*(?:false|no\b))"),
    re.compile(r"Out of memory: (?P<word>Kill(?:ed)?) process"),
)
_ONE_OF = re.compile(
    r"(?i)sig[a-z]{3}|fault|abort|bus error|illegal|kill|floating|violation|overflow|code|status|terminat|reason|trap"
)
_NOT_THE_RUN = re.compile(
    r"DataLoader worker|potential root cause|(?i:sending|handler|ignor\w+|may|might|could|if you) "
)


_NAMES = "HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR1|USR2|SEGV|PIPE|ALRM|TERM|STKFLT|STOP|TSTP|XCPU|XFSZ|SYS|EMT"


def parse_exit_status(text: str) -> ExitStatus | None:
    """Understand how a process ended: a code, a signal by name, number or description, or "hang"; None when unclear."""
    status = text.strip()
    if name := re.search(rf"\bSIG({_NAMES})\b|^({_NAMES})$", status.upper()):
        return ExitStatus(signal=f"SIG{name[1] or name[2]}")
    if re.search(r"(?i)\b(?:hang|hung|hangs|timeout|timed out|stuck|frozen)\b", status):
        return ExitStatus(is_hang=True)
    if number := re.search(r"(?i)\bsignal:? (\d{1,2})\b", status):
        return ExitStatus(signal=_SIGNALS.get(int(number[1]), f"SIG{number[1]}"))
    if not re.search(r"(?i)code|status|exit", status) and (found := _described(status)):
        return found
    if code := re.search(r"(?<![\w.])(-?0x[0-9a-fA-F]{1,16}|-?\d{1,19})(?![\w.])", status):
        return exit_status(int(code[1], 16 if "x" in code[1] else 10))
    return None


def exit_status(code: int) -> ExitStatus:
    """What an exit code means: launchers, shells and Windows pass on a signal as a code."""
    if windows := _WINDOWS_STATUS.get(code & 0xFFFFFFFF if abs(code) > 0xFFFF else 0):
        return ExitStatus(signal=windows)
    # 245, 247 and 250 are -11, -9 and -6 after a launcher passed them to exit().
    for number in (-code, code - 128, 256 - code if code in (245, 247, 250) else 0):
        if number in _SIGNALS and code != -1:  # -1 is how programs say "failed", not a hang-up
            return ExitStatus(signal=_SIGNALS[number])
    return ExitStatus(code=code)


def find_exits(lines: Iterable[Line]) -> Iterator[ExitStatus]:
    """Each line in which a shell, a launcher or a crash report says which signal ended the run."""
    for number, line in lines:
        if len(line) > 2000 or not _ONE_OF.search(line):
            continue
        for teller in _TELLERS:
            if (match := teller.search(line)) and not _NOT_THE_RUN.search(line[: match.start() + 1]):
                found = _told(match.groupdict())
                if found and found.signal:
                    yield replace(found, line=number)
                    break


def _told(found: dict[str, str | None]) -> ExitStatus | None:
    if name := found.get("name"):
        return ExitStatus(signal=name)
    if number := found.get("number"):
        return ExitStatus(signal=_SIGNALS[int(number)]) if int(number) in _SIGNALS else None
    if code := found.get("code"):
        return exit_status(int(code, 16 if "x" in code else 10))
    return _described((found.get("word") or found.get("oom") or "").replace("_", " "))


def _described(text: str) -> ExitStatus | None:
    if "BAD ACCESS" in text:
        return ExitStatus(signal="SIGSEGV")
    if "BAD INSTRUCTION" in text:
        return ExitStatus(signal="SIGILL")
    for pattern, signal in _WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return ExitStatus(signal=signal)
    return ExitStatus(signal="SIGKILL") if text == "Kill" else None
