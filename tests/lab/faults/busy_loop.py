"""Takes steps, then spins for ever."""

import steps

steps.count_to(20)
while True:
    pass
