"""Turns facts about a machine into findings, before a run wastes time on them.

`checkup.py` asks every hazard whether this machine invites it and adds what the facts show themselves; it is the file
to read first. `native_findings.py` explains clashes between native libraries, `sections.py` and `render.py` print.
`machine_checkup.py` brings them together with the facts, which come from `machine`.
"""
