"""How each tool writes one frame of a stack."""

import re
from dataclasses import dataclass

from holdfast.core.evidence import Frame


@dataclass(frozen=True, slots=True)
class Shape:
    """How one tool writes a frame."""

    tool: str
    hint: str  # a frame of this shape has it somewhere; most lines have none of the hints
    pattern: re.Pattern[str]
    is_outermost_first: bool = False


def read_frame(number: int, line: str) -> tuple[Shape, int, Frame] | None:
    """Read a line as a frame: its shape, its index in the stack (-1 when the tool gives none), and the frame."""
    for shape in _SHAPES:
        if shape.hint in line and (match := shape.pattern.search(line)):
            found = match.groupdict()
            address, function = found.get("address"), _without_arguments(found["function"] or "")
            frame = Frame(
                function=function or ("<module>" if shape.tool == "traceback" else "??"),
                module=(found.get("module") or "").strip(),
                address=int(address, 16) if address else None,
                line=number,
            )
            return shape, int(found.get("index") or -1), frame
    return None


def _without_arguments(function: str) -> str:
    """gdb writes values behind the name: "f (x=3)"."""
    if function.startswith("_RN"):
        return _unfolded(function)
    return re.split(r" \((?=\w+=|\))", function)[0].strip()


def _unfolded(function: str) -> str:
    """A name as Rust's compiler folds it, "_RNvMs3_NtCs7x_10rayon_core5latch4wait", as "rayon_core::latch::wait"."""
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
_SKIPPED = re.compile(r"[sB][0-9a-zA-Z]*_")  # tells equal names apart, or points back to one
_ADDRESS = r"(?P<address>0x[0-9a-fA-F]+)"
_INDEX = r"^\s*#(?P<index>\d+)\s+"
_FRAME = r"frame #(?P<index>\d+):\s+"
_PLUS = r"\+0x[0-9a-f]+"
_SOURCE_FILE = r"[^()\s:]*\.(?:py|pyx|pxi|c|cc|cpp|h|S|so[\w.-]*|dylib|dll|pyd)|<[\w ]+>"
_IN_SOURCE = rf"\((?P<module>{_SOURCE_FILE})(?::\d+)?\)"

_SHAPES = (
    # File "trainer.py", line 12, in evaluate      (traceback; the start of the path may be cut off)
    _shape(
        "traceback",
        '", line ',
        r'(?:File )?"?(?P<module>[^\s"][^"]*)", line \d+, in(?: (?P<function>\S.*))?$',
        is_outermost_first=True,
    ),
    # File "trainer.py", line 12 in evaluate      (faulthandler)
    _shape("faulthandler", '", line ', r'File "(?P<module>[^"]+)", line \d+ in (?P<function>\S.*)$'),
    # Binary file "/lib/libc.so.6", at abort+0x26 [0x7f390ba255fe]      (faulthandler of Python 3.14, native part)
    _shape("c-stack", 'file "', rf'Binary file "(?P<module>[^"]+)", at (?P<function>\S*?)(?:{_PLUS})? \[{_ADDRESS}\]'),
    # File /lib/torch/nn/modules/module.py:1130, in Module._call_impl(self, *input)      (notebook)
    _shape(
        "notebook",
        ", in ",
        r"^(?:File|Input|Cell) (?P<module>.+?)(?::\d+|, line \d+)?, in (?P<function>[\w.<>: ]+?)(?:\(.*)?$",
        is_outermost_first=True,
    ),
    # /lib/transformers/training_args.py in _setup_devices(self)      (older notebook)
    _shape(
        "notebook",
        " in ",
        r"^(?P<module>(?:[~/.<]|[A-Za-z]:\\)\S*) in (?P<function>[\w.]+|<\w+>)(?:\(.*)?$",
        is_outermost_first=True,
    ),
    # │ /lib/multiprocess/popen_fork.py:19 in __init__      │      (rich)
    _shape(
        "rich",
        " in ",
        r"^\s*[│|┃] (?P<module>\S.*?):\d+ in (?P<function>[\w.<>]+)\s*[│|┃]?$",
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
    # #1  0x00007f in GOMP_parallel () from /lib/libgomp.so.1      (gdb; what is too long goes on in the next line)
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
