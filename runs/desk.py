"""The tools that the four roles see on the bus: they look, search and try a compile; none of them decides."""

from __future__ import annotations

from kernelcrew.agents.nouns import EditText, PatchAnswer, to_patch
from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.nouns import NotApplicable, ShapeClass
from kernelcrew.record import Record
from kernelcrew.runs.asking import profile_shown
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.sweeps import register_sweeps
from kernelcrew.tools.bus import Bus, Level, Tool
from kernelcrew.tools.nouns import Diagnostic, ShapeProfile
from kernelcrew.tools.workshop import BUILD, BuildArgs


class SearchArgs(Record):
    """What to look for in the knowledge base."""

    text: str
    """A plain question or keywords."""
    n: int
    """Answers wanted, at most 10."""


class Found(Record):
    """What was found."""

    answers: tuple[str, ...]
    """Each with decision, figures and run."""


class ClassArgs(Record):
    """One shape class."""

    shape_class: ShapeClass
    """main, short, long or tail."""


class Shapes(Record):
    """Profiles of the shapes of one class."""

    grade: str
    """How good the profile is."""
    shapes: tuple[ShapeProfile, ...]
    """One a shape."""


class CompileArgs(Record):
    """Edits to try."""

    edits: list[EditText]
    """In the order of application, on the standing kernel."""


class Compiled(Record):
    """What the compiler said."""

    status: str
    """ok, failed, refused or not applicable."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Errors, warnings and broken rules."""
    why: str = ""
    """Why the edits could not be applied."""


SEARCH = Tool(
    "search_memory",
    "Search the rationale knowledge base of this platform",
    SearchArgs,
    Found,
    Level.OBSERVE,
    frozenset({"proposer", "skeptic", "profiler_reader"}),
)
READ_PROFILE = Tool(
    "read_profile",
    "The profile of every timed shape of one class",
    ClassArgs,
    Shapes,
    Level.OBSERVE,
    frozenset({"profiler_reader", "proposer", "skeptic"}),
)
TRY_COMPILE = Tool(
    "try_compile",
    "Apply edits to the standing kernel and compile them in the sandbox; nothing is kept",
    CompileArgs,
    Compiled,
    Level.WRITE_SCRATCH,
    frozenset({"patch_writer"}),
)


def register_role_tools(bus: Bus, crew: Crew) -> None:
    """Put the roles' tools on the bus."""

    def search(args: SearchArgs) -> Found:
        hits = crew.memory.query(
            args.text, operator=crew.operator.name, platform=crew.machine.platform.id, n=max(1, min(args.n, 10))
        )
        return Found(answers=tuple(f"{h.entry.decision}: {h.entry.text} (run {h.entry.run})" for h in hits))

    def read_profile(args: ClassArgs) -> Shapes:
        profile = profile_shown(crew, crew.stands())
        return Shapes(grade=profile.grade, shapes=tuple(s for s in profile.shapes if s.shape_class == args.shape_class))

    def try_compile(args: CompileArgs) -> Compiled:
        patch = to_patch(PatchAnswer(edits=args.edits, note=""), "scratch", "team")
        made = compose(crew.stands().candidate, patch, None, operator=crew.operator)
        if isinstance(made, NotApplicable):
            return Compiled(status="not applicable", why=f"{made.change}: {made.because}")
        scratch = made.model_copy(
            update={"rationale": "scratch compile by the patch writer, never kept, never timed", "author": "start"}
        )
        build = bus.need(BUILD, BuildArgs(candidates=(scratch,))).builds[0]
        return Compiled(status=build.status, diagnostics=tuple(d for d in build.diagnostics if d.kind != "note")[:12])

    register_sweeps(bus, crew)
    bus.register(SEARCH, search)
    bus.register(READ_PROFILE, read_profile)
    bus.register(TRY_COMPILE, try_compile)
