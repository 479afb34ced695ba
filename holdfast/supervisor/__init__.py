"""Runs one attempt of a training, watches its process tree, and when it dies or hangs, collects evidence and ends it.

What it does: starts the child (`child.py`), samples every thread of its tree (`processes.py`; `linux.py`, `macos.py`
and `portable.py` read the system), judges what the tree does (`verdict.py`, pure), decides when silence is a hang
(`hang.py` and `budgets.py`, pure), collects evidence before anything is ended (`collect.py`), ends every process of
the attempt and no other (`ending.py`), and gathers the facts of the cause (`cause.py`).

What it does not: it never imports the engine. They share only files and an exit code, so either can die without the
other. It makes no sentences (`runs/cause_wording.py` does). What follows a failed attempt is decided by `ladder.py`, a
pure function with the fallbacks of `ladders.py`, and done by `runs/supervise.py`.

Read first: `attempt.py`, one attempt from start to end; then `verdict.py` and `hang.py`.
"""
