"""Starts the preload in this interpreter, then runs the sitecustomize that would have run without it.

`holdfast run` puts this folder first on PYTHONPATH, and Python imports this file in every interpreter of the command.
This file and `holdfast_preload` use only the standard library and nothing of Holdfast, because the interpreter may be
another one than Holdfast's.

Any Python 3 can read this file; one that is too old for the preload only runs its own sitecustomize.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _arm():
    # type: () -> None
    if not os.environ.get("HOLDFAST_ATTEMPT") or sys.version_info < (3, 9):
        return
    try:
        import holdfast_preload

        holdfast_preload.arm(os.environ["HOLDFAST_ATTEMPT"])
    except BaseException as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            sys.stderr.write("holdfast preload: %r\n" % (error,))


def _hand_over():
    # type: () -> None
    """Run the next sitecustomize on the path under its own name, as if this one did not exist."""
    path = sys.path
    sys.path = [entry for entry in path if os.path.abspath(entry) != _HERE]
    try:
        found = None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            found = find_spec("sitecustomize", None) if find_spec else None
            if found is not None:
                break
    finally:
        sys.path = path
    if found is None or found.loader is None or found.origin == __file__:
        return
    import importlib.util

    module = importlib.util.module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


_arm()
_hand_over()
