"""What memory says before a question is asked: the prefix of the session, and what is not to be tried again."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Proposal
from kernelcrew.memory.nouns import Guarded, Opening, Prefix, Situation
from kernelcrew.memory.prefix import build_prefix
from kernelcrew.memory.repeat import guard, lineage_of
from kernelcrew.runs.crew import Crew, Standing


def situation(crew: Crew, standing: Standing) -> Situation:
    """Where, under what, and on what line of kernels."""
    start = crew.baseline.start.identity if crew.baseline else ""
    tried = crew.memory.tried(crew.operator.name, crew.machine.platform.id)
    return Situation(
        operator=crew.operator.name,
        operator_version=crew.operator.version,
        backend=crew.start.backend,
        platform=crew.machine.platform.id,
        circumstances=crew.machine.circumstances(),
        lineage=lineage_of(standing.candidate.identity, tried, start),
    )


def prefix(crew: Crew, number: int, standing: Standing, focus: str) -> Prefix:
    """Tried patches that matter, the current kernel, the constraints and the platform, within the token budget."""
    found = crew.journal.do(
        f"r{number}.prefix", Prefix, [standing.candidate, focus], lambda: _prefix(crew, standing, focus)
    )
    left = f", {found.left_out} left out" if found.left_out else ""
    crew.say(
        "read",
        f"memory opens the round: {len(found.included)} tried patches, {found.tokens} tokens{left}",
        round_number=number,
    )
    return found


def guarded(crew: Crew, standing: Standing, proposal: Proposal) -> Guarded:
    """Which changes of a proposal may be tried."""
    tried = crew.memory.tried(crew.operator.name, crew.machine.platform.id)
    return guard(proposal, situation(crew, standing), tried)


def _prefix(crew: Crew, standing: Standing, focus: str) -> Prefix:
    backend = crew.operator.backends[crew.start.backend]
    platform = crew.machine.platform
    contract = crew.operator.contract
    peaks = ", ".join(f"{p.name} {p.level} {p.value:.1f} {p.unit}" for p in platform.peaks)
    source = standing.candidate.variants[-1].source.text
    opening = Opening(
        kernel=f"identity {standing.candidate.identity}, commit {standing.commit[:12]}\n{source}",
        constraints=(
            f"input {contract.input}, accumulator {contract.accumulator} or better, output {contract.output}, "
            f"sums in {contract.summation}",
            f"flags allowed: {' '.join(sorted(backend.allowed_flags))}",
            *(entry.line for entry in crew.bars.active),
            "no asm, no writable globals, includes and pragmas from a short list, every change says why it works",
        ),
        platform=f"{platform.id} ({platform.readable}), vector bytes {platform.vector_bytes}, "
        f"caches {platform.caches}; {peaks}",
        focus=focus,
    )
    tried = crew.memory.tried(crew.operator.name, platform.id)
    return build_prefix(opening, tried, situation(crew, standing))
