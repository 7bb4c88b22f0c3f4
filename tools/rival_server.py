"""The rival's process: NumPy on one pinned thread, doing batches of calls on command. Trusted code of the operator.

Protocol, one JSON object a line: {"shape": key, "axes": {...}, "slots": n} prepares rings; {"calls": n} runs a batch;
each is answered by {"ok": true}. The parent owns the clock.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

import numpy as np

DTYPES = {"float32": np.float32, "float64": np.float64, "int32": np.int32}


def load(path: str) -> Any:
    """The operator's `rival` function."""
    spec = importlib.util.spec_from_file_location("rival", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rival


def rings(order: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """`slots` distinct sets of inputs and outputs."""
    rng = np.random.default_rng()
    made = []
    for _ in range(order["slots"]):
        ins = {
            t["name"]: rng.standard_normal(t["dims"], dtype=np.float32).astype(DTYPES[t["dtype"]])
            for t in order["inputs"]
        }
        outs = {t["name"]: np.full(t["dims"], np.nan, dtype=DTYPES[t["dtype"]]) for t in order["outputs"]}
        made.append((ins, outs))
    return made


def serve(path: str, core: int, orders_fd: int, answers_fd: int) -> None:
    """Answer until the parent closes the pipe."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    rival = load(path)
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with open(orders_fd, encoding="ascii") as orders, open(answers_fd, "w", encoding="ascii") as answers:
        for line in orders:
            order = json.loads(line)
            if "slots" in order:
                held = rings(order)
            else:
                for call in range(order["calls"]):
                    rival(*held[call % len(held)])
            answers.write('{"ok": true}\n')
            answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]))
