"""The one module that reads the environment.

`Layers` is what may come from environment variables (`KERNELCREW_*`); `Settings` is the resolved value that the rest of
the code takes. Command-line options win over the environment, the environment over the defaults.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernelcrew.errors import UserMistake
from kernelcrew.record import Record
from kernelcrew.wording import explained


class Layers(BaseSettings):
    """What the environment may say; None where it says nothing."""

    model_config = SettingsConfigDict(env_prefix="KERNELCREW_", extra="ignore")

    workdir: Path | None = None
    """KERNELCREW_WORKDIR: the folder that holds `.kernelcrew/`."""
    cc: str | None = None
    """KERNELCREW_CC: the C compiler."""
    nvcc: str | None = None
    """KERNELCREW_NVCC: the CUDA compiler."""
    sandbox: str | None = None
    """KERNELCREW_SANDBOX: `bwrap`, `namespaces` or `rlimits`; the best one usable otherwise."""
    core: int | None = None
    """KERNELCREW_CORE: the processor core that measurements are pinned to."""
    embedder: str | None = None
    """KERNELCREW_EMBEDDER: `minilm` or `lexical`."""


class Settings(Record):
    """Resolved settings: every value is there."""

    workdir: Path
    """The folder that holds `.kernelcrew/`."""
    cc: str
    """The C compiler's name or path."""
    sandbox: str
    """`auto`, `bwrap`, `namespaces` or `rlimits`."""
    core: int | None
    """The core to pin measurements to; None lets the tools choose."""
    embedder: str
    """`minilm` or `lexical`."""
    nvcc: str = "nvcc"
    """The CUDA compiler's name or path."""

    @property
    def home(self) -> Path:
        """`.kernelcrew/` in the working directory: runs, memory, cache, repos."""
        return self.workdir / ".kernelcrew"


def resolve(workdir: Path | None = None) -> Settings:
    """Settings from the command line's `workdir`, the environment and the defaults, in that order.

    Raises UserMistake for a variable that does not hold what it should.
    """
    layers = _layers()
    return Settings(
        workdir=(workdir or layers.workdir or Path.cwd()).absolute(),
        cc=layers.cc or "gcc",
        sandbox=layers.sandbox or "auto",
        core=layers.core,
        embedder=layers.embedder or "minilm",
        nvcc=layers.nvcc or "nvcc",
    )


def _layers() -> Layers:
    try:
        return Layers()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"KERNELCREW_{str(first['loc'][0]).upper()}"
        what, fix = explained(dict(first), Layers)
        raise UserMistake(f"{name}={first['input']}: {what}", fix=f"{fix}, or unset the variable") from error


def api_key(name: str) -> str | None:
    """The key a model client needs, read at the moment it is needed and never stored."""
    return os.environ.get(name)


def behind_proxy(url: str) -> bool:
    """Whether the environment sends requests to `url` through a proxy."""
    parts = urlsplit(url)
    return bool(parts.scheme in getproxies() and not proxy_bypass(parts.hostname or ""))


def child_environment() -> dict[str, str]:
    """All that a child process gets from us: a path, a locale, a temporary folder. No key, no home."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "LC_ALL": "C",
        "TMPDIR": "/tmp",
        "HOME": "/nonexistent",
    }
