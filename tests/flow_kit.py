"""Whole runs within seconds: policy, builds, verification, git, memory and report are real, only the clock is not.

`SimulatedWorkshop` replaces the laboratory under the real `Bench` by one whose times are a known function of the
candidate's source, so that what a run ought to decide is known. Small shapes keep verification short.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import pytest

from kernelcrew.agents.nouns import Answer, Question, Role, Usage
from kernelcrew.event import Event
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator, reference_path
from kernelcrew.kernels.nouns import Candidate, Shape, Variant
from kernelcrew.platforms.nouns import Machine, Peak
from kernelcrew.record import Record, hash_of
from kernelcrew.runs import cli, session
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.journal import Journal, read_steps
from kernelcrew.runs.nouns import RunRecord, Step
from kernelcrew.runs.report import write_report
from kernelcrew.runs.run import play
from kernelcrew.runs.session import Asked, open_run, reopen_run
from kernelcrew.settings import Settings, resolve
from kernelcrew.tools.bus import no_lock
from kernelcrew.tools.hoststate import HostReading
from kernelcrew.tools.nouns import Build, Noise, Profile, Timing, Verification
from kernelcrew.tools.profile import ProfileOptions, profile
from kernelcrew.tools.timing import Bench
from kernelcrew.tools.timing_blocks import Heat, Sampled
from kernelcrew.tools.workshop import (
    BuildArgs,
    BuildRef,
    Builds,
    ConfirmArgs,
    ProfileArgs,
    ScreenArgs,
    Screens,
    VerifyArgs,
    Workshop,
)

SHAPES = """
shapes = [
  { axes = { rows = 64, n = 1024 }, shape_class = "main" },
  { axes = { rows = 16, n = 2048 }, shape_class = "main" },
  { axes = { rows = 1024, n = 5 }, shape_class = "short" },
  { axes = { rows = 512, n = 16 }, shape_class = "short" },
  { axes = { rows = 1, n = 65536 }, shape_class = "long" },
  { axes = { rows = 2, n = 20000 }, shape_class = "long" },
  { axes = { rows = 31, n = 1021 }, shape_class = "tail" },
  { axes = { rows = 997, n = 1 }, shape_class = "tail" },
  { axes = { rows = 32, n = 1500 }, shape_class = "main", role = "held_out" },
  { axes = { rows = 700, n = 9 }, shape_class = "short", role = "held_out" },
  { axes = { rows = 0, n = 7 }, shape_class = "tail", role = "edge" },
  { axes = { rows = 5, n = 0 }, shape_class = "tail", role = "edge" },
  { axes = { rows = 9, n = 33 }, shape_class = "tail", role = "edge" },
]
"""
MARK = re.compile(r"sim\((?P<rule>[^()]*)\)=(?P<factor>[0-9.]+)")
"""`sim(n <= 64)=0.5` in a source: calls take half the time where the rule holds."""
PEAKS = tuple(
    Peak(name=name, level=level, value=value, unit=unit, footprint_bytes=size, source="simulated", date="2026-01-01")
    for name, level, value, unit, size in (
        ("read", "L1", 400.0, "GB/s", 16 << 10),
        ("read", "L2", 200.0, "GB/s", 256 << 10),
        ("read", "L3", 100.0, "GB/s", 4 << 20),
        ("read", "memory", 20.0, "GB/s", 128 << 20),
        ("fma", "core", 300.0, "GFLOP/s", 4096),
        ("add_latency", "core", 0.8, "ns", 4096),
    )
)


def small_operator(folder: Path) -> Path:
    """The shipped reduction with few and small shapes, as a folder of its own. The name stays, so recipes apply."""
    shipped = load_operator("reduction").folder
    folder.mkdir(parents=True, exist_ok=True)
    manifest = (shipped / "operator.toml").read_text()
    cut = re.sub(r"^shapes = \[.*?^\]\n", lambda _: SHAPES.lstrip(), manifest, count=1, flags=re.DOTALL | re.MULTILINE)
    assert cut != manifest
    (folder / "operator.toml").write_text(cut)
    for name in ("start.c", "reference.py"):
        (folder / name).write_text((shipped / name).read_text())
    return folder


def call_us(variant: Variant, axes: Mapping[str, int]) -> float:
    """The true time of one call in us: what each recipe does to the cost of a row and of an element."""
    text, rows, n = variant.source.text, axes["rows"], axes["n"]
    element_ns, row_ns = 0.8, 1.0
    if "vector_accumulators:" in text:
        element_ns, row_ns = {2: 0.08, 4: 0.05, 8: 0.055}[knob(text, "ACC")], 6.0
    elif "scalar_accumulators:" in text:
        element_ns, row_ns = 0.3, 4.0
    elif "-fassociative-math" in variant.plan.flags:
        element_ns, row_ns = 0.1, 3.0
    if "rows_together:" in text and 1 < n <= knob(text, "SHORT_MAX"):
        row_ns = 0.5
    if "copy_single_column:" in text and n == 1:
        element_ns, row_ns = 0.1, 0.0
    if "prefetch:" in text and n >= 4096:
        element_ns *= 1.3
    for mark in MARK.finditer(text):
        if parse(mark["rule"]).value(axes):
            element_ns, row_ns = element_ns * float(mark["factor"]), row_ns * float(mark["factor"])
    return rows * (row_ns + n * element_ns) / 1000


def knob(text: str, name: str) -> int:
    """A knob's default in a source."""
    found = re.search(rf"^#define {name} (\d+)$", text, re.MULTILINE)
    assert found, name
    return int(found[1])


