"""Reads stack reports line by line: Python tracebacks (plain, notebook, rich) and faulthandler, py-spy, gdb, lldb, the
frames that torch, glibc, abseil and Windows print, and those of macOS crash reports.

The table at the end of this file shows how each tool writes one frame. `logs.crash_reports` reads what needs the whole
report: `.ips` JSON, the call tree of `sample`, load addresses.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.core.evidence import Frame, Stack
from holdfast.logs.log_lines import Line

_THREAD = re.compile(r"\s*(?:(?:\* )?(?:Current thread|Thread|thread #)\s?\S*\b|Stack \(most recent call first\))")
_CRASH = re.compile(r"Crashed|(?:stop reason =|received) (?:EXC_(?!BREAKPOINT)|signal SIG(?!STOP|TRAP|INT))")
_FATAL_REPORT = re.compile(r"Fatal Python error|Windows fatal exception|received signal SIG(?!INT|STOP)|\*\*\* SIG")
_ELLIPSIS = re.compile(
    r"^\s*(?:\.\.\.|…|\[Previous line repeated|(?:#\d+\s+)?<signal handler called>|---Type <return>)"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one tool writes a frame."""

    tool: str
    hint: str  # every frame of this shape contains it; most lines contain no hint
    pattern: re.Pattern[str]
    is_outermost_first: bool = False


def read_stacks(lines: Iterable[Line]) -> Iterator[Stack]:
    """Find every stack in the lines of one writer. Consecutive frames belong to one thread."""
    report = _Report()
    waiting = ""  # the start of a path that a box wrapped
    for number, line in lines:
        whole = _rejoined(waiting, line) if waiting else line
        waiting = line if _is_broken_path(line) else ""
        found = read_frame(number, whole)
        if found is None and report.frames and _goes_on(report, number, line):
            continue
        yield from report.take(found, line)
    yield from report.close()


@dataclass(slots=True)
class _Report:
    """The stack being read."""

    thread: str = ""
    is_fatal: bool = False  # a fatal error was announced, and its thread follows
    shape: Shape | None = None
    index: int = -1
    frames: list[Frame] = field(default_factory=list)

    def take(self, found: tuple[Shape, int, Frame] | None, line: str) -> Iterator[Stack]:
        """Add a frame, or note what a line between stacks says; give the stack that ends here."""
        if found is None:
            yield from self.close()
            if _FATAL_REPORT.search(line):
                self.is_fatal = True
            if _THREAD.match(line) and len(line) < 300:
                self.thread = line.strip()
            return
        shape, index, frame = found
        if self.shape and (shape.tool != self.shape.tool or 0 <= index <= self.index):
            yield from self.close()
        self.shape, self.index = shape, index
        self.frames.append(frame)

    def close(self) -> Iterator[Stack]:
        """The stack read so far, innermost frame first."""
        if self.frames and self.shape:
            frames = reversed(self.frames) if self.shape.is_outermost_first else self.frames
            yield Stack(self.thread, tuple(frames), crashed=self._is_crashed())
            self.thread, self.shape, self.index, self.frames = "", None, -1, []

    def _is_crashed(self) -> bool:
        if _CRASH.search(self.thread):
            return True
        is_native = self.shape is not None and self.shape.tool not in ("traceback", "notebook", "rich")
        return (
            self.is_fatal and is_native and (not self.thread or self.thread.startswith(("Current thread", "Stack (")))
        )


def _is_last(line: str) -> bool:
    """True for the line that ends a traceback without a source line after the last frame."""
    return bool(re.match(r"[\w.]+(?:: |$)", line)) and not line.endswith(":")


def _goes_on(report: _Report, number: int, line: str) -> bool:
    """True for a line between two frames of one stack, such as the source of a frame."""
    assert report.shape
    tool, indented = report.shape.tool, line.startswith(("    ", "\t"))
    if _ELLIPSIS.match(line):
        return True
    if tool == "traceback":
        return indented or not line.strip() or (number - 1 == report.frames[-1].line and not _is_last(line))
    if tool == "notebook":
        return not line.strip() or bool(re.match(r"\s*-*>?\s*\d+(?:\s|$)|\s+", line))
    if tool == "rich":
        return line.lstrip().startswith(("│", "|", "┃"))
    if tool == "gdb" and indented:
        if (place := re.match(r"\s+(?:.*\) )?(?:from|at) (?P<module>\S+)", line)) and not report.frames[-1].module:
            report.frames[-1] = replace(report.frames[-1], module=place["module"])
        return True
    return indented and tool in ("py-spy", "torch", "c-stack")


def _is_broken_path(line: str) -> bool:
    return bool(re.match(r"\s*[│┃] (?:[~/<]|[A-Za-z]:\\)", line)) and not re.search(r":\d+ in [\w<]", line)


