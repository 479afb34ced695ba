"""The child process that trains: `python -m holdfast.engine ATTEMPT_FOLDER`.

Reads: the attempt's `settings.json` and the prepared shards. Leaves: beats, events, checkpoints and a model. It knows
nothing of who started it or who watches it.
"""