@dataclass
class SimulatedLab:
    """Times with a little noise on a clock of its own. Candidates are found by identity, also after a resume, and the
    same block of the same call has the same noise in any process, so that a resume measures what it would have."""

    folder: Path
    clock: float = 0.0
    call: str = ""
    blocks: Counter[str] = field(default_factory=Counter)
    known: dict[str, Candidate] = field(default_factory=dict)

    def us(self, build: Build, shape: Shape) -> float:
        if build.identity not in self.known:
            text = (self.folder / build.identity).read_text()
            self.known[build.identity] = Candidate.model_validate_json(text)
        variants = self.known[build.identity].variants
        serving = next(v for v in variants if v.when is None or parse(v.when).value(shape.axes))
        return call_us(serving, shape.axes)

    @contextmanager
    def stand(self, builds: Mapping[str, Build], trusted: Sequence[str]) -> Iterator[SimulatedStand]:
        self.clock += 0.01
        key = " ".join(f"{name}={builds[name].identity}" for name in sorted(builds))
        self.blocks[key] += 1
        yield SimulatedStand(self, dict(builds), f"{self.call} {key} {self.blocks[key]}")

    def now(self) -> float:
        return self.clock

    def host(self) -> HostReading:
        return HostReading(load1=0.1, total=100 * self.clock, idle=50 * self.clock, steal=0.0)

    def ring_bytes(self, shape: Shape) -> int:
        return 8 * prod(shape.axes.values())

    def close(self) -> None:
        self.known.clear()


