"""Writes a checkpoint to a disk that never answers: a FUSE mount without a server, in a mount namespace of its own."""

import ctypes
import os
import sys
from pathlib import Path

import steps

libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, PRIVATE = 0x00020000, 0x40000 | 0x4000
if libc.unshare(NEW_MOUNTS) or libc.mount(None, b"/", None, PRIVATE, None):
    sys.exit("no mount namespace")
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit("no FUSE mount")
steps.count_to(20)
steps.enter("save", 20)
Path(sys.argv[1], "checkpoint").write_bytes(b"weights")
