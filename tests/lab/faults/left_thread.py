"""Does its work, and leaves a C++ object whose destructor ends the process: as that of a thread which nobody joined.

left_thread.py FILE HOW    HOW: "well", "raises", "exits" by the builtin, or a number for sys.exit
"""

import ctypes
import sys
from pathlib import Path

terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
ctypes.CDLL(None).on_exit(terminate, None)  # where destructors of static objects run, after Python is gone

for step in range(3):
    print("step", step, flush=True)
if sys.argv[2] == "raises":
    raise ValueError("no model was saved")
Path(sys.argv[1]).write_text("the model")
if sys.argv[2] == "exits":
    exit(1)
if sys.argv[2] != "well":
    sys.exit(int(sys.argv[2]))
