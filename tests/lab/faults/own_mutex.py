"""Takes a native mutex twice."""

import ctypes

import steps

libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
steps.count_to(10)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