@dataclass
class SimulatedStand:
    lab: SimulatedLab
    builds: dict[str, Build]
    block: str
    samples: Counter[str] = field(default_factory=Counter)

    def heat(self, shape: Shape, order: Sequence[str]) -> Heat:
        samples = []
        for name in order:
            sample = f"{name} {shape.key}"
            self.samples[sample] += 1
            noise = random.Random(f"{self.block} {sample} {self.samples[sample]}").lognormvariate(0.0, 0.004)
            us = self.lab.us(self.builds[name], shape) * noise
            calls = max(1, round(1500 / us))
            self.lab.clock += calls * us / 1e6
            samples.append(Sampled(name=name, calls=calls, elapsed_us=calls * us, worker_us=calls * us))
        return Heat(samples=tuple(samples))

    def strict(self, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        return {}


@dataclass
class SimulatedWorkshop(Workshop):
    """Builds and verifies for real, times on the simulated clock, and notes each call in `calls`. Where the session's
    verdicts are shared, an object that has passed is not verified again: marks for the clock change no object."""

    @property
    def notes(self) -> Path:
        return self.settings.home / "simulated"

    @cached_property
    def bench(self) -> Bench:
        return Bench(operator=self.operator, lab=SimulatedLab(self.notes), keep=self.keep, rng=random.Random(11))

    def build(self, args: BuildArgs) -> Builds:
        self.note("build", *(c.identity for c in args.candidates))
        for candidate in args.candidates:
            (self.notes / candidate.identity).write_text(candidate.model_dump_json())
        made = super().build(args).builds
        # A mark in a comment changes no object: each identity counts as an object of its own.
        return Builds(builds=tuple(
            b.model_copy(update={"artifact_hash": hash_of(b.identity)}) if b.status == "ok" else b for b in made
        ))  # fmt: skip

    def verify(self, args: VerifyArgs) -> Verification:
        self.note("verify", args.build.identity, args.options.content_hash())
        kept = self.settings.home / "cache" / "verdicts" / self._question(args)
        if kept.is_file():
            return Verification.model_validate_json(kept.read_bytes())
        found = super().verify(args)
        if found.status == "ok" and kept.parent.is_dir():
            draft = kept.with_name(f"{kept.name}.{os.getpid()}")
            draft.write_text(found.model_dump_json())
            draft.replace(kept)
        return found

    def _question(self, args: VerifyArgs) -> str:
        """What a verdict hangs on: the object's bytes, the operator with its reference, the options, the sandbox."""
        operator = self.operator.model_dump(mode="json", exclude={"folder"})
        held = [Path(args.build.artifact).read_bytes().hex(), reference_path(self.operator).read_text()]
        return hash_of(operator, *held, args.build.scratch_bytes, args.options, self.sandbox)

    def noise(self, args: BuildRef) -> Noise:
        self.note("noise", args.build.identity)
        return super().noise(args)

    def profile(self, args: ProfileArgs) -> Profile:
        self.note("profile", args.build.identity)
        options = ProfileOptions(ring_bytes=self.bench.ring_bytes())
        times = self.bench.call_times(args.build)
        return profile(self.operator, args.candidate, args.build, times, self.machine, options)

    def screen(self, args: ScreenArgs) -> Screens:
        self.note("screen", args.baseline.identity, *(c.identity for c in args.candidates))
        return super().screen(args)

    def confirm(self, args: ConfirmArgs) -> Timing:
        self.note("confirm", args.candidate.identity, args.incumbent.identity, str(args.held_out))
        return super().confirm(args)

    def note(self, *words: str) -> None:
        """One line a call, flushed at once: a killed process leaves it."""
        lab = self.bench.lab
        assert isinstance(lab, SimulatedLab)
        lab.call = " ".join(words)
        lab.blocks.clear()
        self.notes.mkdir(parents=True, exist_ok=True)
        with open(self.notes / "calls", "a", encoding="utf-8") as handle:
            handle.write(" ".join(words) + "\n")


def calls(workdir: Path) -> list[str]:
    """All tool calls of all sittings in a working directory."""
    path = workdir / ".kernelcrew" / "simulated" / "calls"
    return path.read_text().splitlines() if path.exists() else []


def peaks(machine: Machine, settings: Settings) -> tuple[Peak, ...]:
    return PEAKS


def simulate(patch: pytest.MonkeyPatch) -> None:
    """Put the simulated clock and peaks in; choose the embedding that needs no model file."""
    patch.setenv("KERNELCREW_EMBEDDER", "lexical")
    patch.setattr(session, "Workshop", SimulatedWorkshop)
    patch.setattr(session, "measure_peaks", peaks)
    patch.setattr(session, "core_lock", lambda *_: no_lock)


@dataclass
class Finished:
    """One run to its end."""

    record: RunRecord
    folder: Path
    events: list[Event]
    steps: list[Step]

    def said(self, words: str) -> bool:
        return any(words in e.message for e in self.events)

    def step(self, name: str) -> dict[str, Any]:
        return next(s.payload for s in reversed(self.steps) if s.step == name)


def run(workdir: Path, operator: Path, **asked: Any) -> Finished:
    """A whole run in this process; an operator that lies in no repository is worked on in a copy."""
    events: list[Event] = []
    given = {"operator": str(operator), "rounds": 1, "budget_min": 10.0, "anyway": True}
    wanted = Asked.model_validate({**given, **asked})
    return finish(open_run(resolve(workdir), wanted, events.append), events)


def resume(workdir: Path, name: str) -> Finished:
    """A killed or stopped run to its end, in this process."""
    events: list[Event] = []
    crew, _ = reopen_run(resolve(workdir), name, events.append)
    return finish(crew, events)


def finish(crew: Crew, events: list[Event]) -> Finished:
    folder = crew.journal.folder
    try:
        record = play(crew)
        write_report(folder)
    finally:
        crew.close()
    return Finished(record=record, folder=folder, events=events, steps=read_steps(folder))


@dataclass(frozen=True)
class Death:
    """Where a process ends itself with SIGKILL: `after` a step's line is on disk, `before` it is written (the work is
    done), or `torn` in the middle of it."""

    step: str
    """Regular expression that a step's whole name matches."""
    how: str


def sit(workdir: Path, operator: Path, name: str, death: Death | None) -> None:
    """One sitting of a run, in a process of its own: begin it (no name) or go on with it, and die where told."""
    os.environ["KERNELCREW_EMBEDDER"] = "lexical"
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch)
        if death is not None:
            patch.setattr(Journal, "append", _dying(death))
        if name:
            resume(workdir, name)
        else:
            run(workdir, operator)


