"""The command line as a person calls it: a process of its own, with no limits but time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def call(
    argv: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None, time_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run a program with this environment's commands first on the PATH, and none of kernelcrew's variables set."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("KERNELCREW_")}, "PATH": path, **(more or {})}
    return subprocess.run(
        argv, cwd=cwd, env=env, timeout=time_s, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
