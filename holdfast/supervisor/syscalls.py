"""Names the system calls in which a thread can wait, from the numbers in /proc/PID/syscall."""

import platform

# Only calls that wait; every other number reads as "call 123".
_X86_64 = {
    0: "read", 1: "write", 2: "open", 7: "poll", 16: "ioctl", 17: "pread64", 19: "readv", 20: "writev", 22: "pipe",
    23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
    46: "sendmsg", 47: "recvmsg", 61: "wait4", 65: "semop", 70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync",
    75: "fdatasync", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 162: "sync", 202: "futex", 208: "io_getevents",
    219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
    257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 299: "recvmmsg",
    306: "syncfs", 426: "io_uring_enter", 437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip
_AARCH64 = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 65: "readv",
    66: "writev", 67: "pread64", 72: "pselect6", 73: "ppoll", 81: "sync", 82: "fsync", 83: "fdatasync",
    95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 128: "restart_syscall",
    133: "rt_sigsuspend", 137: "rt_sigtimedwait", 188: "msgrcv", 192: "semtimedop", 193: "semop", 202: "accept",
    203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 243: "recvmmsg",
    260: "wait4", 267: "syncfs", 4: "io_getevents", 426: "io_uring_enter", 437: "openat2", 441: "epoll_pwait2",
    449: "futex_waitv",
}  # fmt: skip
_BY_MACHINE = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}
NAMES = _BY_MACHINE.get(platform.machine(), {})


def call_name(number: int) -> str:
    """The name of a system call on this machine; -1 is a thread that waits in no call, such as for a page."""
    return NAMES.get(number, f"call {number}") if number >= 0 else "no call"
