"""Builds C kernels and runs them against NumPy in float64. Started by the tests as a process of its own, so that a
kernel that reads or writes outside its buffers ends this process and no test run.

stdin: JSON {"folder": ..., "kernels": [{"name", "text", "entry", "flags"}], "shapes": [[rows, n], ...]}.
stdout: JSON {name: {"warnings": text, "worst": largest error in u of the scale, "where": shape}}.
Every buffer ends at a page that cannot be touched and starts 4 bytes off any larger alignment or page end.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
U = 2.0**-24
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """A float32 array whose last byte lies right before a page without access, and whose first page has none either."""

    def __init__(self, count: int) -> None:
        pages = -(-count * 4 // PAGE) + 2
        self.memory = mmap.mmap(-1, pages * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for page in (0, pages - 1):
            if LIBC.mprotect(start + page * PAGE, PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.array: NDArray[Any] = np.frombuffer(
            self.memory, dtype=np.float32, count=count, offset=(pages - 1) * PAGE - 4 * count
        )
        self.address = start + (pages - 1) * PAGE - 4 * count


def build(folder: Path, kernel: dict[str, Any]) -> tuple[Any, str]:
    """The entry function and the compiler's words."""
    source, object_ = folder / f"{kernel['name']}.c", folder / f"{kernel['name']}.so"
    source.write_text(kernel["text"], encoding="utf-8")
    flags = ["-O3", "-march=native", "-Wall", "-Wextra", "-shared", "-fPIC", *kernel["flags"]]
    done = subprocess.run(["gcc", *flags, str(source), "-o", str(object_)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{kernel['name']}: {done.stderr}")
    entry = ctypes.CDLL(str(object_))[kernel["entry"]]
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return entry, done.stderr


def worst_error(y: NDArray[Any], x: NDArray[Any]) -> float:
    """The largest error in u of sum |x|; infinity where the class of a value is wrong."""
    value = x.astype(np.float64).sum(axis=1)
    scale = np.abs(x).astype(np.float64).sum(axis=1)
    if not np.array_equal(np.isnan(y), np.isnan(value)) or not np.array_equal(y[np.isinf(y)], value[np.isinf(value)]):
        return float("inf")
    use = np.isfinite(value)
    errors = np.abs(y[use] - value[use]) / (U * np.maximum(scale[use], 1e-30))
    return float(errors.max(initial=0.0))


def main() -> None:
    asked = json.load(sys.stdin)
    with ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(lambda kernel: build(Path(asked["folder"]), kernel), asked["kernels"]))
    built = {kernel["name"]: entry for kernel, entry in zip(asked["kernels"], entries, strict=True)}
    answer: dict[str, Any] = {name: {"warnings": w, "worst": 0.0, "where": ""} for name, (_, w) in built.items()}
    rng = np.random.default_rng(20)
    with np.errstate(invalid="ignore"):
        for rows, n in asked["shapes"]:
            x, y = Guarded(rows * n), Guarded(rows)
            data = x.array.reshape(rows, n)
            data[...] = rng.standard_normal((rows, n), dtype=np.float32)
            if rows > 3 and n > 0:
                data[rows // 2, rng.integers(0, n)] = np.inf
                data[rows - 1, n - 1] = np.nan
            for name, (entry, _) in built.items():
                y.array[:] = -7.0e30
                entry(x.address, y.address, rows, n)
                error = worst_error(y.array, data)
                if error > answer[name]["worst"]:
                    answer[name] = {**answer[name], "worst": error, "where": f"{rows}x{n}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
