"""The operator's `reference.py`, run in a child process: its float64 values and condition scales.

The parent never imports it. Arrays cross in memory files, so that 64 MB cost two copies and no pipe.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelcrew import proc
from kernelcrew.errors import HarnessError
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import reference_path
from kernelcrew.kernels.nouns import Operator
from kernelcrew.settings import child_environment

SERVER = Path(__file__).with_name("refserver.py")
MESSAGE_BYTES = 64 << 10
MEMORY_BYTES = 16 << 30
ALIGN = 64

Expected = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""By output: value and condition scale."""


class Reference:
    """The reference of one operator. A context manager; the child starts with the first question."""

    def __init__(self, operator: Operator, limit_s: float = 120.0) -> None:
        """`limit_s`: seconds that one answer may take. Raises BadManifest when there is no reference.py."""
        self._operator = operator
        self._path = reference_path(operator).resolve()
        self._limit_s = limit_s
        self._child: proc.Child | None = None
        self._link: socket.socket | None = None
        self._memories: dict[str, _Memory] = {}

    def values(self, inputs: Mapping[str, NDArray[Any]], axes: Mapping[str, int]) -> Expected:
        """Value and condition scale (float64, in the output's shape) of each output for these inputs.

        Raises HarnessError, naming the file and what it said, when the reference fails or does not answer in time.
        """
        link = self._started()
        given, listed = _place(inputs)
        taken, outputs = self._results(axes)
        source, results = self._memory("inputs", given), self._memory("results", taken)
        for item in listed:
            source.array(item["shape"], item["dtype"], item["offset"])[...] = inputs[item["name"]]
        asked = {"axes": dict(axes), "inputs": listed, "outputs": outputs}
        self._exchange(link, json.dumps(asked).encode(), [source.descriptor, results.descriptor])
        return {
            item["name"]: (
                results.array(item["shape"], "float64", item["offsets"][0]).copy(),
                results.array(item["shape"], "float64", item["offsets"][1]).copy(),
            )
            for item in outputs
        }

    def close(self) -> None:
        """End the child and free its memory; the next question starts another."""
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._child is not None:
            proc.kill(self._child)
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_child", None) is not None:
            self.close()

    def _started(self) -> socket.socket:
        if self._link is not None and self._child is not None and self._child.poll() is None:
            return self._link
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-I", str(SERVER), str(theirs.fileno()), str(self._path), str(MESSAGE_BYTES)]
            env = {**child_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            limits = proc.Limits(memory_bytes=MEMORY_BYTES, output_bytes=1 << 40)
            self._child = proc.start(argv, env=env, pass_fds=(theirs.fileno(),), limits=limits)
        ours.settimeout(self._limit_s)
        self._link = ours
        return ours

    def _memory(self, name: str, size_bytes: int) -> _Memory:
        """The memory file of that name, kept from question to question: new pages cost more than the copy into them."""
        held = self._memories.get(name)
        if held is None or held.size_bytes < size_bytes:
            if held is not None:
                held.close()
            held = self._memories[name] = _Memory(size_bytes)
        return held

    def _exchange(self, link: socket.socket, message: bytes, descriptors: list[int]) -> None:
        fix = "run it by itself on small inputs and mend it"
        try:
            socket.send_fds(link, [message], descriptors)
            raw = link.recv(MESSAGE_BYTES)
        except TimeoutError as error:
            self.close()
            raise HarnessError(f"{self._path}: no answer within {self._limit_s:g} s", fix=fix) from error
        except OSError as error:
            self.close()
            raise HarnessError(f"{self._path}: its process ended ({error})", fix=fix) from error
        if not raw:
            self.close()
            raise HarnessError(f"{self._path}: its process ended (out of memory, or it exits)", fix=fix)
        problem = json.loads(raw).get("error")
        if problem:
            raise HarnessError(f"{self._path}: {problem}", fix=fix)

    def _results(self, axes: Mapping[str, int]) -> tuple[int, list[dict[str, Any]]]:
        """Bytes and places of value and scale of each output."""
        at = 0
        placed = []
        for tensor in self._operator.tensors:
            if tensor.role == "in":
                continue
            shape = tuple(int(parse(text).value(axes)) for text in tensor.dims)
            step = -(-8 * int(np.prod(shape, dtype=np.int64)) // ALIGN) * ALIGN
            placed.append({"name": tensor.name, "shape": shape, "offsets": [at, at + step]})
            at += 2 * step
        return at, placed


class _Memory:
    """A memory file of some bytes, mapped here."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = max(size_bytes, mmap.PAGESIZE)
        self.descriptor = os.memfd_create("reference", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size_bytes)
        self._map = mmap.mmap(self.descriptor, self.size_bytes)

    def array(self, shape: tuple[int, ...], dtype: str, offset: int) -> NDArray[Any]:
        return np.ndarray(shape, dtype=dtype, buffer=self._map, offset=offset)

    def close(self) -> None:
        """Close the descriptor; the mapping goes with its last view."""
        os.close(self.descriptor)


def _place(inputs: Mapping[str, NDArray[Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Bytes and places of the inputs in their memory file."""
    at = 0
    placed = []
    for name, array in inputs.items():
        placed.append({"name": name, "shape": tuple(array.shape), "dtype": str(array.dtype), "offset": at})
        at += -(-array.nbytes // ALIGN) * ALIGN
    return at, placed
