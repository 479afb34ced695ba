"""Put on the engine's path: sends it a signal as it enters a phase. STRIKE says which, in which phase, from which step.

From outside a short phase of a starved process could be missed.
"""

import os
import signal
import threading

from holdfast.core.heartbeat import PHASES, BeatWriter

NAME, PHASE, STEP = os.environ["STRIKE"].split(":")
DELAY_SECONDS = 0.003 if PHASE == "save" else 0.0  # in the middle of the writing
beat = BeatWriter.beat


def beat_and_strike(self, step):
    beat(self, step)
    if PHASES[self._phase] == PHASE and step >= int(STEP):
        BeatWriter.beat = beat
        strike = threading.Timer(DELAY_SECONDS, os.kill, (os.getpid(), signal.Signals[NAME]))
        strike.start() if DELAY_SECONDS else strike.function(*strike.args)


BeatWriter.beat = beat_and_strike
