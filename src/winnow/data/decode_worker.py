"""A process that decodes images: reads a pickled image set and then indices, writes pixels, until its input ends.

Run as a file, and without winnow's `__init__` files: those import torch, which takes seconds and hundreds of megabytes
that decoding does not need.
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
import types
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("<?qqq")  # whether it went well; then height, width and bytes, or 0, 0 and the error's bytes
INDEX = struct.Struct("<q")


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what it means
    source, target = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what an image set prints must not end up among pixels
    (size,) = INDEX.unpack(source.read(INDEX.size))
    try:
        images, resize = unpickled(source.read(size))
        from winnow.data.resize import resize_short
    except Exception as error:
        fail(target, error)
        return
    target.write(HEADER.pack(True, 0, 0, 0))
    target.flush()
    while word := source.read(INDEX.size):
        try:
            picture = resize_short(images.read(INDEX.unpack(word)[0]), resize)
            pixels = picture.tobytes()
        except Exception as error:
            fail(target, error)
        else:
            target.write(HEADER.pack(True, picture.height, picture.width, len(pixels)))
            target.write(pixels)
            target.flush()


def unpickled(payload: bytes) -> Any:
    """Read the search path, the image set and the size; with all of winnow only where the set needs it."""
    path, content = pickle.loads(payload)
    sys.path[:] = path
    home = Path(__file__).resolve().parents[1]
    bare = {"winnow": home, "winnow.data": home / "data"}
    for name, folder in bare.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    try:
        return pickle.loads(content)
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "winnow"]:
            del sys.modules[name]
        return pickle.loads(content)


def fail(target: BinaryIO, error: Exception) -> None:
    """Send an error instead of pixels."""
    try:
        told = pickle.dumps(error)
        pickle.loads(told)
    except Exception:
        told = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    target.write(HEADER.pack(False, 0, 0, len(told)) + told)
    target.flush()


if __name__ == "__main__":
    main()
