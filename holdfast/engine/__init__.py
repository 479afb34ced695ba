"""The training process: `python -m holdfast.engine ATTEMPT_FOLDER`.

Reads the attempt's `settings.json` and the prepared shards; leaves a heartbeat, events, checkpoints and a model. It
does not know which process started it or watches it. Read `loop` first, then a task in `tasks`; `fast` holds what only
makes steps faster, `predict` uses finished models.
"""
