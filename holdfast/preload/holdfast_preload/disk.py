"""Tells that a save failed for want of room: torch itself words it as a wrong position in the file."""

from __future__ import annotations

import errno
import re

_WORDS = re.compile(
    r"No space left on device|os error 28|unexpected pos \d+ vs \d+|iostream error|file write failed"
    r"|Disk quota exceeded"
)


def is_disk_full(error: BaseException) -> bool:
    """Say whether an error, or one that led to it, means that the disk is full."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _WORDS.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
