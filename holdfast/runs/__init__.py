"""A run from outside: supervises its attempts to the end, and shows its state. Read first: `train_run.py`, the road of
a training run from its request to its result, then `supervise.py`, the loop over attempts that every run shares.

    command, train_run, train_spec       what is supervised: how an attempt is started, what may be changed
    proof_runs                           the processes of a proof, which `pipeline` asks for
    supervise, earlier_attempts          the attempts, and what a resume finds of earlier ones
    lease, member, peers, nodes, join    several machines: who leads, who follows, who is there
    state, wording, report/              the only readers: what a run is doing, and every sentence about it

The run folder is the only truth: whatever supervises or shows a run reads it from there, so that any process may be
killed at any time. Nothing here imports torch, and nothing here watches processes: that is `supervisor`. What a failure
means is decided in `hazards`, what to try next in `supervisor/ladder.py`.
"""
