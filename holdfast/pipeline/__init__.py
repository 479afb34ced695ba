"""From a request to a run that can be trained. Each stage has one input and one artifact in the run's folder.

    machine   what this machine is, and what may fail on it      machine.json, doctor.json
    detect    columns and task of the data                       detected.json
    model     where training starts                              model.json
    prepare   read the data once: check, split, tokenize it      prepared/, dataset.json, dropped.csv
    plan      every setting with its reason, from real lengths   plan.json
    prove     what is tried on a small scale                     proof.json, proof/
    forecast  time and memory                                    forecast.json

`stages.py` runs them in this order and skips a stage whose artifact was made from the same inputs, so a preparation
that was cut off continues where it was. `runs/train_run.py` then supervises the training. `inputs.py` has the first
four stages; `train_plan.py` makes the plan from `choices.py`, `parallel.py` and `memory_model.py`; `prove.py` and
`forecast.py` have the last two, with the arithmetic in `proof_budget.py`.

The engine is started by `runs`, which passes what is needed for a proof (`prove.ProofRuns`).
"""
