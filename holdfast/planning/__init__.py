"""Decides how a run is done: every setting with its reason, and what to change when an attempt fails.

All pure functions of the request and of facts; nothing is measured or started here. `train_plan.py` makes the plan of a
training run from `choices.py` and `memory_model.py`; `ladder.py` decides what follows a failed attempt.
"""
