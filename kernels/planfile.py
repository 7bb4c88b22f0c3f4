"""Candidates as files: what a branch, a trial tree and `--plan` hold.

A candidate is `plan.toml` plus one source a variant (`kernel.c`, and `kernel_v1.c`, `kernel_v2.c` for variants with a
rule). In a repository of the user's own the unconditional variant keeps the file that operator.toml names, which may
lie elsewhere in the tree. The plan is data: names that it does not know are refused with the field and the fix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcrew.errors import BadManifest
from kernelcrew.files import read_text
from kernelcrew.kernels.nouns import Candidate, KernelSource, LaunchPlan, Variant
from kernelcrew.wording import told, toml_of

PLAN = "plan.toml"


def to_files(candidate: Candidate, kernel: str = "") -> dict[str, str]:
    """File name to text: `plan.toml` and the sources. `kernel` names the unconditional variant's file."""
    files: dict[str, str] = {}
    lines = [f"operator = {_text(candidate.operator)}", f"backend = {_text(candidate.backend)}"]
    last = len(candidate.variants) - 1
    for index, variant in enumerate(candidate.variants):
        suffix = Path(variant.source.name).suffix or ".c"
        name = (kernel or f"kernel{suffix}") if index == last else f"kernel_v{index + 1}{suffix}"
        files[name] = variant.source.text
        lines += ["", "[[variant]]", f"file = {_text(name)}"]
        if variant.when is not None:
            lines.append(f"when = {_text(variant.when)}")
        lines += _plan_lines(variant.plan)
    files[PLAN] = "\n".join(lines) + "\n"
    return files


def files_named(plan: str, where: str) -> tuple[str, ...]:
    """The sources that the text of a plan names, in order. Raises BadManifest."""
    listed = toml_of(plan, f"{where}/{PLAN}").get("variant", [])
    return tuple(str(one.get("file", "")) for one in listed) if isinstance(listed, list) else ()


def from_files(files: dict[str, str], where: str) -> Candidate:
    """The candidate that `to_files` wrote. `where` names the files in errors. Raises BadManifest."""
    data = toml_of(files.get(PLAN, ""), f"{where}/{PLAN}")
    variants = []
    for index, raw in enumerate(data.get("variant", [])):
        entry = dict(raw)
        name = entry.pop("file", "")
        if name not in files:
            raise BadManifest(
                f"{where}/{PLAN}, variant {index + 1}", f"file '{name}' is not there", fix="restore the branch"
            )
        when = entry.pop("when", None)
        plan = _plan(entry, f"{where}/{PLAN}, variant {index + 1}")
        variants.append(Variant(source=KernelSource(text=files[name], name=name), plan=plan, when=when))
    if not variants:
        raise BadManifest(f"{where}/{PLAN}", "no [[variant]]", fix="a plan lists at least one variant")
    return Candidate(
        operator=str(data.get("operator", "")), backend=str(data.get("backend", "c")), variants=tuple(variants)
    )


def read_plan(path: Path, base: LaunchPlan) -> LaunchPlan:
    """A plan file for one source (`entry`, `flags`, `defines`, `threads`, `scratch_bytes`), over the operator's own.

    Raises BadManifest naming file, line or field.
    """
    data = toml_of(read_text(path, str(path), fix="give a plan as a TOML file"), str(path))
    data.pop("operator", None)
    data.pop("backend", None)
    variants = data.pop("variant", None)
    if isinstance(variants, list) and len(variants) == 1 and not data:
        data = {k: v for k, v in variants[0].items() if k not in ("file", "when")}
    elif variants is not None:
        raise BadManifest(str(path), "several variants", fix="`judge` takes one source: give its plan alone")
    return _plan({**base.model_dump(exclude_none=True), **data}, str(path))


def _plan(data: dict[str, Any], where: str) -> LaunchPlan:
    try:
        return LaunchPlan.model_validate(data)
    except ValidationError as error:
        raise told(where, error, LaunchPlan) from error


def _plan_lines(plan: LaunchPlan) -> list[str]:
    lines = [
        f"entry = {_text(plan.entry)}",
        f"flags = [{', '.join(_text(f) for f in plan.flags)}]",
        f"threads = {plan.threads}",
    ]
    if plan.scratch_bytes is not None:
        lines.append(f"scratch_bytes = {_text(plan.scratch_bytes)}")
    if plan.defines:
        lines += ["", "[variant.defines]", *(f"{name} = {value}" for name, value in sorted(plan.defines.items()))]
    return lines


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
