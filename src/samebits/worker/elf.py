"""The build id of a shared object, from its ELF notes (System V ABI, gABI chapter 5; 64-bit little-endian only)."""

from __future__ import annotations

import struct
from pathlib import Path

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")


def build_id(path: Path) -> str:
    """Hex build id; `size N` where the file has none; `unreadable` where it cannot be read."""
    try:
        with path.open("rb") as stream:
            found = _read(stream.read(1 << 16))
        return found or f"size {path.stat().st_size}"
    except OSError:
        return "unreadable"
    except struct.error:
        return f"size {path.stat().st_size}"


def _read(data: bytes) -> str | None:
    """data: the beginning of the file; program headers and GNU notes stand there."""
    fields = _HEADER.unpack_from(data)
    if fields[0] != b"\x7fELF" or fields[1:3] != (2, 1):
        return None
    offset, size, count = fields[7], fields[11], fields[12]
    for index in range(count):
        kind, _, start, _, _, length, _, _ = _PROGRAM.unpack_from(data, offset + index * size)
        if kind == _PT_NOTE and (found := _note(data[start : start + length])):
            return found
    return None


def _note(data: bytes) -> str | None:
    at = 0
    while at + _NOTE.size <= len(data):
        names, size, kind = _NOTE.unpack_from(data, at)
        at += _NOTE.size + (names + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID:
            return data[at : at + size].hex()
        at += (size + 3) // 4 * 4
    return None