def _rejoined(start: str, line: str) -> str:
    """A path that a box wrapped, joined again; any other line unchanged."""
    head, tail = start.strip().strip("│┃").strip(), line.strip().strip("│┃").strip()
    for whole in (f"│ {head}{tail}", f"│ {head} {tail}"):
        if re.match(r"│ \S.*:\d+ in [\w.<>]+$", whole):
            return whole
    return line


def read_frame(number: int, line: str) -> tuple[Shape, int, Frame] | None:
    """Read a line as a frame: its shape, its index in the stack (-1 if the tool gives none), and the frame."""
    for shape in _SHAPES:
        if shape.hint in line and (match := shape.pattern.search(line)):
            found = match.groupdict()
            address, function = found.get("address"), _without_arguments(found["function"] or "")
            frame = Frame(
                function=function or ("<module>" if shape.tool in ("traceback", "notebook") else "??"),
                module=(found.get("module") or "").strip(),
                address=int(address, 16) if address else None,
                line=number,
                at=int(found.get("at") or found.get("at_line") or 0),
            )
            return shape, int(found.get("index") or -1), frame
    return None


def _without_arguments(function: str) -> str:
    """gdb writes values after the name: "f (x=3)"."""
    if function.startswith("_RN"):
        return _unfolded(function)
    return re.split(r" \((?=\w+=|\))", function)[0].strip()


def _unfolded(function: str) -> str:
    """A name as mangled by Rust, "_RNvMs3_NtCs7x_10rayon_core5latch4wait", as "rayon_core::latch::wait"."""
    parts, at = list[str](), 2
    while at < len(function):
        if number := _LENGTH.match(function, at):
            end = number.end() + int(number[1])
            parts.append(function[number.end() : end])
            at = end
        else:
            skipped = _SKIPPED.match(function, at)
            at = skipped.end() if skipped else at + 1
    return "::".join(filter(None, parts)) or function


def _shape(tool: str, hint: str, pattern: str, *, is_outermost_first: bool = False) -> Shape:
    return Shape(tool, hint, re.compile(pattern), is_outermost_first)


_LENGTH = re.compile(r"(\d+)_?")  # of the name that follows
_SKIPPED = re.compile(r"[sB][0-9a-zA-Z]*_")  # distinguishes equal names, or refers to one
_ADDRESS = r"(?P<address>0x[0-9a-fA-F]+)"
_INDEX = r"^\s*#(?P<index>\d+)\s+"
_FRAME = r"frame #(?P<index>\d+):\s+"
_PLUS = r"\+0x[0-9a-f]+"
_SOURCE_FILE = r"[^()\s:]*\.(?:py|pyx|pxi|c|cc|cpp|h|S|so[\w.-]*|dylib|dll|pyd)|<[\w ]+>"
_IN_SOURCE = rf"\((?P<module>{_SOURCE_FILE})(?::(?P<at>\d+))?\)"

