"""Loads MLX and bounds its memory."""

from typing import Any

import psutil

from holdfast.core.errors import MachineError, install

_MEMORY_SHARE = 0.85  # of what this process may use; MLX then waits for memory instead of swapping
_CACHE_SHARE = 0.1  # freed buffers that are kept


def limit_memory() -> None:
    """Import MLX and bound its memory; refuse where it is not installed.

    Without a limit MLX takes what it gets: runs were aborted when memory swapped, and machines panicked
    (ml-explore/mlx-examples#664, mlx-lm#883).
    """
    try:
        import mlx.core as mx
    except ImportError as error:
        raise MachineError(
            "MLX is not installed",
            found=str(error),
            try_next=(install("mlx"), "use the torch backend: --backend torch"),
        ) from error
    about: dict[str, Any] = mx.device_info()
    usable = int(about.get("max_recommended_working_set_size") or _MEMORY_SHARE * psutil.virtual_memory().total)
    mx.set_memory_limit(usable)
    mx.set_cache_limit(int(_CACHE_SHARE * usable))
    if mx.metal.is_available():
        mx.set_wired_limit(usable)
