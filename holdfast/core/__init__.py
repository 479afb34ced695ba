"""Values and files that all other folders share: errors, events, records, settings, evidence, the run folder.

It imports nothing of Holdfast, only the standard library and msgspec, so that every command starts quickly. Start with
`errors.py`, `events.py` and `records.py`.
"""
