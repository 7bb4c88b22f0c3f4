"""Files that a user names: read whole, never more than a limit, and only what is a regular file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernelcrew.errors import BadManifest

MOST_BYTES = 1 << 20
"""Of a source, plan, patch or manifest: what is larger is none."""


def read_text(path: Path, where: str, *, fix: str, most_bytes: int = MOST_BYTES) -> str:
    """The file's text. A device, a pipe or a folder is refused before it is read. Raises BadManifest."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BadManifest(where, _why(error), fix=fix) from error
    try:
        if trouble := _kind(os.fstat(handle).st_mode):
            raise BadManifest(where, trouble, fix=fix)
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise BadManifest(where, _why(error), fix=fix) from error
    finally:
        os.close(handle)
    if len(data) > most_bytes:
        raise BadManifest(where, f"larger than {most_bytes} bytes", fix=fix)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadManifest(where, f"it cannot be read: line {line} is not UTF-8 text", fix=fix) from error


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    return "it is a folder, not a file" if stat.S_ISDIR(mode) else "it is a device or pipe, not a file"


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "it may not be read: permission denied"
    reason = (error.strerror if isinstance(error, OSError) else None) or "no file can have this name"
    return f"it cannot be read: {reason[:1].lower()}{reason[1:]}"
