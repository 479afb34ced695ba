"""Runs several attempts of the engine one after the other, alone or as a rank: `many_attempts.py ATTEMPT...`."""

import os
import sys
from functools import partial
from pathlib import Path

from torch import distributed

from holdfast.engine.__main__ import main

join = distributed.init_process_group
for number, attempt in enumerate(sys.argv[1:]):
    if "RANK" in os.environ:  # each group needs a store of its own, or ranks find addresses of the group before
        server = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        own = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        distributed.init_process_group = partial(join, store=distributed.PrefixStore(str(number), server), **own)
    code = main(Path(attempt))
    if code:
        raise SystemExit(code)
