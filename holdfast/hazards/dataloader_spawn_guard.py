"""The script starts worker processes while it is being imported.

What you see: "An attempt has been made to start a new process before the current process has finished its bootstrapping
phase", or a pool that restarts its children forever.
Why: with spawn and forkserver every worker imports the script again. Code outside `if __name__ == "__main__":` runs in
the worker too and tries to start more workers. macOS and Windows use spawn by default; Linux uses forkserver since
Python 3.14.
What we do: load data in the main process, which starts no workers, and say where the guard belongs.
"""

from holdfast.core.evidence import Evidence, Passage
from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, judged, proves, seen, suggests


def _starts_inside_an_import(evidence: Evidence) -> Passage | None:
    """A stack in which a child imports the script and starts a process."""
    if seen("log", r"WinError 1455|paging file").find(evidence):  # the child died of memory while it imported
        return None
    for stack in evidence.stacks:
        importing = next((frame for frame in stack.frames if frame.function.startswith("_fixup_main_from_")), None)
        if importing and any(frame.function == "_Popen" or "popen_" in frame.module for frame in stack.frames):
            return Passage(
                "frame", importing.line, f"{importing.function}: the child imports the script and starts a process"
            )
    return None


HAZARD = Hazard(
    slug="dataloader-spawn-guard",
    title="the script starts worker processes while a worker imports it",
    kind="error",
    signs=(
        proves("log", r"(?i:attempt (?:has been made )?to start a new process before the)"),
        proves("log", r"has finished its bootstrapping phase"),
        proves("log", r"_check_not_importing_main"),
        proves("log", r"[\"“']freeze_support\(\)[\"”'] line can be omitted|forgotten to use the proper idiom"),
        judged("suggests", _starts_inside_an_import),
        suggests("frame", r"get_preparation_data"),
        # A traceback truncated before its last line: the popen module's check whether the script is still being imported.
        suggests(
            "log",
            r"popen_spawn_posix\.py(?:\", line |:)4[12]\b|popen_forkserver\.py(?:\", line |:)4[12]\b"
            r"|popen_spawn_win32\.py(?:\", line |:)(?:3[0-9]|4[4-7])\b",
        ),
        # The child died while the parent was still writing to it.
        suggests("error", r"BrokenPipeError", also=(seen("log", r"popen_spawn|reduction\.py|ForkingPickler"),)),
    ),
    remedies=(
        Remedy("load data in the main process", change={"loader_workers": 0}, cost="slower input"),
        Remedy(
            "put the script's code under the main guard",
            command="if __name__ == '__main__': main()",
            cost="one line in the script",
        ),
    ),
    sources=("AgileRL/AgileRL#286", "kwuking/TimeMixer#21", "hezhangsprinter/DID-MDN#3"),
    over=("dataloader-worker-killed", "dataloader-pickle", "worker-crash-loop"),
    matches=(
        "RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.",
        "RuntimeError: \n            Attempt to start a new process before the current process\n"
        "            has finished its bootstrapping phase.",
        "  File \"C:\\lib\\multiprocessing\\spawn.py\", line 136, in _check_not_importing_main\n    is not going to be frozen to produce an executable.''')",
        '  File "/lib/python3.11/multiprocessing/popen_spawn_posix.py", line 42, in _launch\n    prep_data = spawn.get_preparation_data(process_obj._name)\n',
        '  File "C:\\lib\\multiprocessing\\reduction.py", line 60, in dump\n    ForkingPickler(file, protocol).dump(obj)\n'
        "BrokenPipeError: [Errno 32] Broken pipe",
        'The "freeze_support()" line can be omitted if the program is not going to be frozen to produce an executable.',
        '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 164, in get_preparation_data\n    _check_not_importing_main()\n',
        '  File "<string>", line 1, in <module>\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 290, in _fixup_main_from_path\n    main_content = runpy.run_path(main_path,\n  File "train.py", line 6, in <module>\n    loader = iter(DataLoader(data, num_workers=2))\n  File "/usr/lib/python3.11/multiprocessing/context.py", line 288, in _Popen\n    return Popen(process_obj)\n',
    ),
    near_misses=(
        '  File "/lib/python3.9/multiprocessing/popen_spawn_posix.py", line 47, in _launch\n    reduction.dump(process_obj, fp)\n'
        "AttributeError: Can't pickle local object 'main.<locals>.collate'",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: context has already been set",
    ),
    reproduced_by="tests/lab/test_evidence.py",
)
