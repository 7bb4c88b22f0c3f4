"""The process in which Kernel Tuner searches. Started by `race.py`, one search a process; Kernel Tuner's only importer.

`python -m kernelcrew.runs.race_kt JOB.json` writes a line of JSON for each configuration as soon as it is measured. The
kernels come from kernelcrew's own recipes, and this process knows no key and pins itself to the measuring core.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelcrew import proc
from kernelcrew.errors import HarnessError
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.kernels.recipes import RECIPES
from kernelcrew.platforms.nouns import Toolchain
from kernelcrew.record import Record
from kernelcrew.runs.race_space import LISTED_MOST, Config, RecipeSpace, composed, space_for
from kernelcrew.runs.race_timing import ENTRY, arena_for, flags_of, layout, timing_text
from kernelcrew.tools import build_lines as lines

FOUND = "found.jsonl"
ITERATIONS = 7
"""Kernel Tuner's own default: so many calls of the timed function, of which it takes the mean."""
DRAWN = 4096
"""Configurations drawn ahead for `random_sample`, many more than any budget measures."""
UNLISTED = "random_sample"
MARK = "/* flags: "
COMPILER = """\
#!/bin/sh
# Kernel Tuner names one compiler for all configurations: a configuration's own flags stand in its source's first line,
# behind the definitions that Kernel Tuner puts before it. It goes on after a failed build only for messages that it
# knows, of which the last words are one.
if [ "$1" = -c ]; then
    flags=$(sed -n 's,^/\\* flags: \\(.*\\) extern "C" \\*/$,\\1,p' "$2" | head -n 1)
    [ -n "$flags" ] || {{ echo "no flags in $2" >&2; exit 1; }}
    exec_line="{cc} $flags -x c"
    $exec_line "$@" || {{ echo "uses too much shared data" >&2; exit 1; }}
else
    exec {cc} "$@" timing.o -lm
fi
"""


class TunerJob(Record):
    """What one process is told."""

    operator: str
    """Shipped operator."""
    backend: str
    """c."""
    strategy: str
    """Kernel Tuner's."""
    seed: int
    """Of its choices."""
    core: int | None
    """The core to pin to."""
    toolchain: Toolchain
    """The compiler of our own builds."""
    began: float
    """Seconds since the epoch at which the process was started: the budget runs from there."""
    search_s: float
    """The budget."""


class Found(Record):
    """One line of what is written."""

    t_s: float
    """Seconds since the start of the process."""
    config: Config
    """In the whole space."""
    us: float
    """Mean time of a call."""


def tuned_by(space: RecipeSpace) -> tuple[dict[str, list[int]], list[str], Callable[[Mapping[str, Any]], Config]]:
    """A space in Kernel Tuner's terms: parameters, restrictions, and the way back. Each switch is a parameter of 0 and
    1, each knob one of its window, held at its first value while its switch is off. Their names are defined as macros
    in the source, so that they are none that a kernel uses."""
    parameters: dict[str, list[int]] = {}
    restrictions: list[str] = []
    for switch in space.switches:
        on = f"use_{switch.recipe}"
        parameters[on] = [0, 1]
        first = switch.choices[switch.first]
        names = {knob: f"knob_{switch.recipe}_{knob}" for knob in first}
        for knob, name in names.items():
            parameters[name] = sorted({c[knob] for c in switch.choices})
            restrictions.append(f"{on} == 1 or {name} == {first[knob]}")
        if len(switch.choices) > 1:
            restrictions += [_renamed(text, names) for text in RECIPES[switch.recipe].constraints]
    restrictions += [f"use_{a} == 0 or use_{b} == 1" for a, b in space.requires]
    restrictions += [f"use_{a} == 0 or use_{b} == 0" for a, b in space.conflicts]

    def back(values: Mapping[str, Any]) -> Config:
        chosen = []
        for switch in space.switches:
            knobs = {knob: int(values[f"knob_{switch.recipe}_{knob}"]) for knob in switch.choices[0]}
            chosen.append(1 + switch.choices.index(knobs) if values[f"use_{switch.recipe}"] else 0)
        return tuple(chosen)

    return parameters, restrictions, back


def drawn_from(
    space: RecipeSpace, seed: int
) -> tuple[dict[str, list[int]], list[str], Callable[[Mapping[str, Any]], Config]]:
    """As `tuned_by` for a space too large to be listed: distinct configurations, each as likely as any other, and
    their number as the one parameter. A random sample of these is a random sample of the space."""
    rng = random.Random(seed)
    found = list(dict.fromkeys(space.draw(rng) for _ in range(DRAWN)))
    return {"configuration": list(range(len(found)))}, [], lambda values: found[int(values["configuration"])]


