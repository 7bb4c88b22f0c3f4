"""A yardstick beside the candidates: the operator's NumPy rival in a process of its own, on the same pinned core."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.proc import Child, Limits, kill, start
from kernelcrew.settings import child_environment

RIVAL = "rival.py"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def has_rival(operator: Operator) -> bool:
    """Whether the operator brings NumPy's own way of computing it."""
    return (operator.folder / RIVAL).is_file()


class Rival:
    """Runs batches of NumPy calls; times them by the parent's clock. A context manager."""

    def __init__(self, operator: Operator, core: int | None) -> None:
        """Raises HarnessError when the operator has no `rival.py` or it does not start."""
        path = operator.folder / RIVAL
        if not has_rival(operator):
            raise HarnessError(
                f"{operator.name} has no rival.py", fix="write `rival(inputs, outputs)` beside its operator.toml"
            )
        self._operator = operator
        self._child, self._orders, self._answers = _start(path, core)

    def prepare(self, shape: Shape, slots: int) -> None:
        """Make the rings of one shape, and warm up with one pass over them."""
        tensors = {
            role: [
                {"name": t.name, "dtype": t.dtype, "dims": [int(parse(d).value(shape.axes)) for d in t.dims]}
                for t in self._operator.tensors
                if (t.role == "in") == (role == "inputs")
            ]
            for role in ("inputs", "outputs")
        }
        self._ask({"slots": slots, **tensors})
        self.batch(slots)

    def batch(self, calls: int) -> float:
        """Microseconds of one batch, hand-over included."""
        began = time.perf_counter_ns()
        self._ask({"calls": calls})
        return (time.perf_counter_ns() - began) / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()
        self._answers.close()
        kill(self._child)

    def _ask(self, order: dict[str, object]) -> None:
        try:
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
            answer = self._answers.readline()
        except OSError as error:
            answer = str(error)
        if answer != '{"ok": true}\n':
            raise HarnessError(
                f"the NumPy rival of {self._operator.name} ended early: {answer!r}", fix="run its rival.py by hand"
            )


def _start(path: Path, core: int | None) -> tuple[Child, TextIO, TextIO]:
    order_read, order_write = os.pipe()
    answer_read, answer_write = os.pipe()
    script = Path(__file__).with_name("rival_server.py")
    numbers = (-1 if core is None else core, order_read, answer_write)
    child = start(
        [sys.executable, "-I", str(script), str(path), *map(str, numbers)],
        env={**child_environment(), **ONE_THREAD},
        pass_fds=(order_read, answer_write),
        limits=Limits(),
    )
    os.close(order_read)
    os.close(answer_write)
    return child, os.fdopen(order_write, "w", encoding="ascii"), os.fdopen(answer_read, encoding="ascii")
