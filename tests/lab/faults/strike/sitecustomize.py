"""Put on the path of what trains: brings a fault about in it. STRIKE says which, in which phase, from which step.

The fault is a signal that the process gets, or "deadlock", "livelock", "nan" (in the weights, only in a script). Our
engine is struck as it enters the phase: from outside a short phase of a starved process could be missed. A script is
struck as torch loads ("import"), or after that step of its optimizer; mlx-lm's trainer in the middle of an iteration.
In phase "call" the process waits for SIGUSR2. STRIKE_ONCE names a file that is made at the strike; where it is there
nothing more happens. STRIKE_RANK names the one of several ranks that is struck.
"""

import os
import signal
import sys
import threading
from pathlib import Path

NAME, PHASE, STEP = os.environ["STRIKE"].split(":")
ONCE = os.environ.get("STRIKE_ONCE")
send = os.kill  # by another name: a program whose line says os.kill is told that it ended itself
MLX_LM = "mlx_lm.tuner.trainer"
LIBRARY = MLX_LM if "mlx_lm" in sys.orig_argv else "torch.optim.optimizer"
# A signal comes in the middle of the writing; a lock is of use only in the thread that trains.
DELAY_SECONDS = 0.003 if PHASE == "save" and NAME.startswith("SIG") else 0.0


def strike(weights=()):
    if os.environ.get("STRIKE_RANK", os.environ.get("RANK")) != os.environ.get("RANK"):
        return
    if ONCE:
        try:
            Path(ONCE).touch(exist_ok=False)
        except FileExistsError:
            return
    if NAME == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while NAME == "livelock":
        pass
    if NAME == "nan":
        for weight in weights:
            weight.detach().fill_(float("nan"))
    if NAME.startswith("SIG"):
        send(os.getpid(), signal.Signals[NAME])


def strike_engine():
    from holdfast.core.heartbeat import PHASES, BeatWriter

    beat = BeatWriter.beat

    def beat_and_strike(self, step):
        beat(self, step)
        if PHASES[self._phase] == PHASE and step >= int(STEP):
            BeatWriter.beat = beat
            threading.Timer(DELAY_SECONDS, strike).start() if DELAY_SECONDS else strike()

    BeatWriter.beat = beat_and_strike


class StrikeScript:
    """Waits for torch's optimizers or mlx-lm's trainer to be imported, and counts their steps."""

    def find_spec(self, name, path=None, target=None):
        if name != LIBRARY:
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in sys.meta_path)))
        load, done = spec.loader.exec_module, [0]

        def count(optimizer, arguments, options):
            done[0] += 1
            if done[0] == int(STEP):
                strike([weight for group in optimizer.param_groups for weight in group["params"]])

        def count_iteration():  # evaluated batches count too
            done[0] += 1
            if done[0] == int(STEP):
                strike()

        def load_and_strike(module):
            load(module)
            if name == MLX_LM:
                clear, module._clear_cache = module._clear_cache, lambda limit: (count_iteration(), clear(limit))
                return
            strike() if PHASE == "import" else module.register_optimizer_step_post_hook(count)

        spec.loader.exec_module = load_and_strike
        return spec


if PHASE == "call":
    signal.signal(signal.SIGUSR2, lambda number, frame: strike())
elif any(word.startswith("holdfast.engine") for word in sys.orig_argv):
    strike_engine()
elif len(sys.orig_argv) > 1 and (sys.orig_argv[1].endswith(".py") or LIBRARY == MLX_LM):
    sys.meta_path.insert(0, StrikeScript())
