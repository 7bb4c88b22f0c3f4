"""The command line as a person calls it, in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcrew import proc


@dataclass(frozen=True)
class SmallRun:
    """A finished run: its working directory and the object that `--json` printed."""

    workdir: Path
    answer: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.answer["run"])


def call_kernelcrew(*words: str, cwd: Path, time_s: float = 240.0) -> proc.ProcResult:
    """The command line, as a person would call it, in a process of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("KERNELCREW_")}, "PATH": path}
    limits = proc.Limits(time_s=time_s, output_bytes=1 << 30)
    return proc.run(["kernelcrew", *words], cwd=cwd, env=env, limits=limits)
