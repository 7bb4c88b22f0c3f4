"""The child that runs an operator's `reference.py`; started by `kernelcrew.tools.reference` and by nobody else.

Arguments: descriptor of a socket, path of reference.py, largest message. Each message names the arrays that lie in two
memory files handed over with it (inputs to read, results to write); each answer is `{}` or `{"error": ...}`.
"""

from __future__ import annotations

import json
import mmap
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

MAPPINGS: dict[tuple[int, int], mmap.mmap] = {}
MOST_MAPPINGS = 2


def serve(link: socket.socket, path: str, largest: int) -> None:
    """Answer requests until the other side closes."""
    reference: Any = None
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, largest, 2)
        if not message:
            return
        try:
            if reference is None:
                reference = runpy.run_path(path).get("reference")
            answer = _compute(reference, json.loads(message), descriptors)
        except Exception as error:  # noqa: BLE001 - whatever the operator's code raises becomes an answer
            answer = {"error": _words(error, path)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        link.send(json.dumps(answer).encode())


def _compute(reference: Callable[..., Any] | None, asked: dict[str, Any], descriptors: list[int]) -> dict[str, str]:
    if not callable(reference):
        return {"error": "it defines no function reference(inputs, axes)"}
    given, taken = (_mapped(descriptor) for descriptor in descriptors)
    inputs = {
        item["name"]: np.ndarray(tuple(item["shape"]), dtype=item["dtype"], buffer=given, offset=item["offset"])
        for item in asked["inputs"]
    }
    for array in inputs.values():
        array.flags.writeable = False
    results = reference(inputs, dict(asked["axes"]))
    if not isinstance(results, dict):
        return {"error": f"reference() returned {type(results).__name__}, not {{output: (value, scale)}}"}
    for item in asked["outputs"]:
        name, shape = item["name"], tuple(item["shape"])
        if name not in results:
            return {"error": f"reference() returned no '{name}'; it must return {{'{name}': (value, scale)}}"}
        if not isinstance(results[name], tuple | list) or len(results[name]) != 2:
            return {"error": f"reference() returned no pair for '{name}': give (value, scale), both of shape {shape}"}
        for offset, what, array in zip(item["offsets"], ("value", "scale"), results[name], strict=True):
            found = np.asarray(array)
            if found.shape != shape:
                where = f"the {what} of '{name}' that reference() returned"
                return {"error": f"{where} has shape {found.shape}, expected {shape} for {asked['axes']}"}
            np.ndarray(shape, dtype=np.float64, buffer=taken, offset=offset)[...] = found
    return {}


def _mapped(descriptor: int) -> mmap.mmap:
    """The memory behind a descriptor. Mappings are kept, since touching new pages costs more than the arithmetic."""
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino)
    if key not in MAPPINGS:
        while len(MAPPINGS) >= MOST_MAPPINGS:
            del MAPPINGS[next(iter(MAPPINGS))]
        MAPPINGS[key] = mmap.mmap(descriptor, 0)
    return MAPPINGS[key]


def _words(error: Exception, path: str) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