def _dying(death: Death) -> Callable[[Journal, Step], None]:
    append = Journal.append

    def dying(journal: Journal, step: Step) -> None:
        here = re.fullmatch(death.step, step.step) is not None
        if here and death.how == "torn":
            line = step.model_dump_json().encode()
            with open(journal.folder / "journal.jsonl", "ab") as handle:
                handle.write(line[: len(line) // 2])
        if not here or death.how == "after":
            append(journal, step)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)

    return dying


def share_builds(base: Path, workdir: Path) -> None:
    """Let a working directory use the session's one cache of builds, worker programs and verdicts, in which each object
    that passes is verified once; `base` is pytest's own folder, which lies beside those of its other processes."""
    own = workdir / ".kernelcrew" / "cache"
    own.mkdir(parents=True, exist_ok=True)
    session_base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    for name in ("builds", "workers", "verdicts"):
        shared = session_base / "flow-cache" / name
        shared.mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(shared, target_is_directory=True)


Script = Callable[[Question], Record]
"""One role's answers: a function of the question."""


@dataclass
class ScriptedTeam:
    """A team whose answers are given; roles without a script answer as the rule-based experts do."""

    scripts: Mapping[Role, Script]
    asked: list[Question] = field(default_factory=list)

    async def ask(self, question: Question) -> Answer:
        from kernelcrew.agents.recipes_client import answer

        self.asked.append(question)
        script = self.scripts.get(question.role)
        content = script(question) if script else answer(question.role, question.evidence, 0)
        fields = {"profiler_reader": "bottlenecks", "proposer": "proposals", "patch_writer": "patch"}
        name = fields.get(question.role, "review")
        return Answer.model_validate({"role": question.role, "status": "ok", name: content, "usage": Usage(calls=1)})

    def questions(self, role: Role) -> list[dict[str, Any]]:
        return [json.loads(q.evidence) for q in self.asked if q.role == role]


def script(patch: pytest.MonkeyPatch, scripts: Mapping[Role, Script]) -> ScriptedTeam:
    """Let the next runs in this process ask a scripted team."""
    team = ScriptedTeam(scripts)
    patch.setattr(session, "Team", lambda *parts: team)
    return team


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> Any:
        """The JSON object on the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


Say = Callable[..., Said]
"""A command by its words."""


def command(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *words: str) -> Said:
    """One kernelcrew command in this process, through its outermost door; what escapes that is a traceback."""
    patch.setattr(sys, "argv", ["kernelcrew", *words])
    capture.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capture.readouterr()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, said.out, said.err)


def git(folder: Path, *words: str) -> str:
    """What git says, with none of the user's settings but a name."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_OPTIONAL_LOCKS": "0"}
    who = ("-c", "user.name=A", "-c", "user.email=a@localhost")
    done = subprocess.run(["git", *who, *words], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout
