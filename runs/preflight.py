"""What a run does first: the preflight, which refuses where a run would be wasted or could show nothing."""

from __future__ import annotations

from kernelcrew.errors import Unfit
from kernelcrew.event import Event, Listener
from kernelcrew.kernels.load import load_operator
from kernelcrew.memory.embed import make as make_embedder
from kernelcrew.platforms.detect import detect
from kernelcrew.runs.check import examine
from kernelcrew.runs.session import Asked, check_asked, require_here
from kernelcrew.settings import Settings


def preflight(settings: Settings, asked: Asked, listener: Listener) -> tuple[str, ...]:
    """What a run does first: refuses where it must, tells warnings; what `anyway` overrode. Raises Unfit."""
    operator = load_operator(asked.operator)
    check_asked(operator, asked)
    make_embedder(settings.embedder)
    require_here(asked.platform, detect(settings.cc).platform)
    found = examine(settings, operator, asked.backend, asked.budget_min, listener)
    refused = [f for f in found if f.severity == "refuse"]
    for one in found:
        if one.severity == "warn" or (refused and asked.anyway and one.severity == "refuse"):
            listener(Event(stage="check", message=f"{one.what}: {one.do}", status="warn"))
    if refused and not asked.anyway:
        told = "".join(f"\n  {f.what}\n    why: {f.why}\n    do:  {f.do}" for f in refused)
        raise Unfit(f"the preflight refuses operator {operator.name}:{told}", fix="mend it, or go on with --anyway")
    return tuple(f"{f.name}: {f.what}" for f in refused)
