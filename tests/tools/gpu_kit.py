"""What the tests of the GPU builders share: this machine's sandbox and settings, nvcc and triton where they are."""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.settings import Settings
from kernelcrew.tools.build_cuda import USUAL_PLACES
from kernelcrew.tools.sandbox import Sandbox, choose

NVCC = next((w for name in ("nvcc", *USUAL_PLACES) if (w := shutil.which(name))), "")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc here: the CUDA toolkit's compiler builds these")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no triton here: pip install 'kernelcrew[triton]'"
)


def settings(folder: Path) -> Settings:
    return Settings(workdir=folder, cc="gcc", sandbox="auto", core=None, embedder="lexical")


@cache
def sandbox() -> Sandbox:
    return choose(settings(Path(".")))


def cubin(source: str, folder: Path, *flags: str, arch: str = "sm_90") -> Path:
    """The source compiled as it stands, past every gate: the tests' own sources are trusted."""
    (folder / "any.cu").write_text(source)
    line = [NVCC, "-cubin", f"-arch={arch}", "-O2", "-std=c++17", *flags, "-o", "any.cubin", "any.cu"]
    done = proc.run(line, cwd=folder)
    assert done.ok, done.err
    return folder / "any.cubin"
