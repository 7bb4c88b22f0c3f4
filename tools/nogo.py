"""The no-go list on the bus: what it forbids is refused before the compiler sees it, whoever asks for the build."""

from __future__ import annotations

from collections.abc import Callable

from kernelcrew.kernels.nogo import NoGo
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.record import Record
from kernelcrew.tools.bus import Call, Next, Refusal, Wrapper
from kernelcrew.tools.nouns import Build, Diagnostic
from kernelcrew.tools.workshop import BuildArgs, Builds

NOGO = "nogo"
"""Kind of the diagnostic, and the gate's name."""


def nogo_wrapper(barred: Callable[[Candidate], NoGo | None]) -> Wrapper:
    """Takes forbidden candidates out of a call that builds, and answers for them; the others are built."""

    def wrap(call: Call, go_on: Next) -> Record:
        if not isinstance(call.arguments, BuildArgs):
            return go_on(call)
        against = [barred(candidate) for candidate in call.arguments.candidates]
        if not any(against):
            return go_on(call)
        left = tuple(c for c, entry in zip(call.arguments.candidates, against, strict=True) if entry is None)
        made: list[Build] = []
        if left:
            arguments = call.arguments.model_copy(update={"candidates": left})
            answer = go_on(Call(tool=call.tool, arguments=arguments, caller=call.caller))
            if isinstance(answer, Refusal) or not isinstance(answer, Builds):
                return answer
            made = list(answer.builds)
        pairs = zip(call.arguments.candidates, against, strict=True)
        return Builds(builds=tuple(refused(c, entry) if entry else made.pop(0) for c, entry in pairs))

    return wrap


def refused(candidate: Candidate, entry: NoGo) -> Build:
    """The answer for a forbidden candidate, with reason and reference."""
    found = Diagnostic(kind=NOGO, line=0, message=entry.line, option=entry.id)
    return Build(status="refused", stage="policy", identity=candidate.identity, diagnostics=(found,))


def gate_of(build: Build) -> str:
    """`nogo` or `rationale` where nothing else refused a build; empty for all else."""
    kinds = {d.kind for d in build.diagnostics if d.kind not in ("warning", "note")}
    return kinds.pop() if build.status == "refused" and kinds in ({NOGO}, {"rationale"}) else ""
