"""Which core measures, and which one the parent waits on."""

from __future__ import annotations

import os

from kernelcrew.errors import UserMistake
from kernelcrew.settings import Settings


def measuring_core(settings: Settings) -> int | None:
    """The core that workers are pinned to: the user's choice, else the last one this process may use; None where the
    system cannot pin."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    if settings.core is None:
        return usable[-1]
    if settings.core not in usable:
        raise UserMistake(
            f"KERNELCREW_CORE={settings.core}: this process may use {usable}", fix="name one of these cores"
        )
    return settings.core
