"""Reads stack reports into frames: Python tracebacks and faulthandler, py-spy, gdb, lldb, torch's own, macOS crash
reports (text and `.ips`) and `sample`.
"""

import re
from collections.abc import Iterator

from holdfast.core.evidence import Frame, Stack

_ADDRESS = r"0x[0-9a-fA-F]+"
_SHAPES = (
    # File "trainer.py", line 12, in evaluate      (tracebacks; faulthandler leaves out the comma)
    re.compile(r'File "(?P<module>[^"]+)", line \d+,? in (?P<function>.+)$'),
    # 0   libomp.dylib   0x0000000112233445 __kmp_suspend_64 + 120      (macOS crash report)
    re.compile(rf"^\s*\d+\s+(?P<module>\S+)\s+(?P<address>{_ADDRESS})\s+(?P<function>.+?)(?: \+ \d+)?(?: \(.*\))?$"),
    # frame #0: 0x00000001 libomp.dylib`__kmp_suspend_64(...) + 8      (lldb)
    re.compile(
        rf"frame #\d+:\s+(?P<address>{_ADDRESS})\s+(?P<module>[^\s`]+)`(?P<function>.+?)(?: \+ \d+)?(?: at .*)?$"
    ),
    # frame #3: c10::Error::Error(...) + 0x4b (0x7f.. in /lib/libc10.so)      (torch)
    re.compile(rf"frame #\d+:\s+(?P<function>.+?)\s+\((?P<address>{_ADDRESS}) in (?P<module>[^)]+)\)"),
    # #1  0x00007f in GOMP_parallel () from /lib/libgomp.so.1      (gdb)
    re.compile(
        rf"^\s*#\d+\s+(?:(?P<address>{_ADDRESS}) in )?(?P<function>[^\s(][^(]*?)\s*\(.*?\)(?:.*?(?: from | at )(?P<module>\S+))?$"
    ),
    # + 2345 __psynch_cvwait  (in libsystem_kernel.dylib) + 8  [0x1a2b3c]      (sample)
    re.compile(
        rf"^[\s+!:|]*\d+\s+(?P<function>.+?)\s+\(in (?P<module>[^)]+)\)(?: \+ [\d,.]+)?(?:\s+\[(?P<address>{_ADDRESS}).*\])?"
    ),
    # wait (multiprocessing/connection.py:931)      (py-spy)
    re.compile(r"^\s+(?P<function>[\w.<>:~ ]+?) \((?P<module>[^()\s]+?)(?::\d+)?\)$"),
)


def read_stacks(lines: list[tuple[int, str]]) -> tuple[Stack, ...]:
    """Find every stack in the lines. Frames that follow each other belong to one thread."""
    return tuple(_text_stacks(lines))


def _text_stacks(lines: list[tuple[int, str]]) -> Iterator[Stack]:
    thread, frames = "", list[Frame]()
    for number, line in lines:
        frame = _frame(number, line)
        if frame:
            frames.append(frame)
        elif frames and not line.startswith(("    ", "\t")):
            yield Stack(thread, tuple(frames), crashed="rash" in thread or "urrent thread" in thread)
            thread, frames = "", []
        if re.match(r"\s*(?:\* )?(?:Current t|T)hread\b", line):
            thread = line.strip()
    if frames:
        yield Stack(thread, tuple(frames), crashed="rash" in thread or "urrent thread" in thread)


def _frame(number: int, line: str) -> Frame | None:
    for shape in _SHAPES:
        if match := shape.search(line):
            found = match.groupdict()
            address = found.get("address")
            return Frame(
                function=found["function"].strip(),
                module=(found.get("module") or "").strip(),
                address=int(address, 16) if address else None,
                line=number,
            )
    return None
