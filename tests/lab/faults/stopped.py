"""Takes steps and is then stopped, as by a stray SIGSTOP."""

import os
import signal

import steps

steps.count_to(20)
os.kill(os.getpid(), signal.SIGSTOP)
