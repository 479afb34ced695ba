"""What `doctor`'s findings mean that no hazard stands behind. `holdfast explain SLUG` prints it.

They are no ways in which a run fails, so they have no signs and no page among the hazards.
"""

OWN_FINDINGS = {
    "device-trial": (
        "A device does not train. `holdfast doctor` does one small training step on each device, in a process of its "
        "own, and compares loss, gradients and the weights' move with double precision on the CPU. Here the step "
        "failed, crashed, hung or gave other numbers, and no known hazard explains it. The finding says how far the "
        "step came; a run on that device would most likely end the same way."
    ),
    "environment-variable": (
        "A variable is set that does harm, or nothing at all. The finding says what it really does, and `holdfast "
        "doctor -v` who established that. `unset NAME` takes it away; look also where it is set, mostly a shell "
        "profile, a notebook's first cell or a job script."
    ),
    "other-environment": (
        "Another virtual environment is active than the one that `holdfast` was installed in, so the packages "
        "described are not the ones your script would import. `holdfast doctor --env FOLDER` looks at the active one."
    ),
    "check-failed": (
        "A check of Holdfast's broke. That is a bug of ours and says nothing about this machine; all other checks "
        "were made. The finding names the check and the error, which is what a report of the bug needs."
    ),
}
