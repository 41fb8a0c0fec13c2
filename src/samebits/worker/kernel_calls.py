"""Calls of the Linux kernel that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.personality.argtypes = [ctypes.c_ulong]
_LIBC.sethostname.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS = 0x0400_0000
_ADDR_NO_RANDOMIZE = 0x0004_0000
_ASK = 0xFFFF_FFFF


def flip_address_randomization() -> bool:
    """For whatever this process becomes by exec. Whether it is on now. Raises OSError where that is not allowed."""
    before = _checked(_LIBC.personality(_ASK))
    _checked(_LIBC.personality(before ^ _ADDR_NO_RANDOMIZE))
    after = _checked(_LIBC.personality(_ASK))
    if not (before ^ after) & _ADDR_NO_RANDOMIZE:
        raise OSError(0, "the kernel ignores it")
    return not after & _ADDR_NO_RANDOMIZE


def rename_host(name: str) -> None:
    """For this process and its children alone. Raises OSError where that is not allowed."""
    _checked(_LIBC.unshare(_CLONE_NEWUTS))
    _checked(_LIBC.sethostname(name.encode(), len(name.encode())))


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process where its parent ends, or has ended already."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(0)


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
