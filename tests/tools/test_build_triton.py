"""Triton in the sandbox: cubins with their figures, errors with lines, refusals, and a child that is no danger."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import MissingTool
from kernelcrew.tools import build_triton as builder
from kernelcrew.tools.nouns_gpu import GpuBuild, TritonPlan
from kernelcrew.tools.triton_child import explained, first_line

sys.path.insert(0, str(Path(__file__).parent))
from gpu_kit import needs_triton, sandbox, settings
from gpu_sources import TRITON, TRITON_PLANS

COPY = (
    "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef copy(x, y, n, B: tl.constexpr):\n"
    "    at = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)\n"
)
COPIED: dict[str, object] = {
    "kernel": "copy",
    "signature": {"x": "*fp32", "y": "*fp32", "n": "i32"},
    "constants": {"B": 256},
}


def built(source: str, folder: Path, limits: proc.Limits | None = None, **plan: object) -> GpuBuild:
    whole = TritonPlan.model_validate({**COPIED, **plan})
    return builder.build_triton(source, whole, settings(folder), sandbox(), limits or builder.gpu.LIMITS)


@needs_triton
@pytest.mark.parametrize("name", TRITON)
def test_an_honest_kernel_builds(name: str, tmp_path: Path) -> None:
    signature, constants = TRITON_PLANS[name]
    divisible = {n: 16 for n, kind in signature.items() if kind.startswith("*")}
    build = built(TRITON[name], tmp_path, kernel=name, signature=signature, constants=constants, divisible=divisible)
    assert build.status == "ok", build.diagnostics
    assert Path(build.artifact).read_bytes()[:4] == b"\x7fELF"
    (taken,) = build.resources
    assert taken.kernel == name and 8 <= taken.registers <= 255 and taken.static_shared_bytes == 0
    assert build.threads == 128 and build.toolchain.startswith("triton 3.")


@needs_triton
def test_a_build_is_kept_and_knobs_are_part_of_its_key(tmp_path: Path) -> None:
    first, second = built(COPY, tmp_path), built(COPY, tmp_path)
    assert first.status == "ok" and second.seconds == 0 and second.artifact == first.artifact
    other = built(COPY, tmp_path, num_warps=8)
    assert other.threads == 256 and other.artifact != first.artifact


@needs_triton
def test_specialisation_reaches_the_compiler(tmp_path: Path) -> None:
    plain = built(COPY, tmp_path)
    wide = built(COPY, tmp_path, divisible={"x": 16, "y": 16, "n": 16})
    one = built(COPY, tmp_path, signature={"x": "*fp32", "y": "*fp32"}, constants={"B": 256, "n": 1})
    assert {b.status for b in (plain, wide, one)} == {"ok"}
    assert len({b.artifact_hash for b in (plain, wide, one)}) == 3


@needs_triton
def test_an_error_names_its_line(tmp_path: Path) -> None:
    build = built(COPY.replace("tl.arange(0, B)", "tl.arange(0, 48)"), tmp_path)
    assert build.status == "failed"
    assert build.diagnostics[0].line == 7 and "power of 2" in build.diagnostics[0].message


@needs_triton
def test_a_plan_that_does_not_fit_the_parameters_fails(tmp_path: Path) -> None:
    build = built(COPY, tmp_path, signature={"x": "*fp32", "z": "*fp32", "n": "i32"})
    assert build.status == "failed" and "missing ['y'], unknown ['z']" in build.diagnostics[0].message
    missing = built(COPY, tmp_path, kernel="other")
    assert missing.status == "failed" and "other" in missing.diagnostics[0].message


@needs_triton
def test_too_much_shared_memory_fails_with_the_figures(tmp_path: Path) -> None:
    signature, constants = TRITON_PLANS["matmul"]
    large = {**constants, "BM": 256, "BN": 128, "BK": 64}
    build = built(
        TRITON["matmul"], tmp_path, kernel="matmul", signature=signature, constants=large, num_stages=8, num_warps=8,
        divisible=dict.fromkeys(signature, 16),
    )  # fmt: skip
    assert build.status == "failed" and "sm_90 has 232448" in build.diagnostics[0].message, build.diagnostics


@needs_triton
def test_the_time_limit_ends_the_compiler(tmp_path: Path) -> None:
    build = built(COPY, tmp_path, proc.Limits(time_s=0.1))
    assert build.status == "failed" and "did not finish within 0.1 s" in build.diagnostics[0].message


@needs_triton
def test_a_module_that_passed_no_gate_reaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child runs the module: were the gate fooled, there would still be no host file and no network to reach."""
    if sandbox().kind != "bwrap":
        pytest.skip("this sandbox does not hide the host's files")
    secret = tmp_path / "secret"
    secret.write_text("key")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setattr(builder, "judge_triton", lambda source: [])
    hostile = (
        "import os, socket\nseen = [os.path.exists(" + repr(str(secret)) + "), 'OPENAI_API_KEY' in os.environ]\n"
        "try:\n    socket.create_connection(('1.1.1.1', 80), 2)\n    seen.append(True)\n"
        "except OSError:\n    seen.append(False)\nraise RuntimeError(f'seen {seen}')\n"
    )
    build = built(hostile + COPY, tmp_path)
    assert build.status == "failed" and "seen [False, False, False]" in build.diagnostics[0].message


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ({"arch": "sm_60"}, "arch"), ({"kernel": "a b"}, "entry"), ({"kernel": "__import__"}, "entry"),
        ({"signature": {"x": "*fp32; import os"}}, "signature"), ({"signature": {"B": "i32"}}, "signature"),
        ({"constants": {"B": "a b; c"}}, "constant"), ({"constants": {"B": 1 << 70}}, "constant"),
        ({"divisible": {"x": 7}}, "signature"), ({"divisible": {"q": 16}}, "signature"), ({"num_warps": 3}, "knob"),
        ({"num_stages": 99}, "knob"), ({"num_ctas": 3}, "knob"), ({"max_registers": 1}, "knob"),
    ],
)  # fmt: skip
def test_a_plan_is_judged_first(plan: dict[str, object], rule: str, tmp_path: Path) -> None:
    build = built(COPY, tmp_path, **plan)
    assert (build.status, build.stage) == ("refused", "policy")
    assert rule in {d.kind for d in build.diagnostics}
    assert not (tmp_path / ".kernelcrew").exists()