_SHAPES = (
    # File "trainer.py", line 12, in evaluate      (traceback; the start of the path may be cut off)
    _shape(
        "traceback",
        '", line ',
        r'(?:File )?"?(?P<module>[^\s"][^"]*)", line (?P<at>\d+), in(?: (?P<function>\S.*))?$',
        is_outermost_first=True,
    ),
    # File "trainer.py", line 12 in evaluate      (faulthandler)
    _shape("faulthandler", '", line ', r'File "(?P<module>[^"]+)", line (?P<at>\d+) in (?P<function>\S.*)$'),
    # Binary file "/lib/libc.so.6", at abort+0x26 [0x7f390ba255fe]      (faulthandler of Python 3.14, native part)
    _shape("c-stack", 'file "', rf'Binary file "(?P<module>[^"]+)", at (?P<function>\S*?)(?:{_PLUS})? \[{_ADDRESS}\]'),
    # File /lib/torch/nn/modules/module.py:1130, in Module._call_impl(self, *input)      (notebook)
    _shape(
        "notebook",
        ", in ",
        r"^(?:File |(?=(?:Input|Cell) ))(?P<module>.+?)(?::(?P<at>\d+)|, line (?P<at_line>\d+))?"
        r", in (?P<function>[\w.<>: ]+?)(?:\(.*)?$",
        is_outermost_first=True,
    ),
    # /lib/transformers/training_args.py in _setup_devices(self)      (older notebook)
    _shape(
        "notebook",
        " in ",
        r"^(?P<module>(?:[~/.<]|[A-Za-z]:\\)\S*) in (?P<function>[\w.]+|<[\w :]+>)(?:\(.*)?$",
        is_outermost_first=True,
    ),
    # Cell In[4], line 12      (notebook, the outermost frame)
    _shape(
        "notebook",
        " In",
        r"^(?P<module>(?:Cell|Input) In ?\[\d+\]), line (?P<at>\d+)(?P<function>)$",
        is_outermost_first=True,
    ),
    # [/lib/torch/nn/modules/module.py](https://localhost:8080/#) in forward(self, x)      (Colab)
    _shape(
        "notebook",
        "](http",
        r"^\[(?P<module>[^\]]+)\]\(https?://[^)]*\) in (?P<function>[\w.]+|<[\w :]+>)(?:\(.*)?$",
        is_outermost_first=True,
    ),
    # │ /lib/multiprocess/popen_fork.py:19 in __init__      │      (rich)
    _shape(
        "rich",
        " in ",
        r"^\s*[│|┃] (?P<module>\S.*?):(?P<at>\d+) in (?P<function>[\w.<>]+)\s*[│|┃]?$",
        is_outermost_first=True,
    ),
    # frame #0: 0x00000001 libomp.dylib`__kmp_suspend_64(...) + 8 at kmp.cpp:12      (lldb)
    _shape("lldb", "`", rf"{_FRAME}{_ADDRESS}\s+(?P<module>[^`]+?)`(?P<function>.+?)(?: \+ \d+)?(?: at \S+)?$"),
    # frame #3: c10::Error::Error(...) + 0x4b (0x7f.. in /lib/libc10.so)      (torch)
    _shape("torch", "frame #", rf"{_FRAME}(?P<function>.+?)(?: \+ 0x[0-9a-f]+)? \({_ADDRESS} in (?P<module>[^)]+)\)"),
    # #4 c10::TensorImpl::data() from TensorImpl.cpp:0      (torch, newer)
    _shape("torch", " from ", r"^\s*(?:frame )?#(?P<index>\d+):? (?P<function>.+\S) from (?P<module>\S+?):\d+$"),
    # #1 0x00007fffa6c8f287 at::mm(class at::Tensor const &) (C:\torch\lib\torch_hip.dll+0x12)      (Windows)
    _shape("windows", "#", rf"{_INDEX}{_ADDRESS}(?: in)? (?P<function>.*?)\s?\((?P<module>[^()]+?){_PLUS}\)"),
    # #1  0x00007f in GOMP_parallel () from /lib/libgomp.so.1      (gdb; a long line continues in the next)
    _shape(
        "gdb",
        "#",
        rf"{_INDEX}(?:{_ADDRESS} in )?(?P<function>\S.*) \(.*?\)(?: \[clone .*?\])?"
        r"(?: (?:from|at) (?P<module>\S+?)(?::\d+)?)?(?:\s+\[\d+/\d+\])?$",
    ),
    _shape("gdb", "#", rf"{_INDEX}{_ADDRESS} in (?P<function>\S.*?)(?: \(.*)?$"),
    _shape("gdb", "#", rf"{_INDEX}(?P<function>[^\s(]+) \(\w+=.*$"),
    # 00007FFC1B517FF4 00007FFC1B4FC130 ucrtbase.dll!terminate [<unknown file> @ ...]      (torch on Windows)
    _shape("windows", "!", r"(?:[0-9A-F]{16} ?)+ ?(?P<module>[\w.-]+\.(?:dll|pyd|exe))!(?P<function>.+?) \["),
    # 0   libomp.dylib   0x0000000112233445 __kmp_suspend_64 + 120      (macOS crash report)
    _shape(
        "macos",
        "0x",
        rf"^\s*(?P<index>\d+)\s+(?P<module>\S.*?)\s+{_ADDRESS}\s+(?P<function>\S.*?)(?: \+ \d+)?(?: \(.*:\d+\))?$",
    ),
    # 48  thread_start + 13 (libsystem_pthread.dylib + 12429) [0x7fffc398f08d] 1-48      (spindump)
    _shape(
        "spindump",
        ") [0x",
        rf"^[\s*]*\d+\s+(?P<function>\S.*?) \+ \d+ \((?P<module>[^()]+?) \+ \d+\) \[{_ADDRESS}\]",
        is_outermost_first=True,
    ),
    # /lib/libc.so.6(abort+0x12b)[0x7f3a]      (glibc, Open MPI)
    _shape(
        "glibc",
        "[0x",
        rf"^\s*(?:\[\S+\] \[ ?\d+\] )?(?P<module>[^\s()]+)\((?P<function>[^()+]*)(?:{_PLUS})?\)\s?\[{_ADDRESS}\]",
    ),
    # @     0x7f0b3c9d0890  1280  absl::Mutex::Lock()      (abseil, glog)
    _shape("abseil", "@ ", rf"^\s*(?:PC: )?@\s+{_ADDRESS}\s+(?:\d+\s+)?(?:\(unknown\)\s+)?(?P<function>\S.*)$"),
    # [<0>] futex_wait_queue+0x5c/0x90      (/proc/PID/stack)
    _shape("kernel", "[<", r"^\s*\[<[0-9a-f]+>\] (?P<function>[\w.]+)\+0x"),
    # wait (multiprocessing/connection.py:931)      (py-spy; native frames name a library)
    _shape("py-spy", " (", rf"^\s*(?P<function>[^\s()#@+][\w.<>:~$@]*) {_IN_SOURCE}?$"),
    _shape("py-spy", " (", rf"^ {{4}}(?P<function>\S.*) {_IN_SOURCE}$"),
)
