"""A reader of MATLAB's version 5 files, for as much of them as annotations need: numbers, text, cells and structs."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from winnow.errors import DataError

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXT = {1: "latin1", 2: "latin1", 4: "utf-16-{}", 16: "utf-8", 17: "utf-16-{}", 18: "utf-32-{}"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_LIMIT = 256 << 20  # no annotation unpacks to more


def read_mat(path: Path) -> dict[str, Any]:
    """Read the variables of a file.

    Returns:
        Numbers as flat arrays, text as `str`, cells as lists, structs as lists of dicts, all in MATLAB's order.

    Raises:
        DataError: where it is no such file, or damaged.
    """
    try:
        return _Reader(path.read_bytes()).variables()
    except (OSError, ValueError, LookupError, struct.error, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a MATLAB file of version 5 ({error}); get it anew") from None


class _Reader:
    """Elements of a file: a tag of type and size, then the data, padded to 8 bytes."""

    def __init__(self, content: bytes) -> None:
        if content[:10] != b"MATLAB 5.0" or content[126:128] not in (b"IM", b"MI"):
            raise ValueError("its header is another")
        self.order = "<" if content[126:128] == b"IM" else ">"
        self.content = content

    def variables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        position = 128
        while position < len(self.content):
            kind, data, position = self.element(self.content, position)
            if kind == _COMPRESSED:
                unpacker = zlib.decompressobj()
                unpacked = unpacker.decompress(data, _LIMIT)
                if unpacker.unconsumed_tail:
                    raise ValueError("it unpacks to more than annotations take")
                kind, data, _ = self.element(unpacked, 0)
            if kind == _MATRIX:
                name, value = self.matrix(data)
                found[name] = value
        return found

    def element(self, content: bytes, position: int) -> tuple[int, bytes, int]:
        """Return type, data and where the next element begins."""
        (kind,) = struct.unpack_from(self.order + "I", content, position)
        if kind >> 16:  # small: size and type share the first word, the data are the second
            size, kind = kind >> 16, kind & 0xFFFF
            return kind, content[position + 4 : position + 4 + size], position + 8
        (size,) = struct.unpack_from(self.order + "I", content, position + 4)
        start = position + 8
        if start + size > len(content):
            raise ValueError("it is cut off")
        padding = 0 if kind == _COMPRESSED else -size % 8
        return kind, content[start : start + size], start + size + padding

    def matrix(self, data: bytes) -> tuple[str, Any]:
        """Return a matrix's name and value."""
        if not data:
            return "", np.zeros(0)
        _, flags, at = self.element(data, 0)
        (flag,) = struct.unpack_from(self.order + "I", flags)
        _, shape, at = self.element(data, at)
        count = int(np.prod(np.frombuffer(shape, self.order + "i4"), dtype=np.int64))
        _, name, at = self.element(data, at)
        kind = flag & 0xFF
        if kind == _CELL:
            values, _ = self.matrices(data, at, count)
            return name.decode("latin1"), values
        if kind == _STRUCT:
            return name.decode("latin1"), self.struct(data, at, count)
        form, content, _ = self.element(data, at)
        if kind == _CHAR:
            return name.decode("latin1"), content.decode(_TEXT[form].format("le" if self.order == "<" else "be"))
        return name.decode("latin1"), np.frombuffer(content, self.order + _NUMBERS[form])

    def matrices(self, data: bytes, at: int, count: int) -> tuple[list[Any], int]:
        values = []
        for _ in range(count):
            _, inner, at = self.element(data, at)
            values.append(self.matrix(inner)[1])
        return values, at

    def struct(self, data: bytes, at: int, count: int) -> list[dict[str, Any]]:
        _, length, at = self.element(data, at)
        (width,) = struct.unpack_from(self.order + "i", length)
        _, joined, at = self.element(data, at)
        fields = [joined[i : i + width].split(b"\0")[0].decode("latin1") for i in range(0, len(joined), width)]
        values, _ = self.matrices(data, at, count * len(fields))
        return [dict(zip(fields, values[i : i + len(fields)], strict=True)) for i in range(0, len(values), len(fields))]
