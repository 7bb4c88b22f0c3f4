"""The command `kernelcrew policy`: verdict lines, exit status, and the backend told from the file's ending."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.runs.cli import app
from kernelcrew.tools.policy_source import language_of

GOOD = {
    "k.c": "void f(float *x)\n{\n    x[0] = 1;\n}\n",
    "k.cu": 'extern "C" __global__ void f(float *x)\n{\n    x[0] = 1;\n}\n',
    "k.py": "import triton\n\n\n@triton.jit\ndef f(x):\n    pass\n",
}
BAD = {
    "k.c": ("    system(0);", "3", "call"),
    "k.cu": ("    printf(0);", "3", "call"),
    "k.py": ("    print(x)", "6", "call"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_file_is_judged_by_its_ending(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(GOOD[name])
    passed = CliRunner().invoke(app, ["policy", str(file)])
    assert (passed.exit_code, passed.output.startswith("passed")) == (0, True), passed.output
    line, at, rule = BAD[name]
    file.write_text(GOOD[name].replace("    x[0] = 1;", line).replace("    pass", line))
    refused = CliRunner().invoke(app, ["policy", str(file)])
    assert refused.exit_code == 1 and f"{file}:{at}: {rule}: " in refused.output, refused.output
    answer = json.loads(CliRunner().invoke(app, ["policy", str(file), "--json"]).output.splitlines()[-1])
    assert answer["passed"] is False and answer["broken"][0]["line"] == int(at) and answer["broken"][0]["rule"] == rule


def test_a_backend_can_be_named() -> None:
    assert language_of("kernel.txt", "cuda") == "cuda"
    assert [language_of(f"a.{end}") for end in ("c", "cu", "cuh", "py")] == ["c", "cuda", "cuda", "triton"]
    with pytest.raises(UnknownName, match="Known: c, cuda, triton"):
        language_of("a.c", "fortran")
    with pytest.raises(UserMistake, match="tells no backend"):
        language_of("a.txt")