def source_of(job: TunerJob, candidate: Candidate) -> str:
    """The text that Kernel Tuner compiles. With `extern "C"` in it, it is not wrapped into a block of C++."""
    variant = candidate.variants[-1]
    operator = load_operator(job.operator)
    flags = " ".join(flags_of(job.toolchain, operator.backends[job.backend], variant))
    return f'{MARK}{flags} extern "C" */\n{variant.source.text}'


def known_strategies() -> list[str]:
    """The strategies that the installed Kernel Tuner has."""
    from kernel_tuner.interface import strategy_map

    return sorted(strategy_map)


def search(job: TunerJob, folder: Path) -> None:
    """One search until its time is up. Raises HarnessError when the timed function does not build."""
    import kernel_tuner
    from kernel_tuner.observers import BenchmarkObserver

    operator = load_operator(job.operator)
    backend = operator.backends[job.backend]
    start = start_candidate(operator, job.backend)
    rng = np.random.default_rng(job.seed)
    placed = layout(operator, job.core, rng)
    _prepare(job, folder, timing_text(operator, backend, placed), lines.contract_header(operator, backend, False))
    space = space_for(operator, job.backend)
    listed = space.thinned(LISTED_MOST)
    if job.strategy == UNLISTED and listed != space:
        searched = space
        parameters, restrictions, back = drawn_from(space, job.seed)
    else:
        searched = listed
        parameters, restrictions, back = tuned_by(listed)
    out = open(folder / FOUND, "a", encoding="utf-8")  # noqa: SIM115 - closed by the end of the process

    class Teller(BenchmarkObserver):  # type: ignore[misc]
        """Writes each figure down when it is known, so that a killed search has told all it found."""

        def register_configuration(self, params: Mapping[str, Any]) -> None:
            self.config = back(params)
            self.us: list[float] = []

        def after_finish(self) -> None:
            self.us.append(float(self.dev.last_result))

        def get_results(self) -> dict[str, Any]:
            config = _in_whole(space, searched, self.config)
            found = Found(t_s=time.time() - job.began, config=config, us=float(np.mean(self.us)))
            out.write(found.model_dump_json() + "\n")
            out.flush()
            return {}

    random.seed(job.seed)
    np.random.seed(job.seed)
    most = {"max_fevals": DRAWN} if job.strategy == UNLISTED else {}
    left_s = job.search_s - (time.time() - job.began)
    kernel_tuner.tune_kernel(
        ENTRY,
        lambda values: source_of(job, composed(operator, start, searched, back(values))),
        1,
        [arena_for(operator, placed, rng)],
        parameters,
        restrictions=restrictions,
        lang="C",
        compiler=str(folder / "cc.sh"),
        iterations=ITERATIONS,
        observers=[Teller()],
        strategy=job.strategy,
        strategy_options={"time_limit": max(left_s, 1.0), **most},
        seed=job.seed,
    )


def _prepare(job: TunerJob, folder: Path, text: str, header: str) -> None:
    """The compiler's stand-in, the contract's header and the timed function, in the folder that becomes the working
    directory."""
    os.chdir(folder)
    (folder / lines.CONTRACT).write_text(header, encoding="utf-8")
    (folder / "timing.c").write_text(text, encoding="utf-8")
    script = folder / "cc.sh"
    script.write_text(COMPILER.format(cc=shlex.quote(job.toolchain.path)), encoding="utf-8")
    script.chmod(0o700)
    built = proc.run([job.toolchain.path, "-O2", "-fPIC", "-c", "timing.c", "-o", "timing.o"], cwd=folder)
    if not built.ok:
        raise HarnessError(f"the timed function does not build: {built.err[:300]}", fix="report this as a defect")


def _in_whole(space: RecipeSpace, part: RecipeSpace, config: Config) -> Config:
    """The same configuration by the numbers of the whole space."""
    chosen = []
    for whole, thin, number in zip(space.switches, part.switches, config, strict=True):
        chosen.append(1 + whole.choices.index(thin.choices[number - 1]) if number else 0)
    return tuple(chosen)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A constraint over the parameters' longer names."""
    parse(text)
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    return " ".join(names.get(word, word) for word in words)


def main(path: Path) -> None:
    """One job from its file; its folder is where everything is written."""
    job = TunerJob.model_validate(json.loads(path.read_text(encoding="utf-8")))
    if job.core is not None:
        os.sched_setaffinity(0, {job.core})
    search(job, path.parent.absolute())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