def test_a_source_is_judged_before_it_is_imported(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    build = built(f"open({str(trap)!r}, 'w')\n{COPY}", tmp_path)
    assert (build.status, build.stage) == ("refused", "policy") and not trap.exists()


def test_without_triton_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="triton is not installed"):
        builder.located()


@pytest.mark.parametrize(
    "left", ["", "[]", "{", '{"shared_bytes": "a"}', '{"shared_bytes": 1, "num_warps": 4}', "\udcff"]
)
def test_an_answer_of_no_use_is_none(left: str, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(left, errors="surrogateescape")
    assert builder._answer(tmp_path) == {}
    (tmp_path / "answer.json").write_text(json.dumps({"error": 7, "line": "x"}))
    assert builder._answer(tmp_path) == {"error": "7", "line": 0}


def test_a_link_or_a_pipe_in_an_answers_place_is_none(tmp_path: Path) -> None:
    (tmp_path / "real").write_text('{"error": "x", "line": 1}')
    (tmp_path / "answer.json").symlink_to(tmp_path / "real")
    assert builder._answer(tmp_path) == {}
    (tmp_path / "answer.json").unlink()
    os.mkfifo(tmp_path / "answer.json")
    assert builder._answer(tmp_path) == {}


def test_an_error_is_placed_in_the_file() -> None:
    assert first_line("def copy(x):\n    pass", COPY) == 6
    assert first_line("def other(x):\n    pass", COPY) == 0
    error = ValueError("outer")
    error.__cause__ = inner = ValueError("inner")
    inner.node, inner.src = ast.parse("a\nb").body[1], "def copy(x, y, n, B):\n    b"  # type: ignore[attr-defined]
    assert explained(error, COPY) == {"error": "ValueError: inner", "line": 7}
    assert explained(ValueError("plain"), COPY) == {"error": "ValueError: plain", "line": 0}
