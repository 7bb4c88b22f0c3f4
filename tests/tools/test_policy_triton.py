"""The source policy of Triton kernels: what it refuses, with rule and line, and what it lets through."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from kernelcrew.tools.policy_triton import judge_triton

sys.path.insert(0, str(Path(__file__).parent))
from gpu_sources import TRITON

HEAD = "import triton\nimport triton.language as tl\n\n"
KERNEL = "@triton.jit\ndef k(x, y, n, B: tl.constexpr):\n"
HONEST = KERNEL + "    at = tl.arange(0, B)\n    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)\n"

MODULE = {
    "other import": ("import", "import os\n"),
    "torch": ("import", "import torch\n"),
    "import of two": ("import", "import triton, os\n"),
    "from os": ("import", "from os import system\n"),
    "relative": ("import", "from . import x\n"),
    "star": ("import", "from triton.language import *\n"),
    "runtime": ("import", "from triton.runtime import driver\n"),
    "testing": ("import", "import triton.testing\n"),
    "compiler": ("import", "import triton.compiler as c\n"),
    "core": ("import", "from triton.language import core\n"),
    "cuda extra": ("import", "from triton.language.extra.cuda import globaltimer\n"),
    "assembler by name": ("import", "from triton.language import inline_asm_elementwise\n"),
    "future": ("import", "from __future__ import annotations\n"),
    "host function": ("host", "def launch(x):\n    return x\n"),
    "class": ("module", "class A:\n    pass\n"),
    "call": ("module", "print(1)\n"),
    "if": ("module", "if True:\n    pass\n"),
    "try": ("module", "try:\n    pass\nexcept Exception:\n    pass\n"),
    "with": ("module", "with open('x') as f:\n    pass\n"),
    "loop": ("module", "for i in range(3):\n    pass\n"),
    "async": ("module", "async def f():\n    pass\n"),
    "delete": ("module", "del triton\n"),
    "assert": ("module", "assert True\n"),
    "computed constant": ("module", "A = __import__('os')\n"),
    "lambda constant": ("module", "A = lambda: 0\n"),
    "power": ("module", "A = 10 ** 10\n"),
    "long text": ("module", f"A = 'a' * 9\nB = '{'a' * 3000}'\n"),
    "huge number": ("module", f"A = 0x1{'0' * 400}\n"),
    "two names": ("module", "A = B = 1\n"),
    "into an attribute": ("module", "tl.load = 1\n"),
    "annotation": ("module", "A: print('x') = 1\n"),
    "list": ("module", "A = [1]\n"),
    "taken name": ("name", "tl = 1\n"),
    "dunder": ("name", "__builtins__ = 1\n"),
    "constant twice": ("name", "A = 1\nA = 2\n"),
    "autotune": ("decorator", f"@triton.autotune(configs=[], key=[])\n{HONEST}"),
    "heuristics": ("decorator", f"@triton.heuristics({{}})\n{HONEST}"),
    "other decorator": ("decorator", "@print\ndef g():\n    pass\n"),
    "decorator by lambda": ("decorator", "@(lambda f: f)\ndef g():\n    pass\n"),
    "unknown option": ("decorator", "@triton.jit(launch_metadata=print)\ndef g():\n    pass\n"),
    "computed option": ("decorator", "@triton.jit(noinline=print(1))\ndef g():\n    pass\n"),
    "def inside a decorator's string": (
        "decorator",
        "@triton.jit(do_not_specialize=['''\ndef evil(x):\n    tl.device_print('x')\n'''])\ndef g(x):\n    pass\n",
    ),
    "default value": ("function", "@triton.jit\ndef g(x=print('x')):\n    pass\n"),
    "annotation of a parameter": ("function", "@triton.jit\ndef g(x: print('x')):\n    pass\n"),
    "return annotation": ("function", "@triton.jit\ndef g(x) -> print('x'):\n    pass\n"),
    "star arguments": ("function", "@triton.jit\ndef g(*x):\n    pass\n"),
    "double star": ("function", "@triton.jit\ndef g(**x):\n    pass\n"),
    "hidden module": ("name", "@triton.jit\ndef g(tl):\n    pass\n"),
    "syntax": ("syntax", "def (:\n"),
    "encoding": ("text", ""),
    "control": ("text", "A = 1\x0c\n"),
    "line separator": ("text", "# a\u2028b\n"),
    "carriage return": ("text", "# a\rimport os\n"),
    "brackets": ("size", f"A = {'(' * 90}1{')' * 90}\n"),
    "signs": ("size", f"A = {'-' * 5000}1\n"),
}

BODY = {
    "exec": ("call", "exec('1')"),
    "eval": ("name", "y = eval"),
    "open": ("call", "open('/etc/passwd')"),
    "getattr": ("call", "getattr(x, 'to')"),
    "print": ("call", "print(x)"),
    "dunder import": ("call", "__import__('os')"),
    "dunder attribute": ("attribute", "z = x.__class__"),
    "dunder name": ("name", "z = __builtins__"),
    "module attribute": ("name", "z = tl.core"),
    "deep attribute": ("name", "z = tl.math.core.builtin"),
    "semantic": ("name", "z = tl.semantic"),
    "runtime": ("name", "z = triton.runtime"),
    "testing": ("name", "triton.testing.do_bench(x)"),
    "device print": ("name", "tl.device_print('x', x)"),
    "device assert": ("name", "tl.device_assert(x > 0)"),
    "static print": ("name", "tl.static_print('x')"),
    "clock": ("name", "z = tl.extra.cuda.globaltimer()"),
    "processor": ("name", "z = tl.extra.cuda.smid()"),
    "assembler clock": (
        "asm",
        "z = tl.inline_asm_elementwise('mov.u64 $0, %clock64;', '=l', [x], dtype=tl.int64, is_pure=False, pack=1)",
    ),
    "assembler memory": (
        "asm",
        "z = tl.inline_asm_elementwise('ld.global.f32 $0, [$1];', '=f,l', [x], dtype=tl.float32, is_pure=True, pack=1)",
    ),
    "assembler by variable": (
        "asm",
        "z = tl.inline_asm_elementwise(x, '=r', [x], dtype=tl.int32, is_pure=True, pack=1)",
    ),
    "assembler by keyword": ("asm", "z = tl.inline_asm_elementwise(asm='trap;', constraints='=r', args=[x])"),
    "free name": ("name", "z = other"),
    "triton's jit": ("name", "z = triton.jit(x)"),
    "import": ("statement", "import os"),
    "nested function": ("statement", "def inner():\n        pass"),
    "lambda": ("expression", "z = lambda a: a"),
    "comprehension": ("expression", "z = [i for i in range(3)]"),
    "generator": ("expression", "z = max(i for i in range(3))"),
    "dictionary": ("expression", "z = {1: 2}"),
    "walrus": ("expression", "z = (q := 1)"),
    "f-string": ("expression", "z = f'{x}'"),
    "bytes": ("expression", "z = b'x'"),
    "star argument": ("expression", "z = tl.zeros(*x)"),
    "double star argument": ("call", "z = tl.zeros(**x)"),
    "await": ("expression", "z = await x"),
    "yield": ("expression", "yield x"),
    "try": ("statement", "try:\n        pass\n    except Exception:\n        pass"),
    "with": ("statement", "with x:\n        pass"),
    "global": ("statement", "global z"),
    "nonlocal": ("statement", "nonlocal z"),
    "raise": ("statement", "raise x"),
    "delete": ("statement", "del x"),
    "assert": ("statement", "assert x"),
    "break": ("statement", "while x:\n        break"),
    "match": ("statement", "match x:\n        case 1:\n            pass"),
    "class": ("statement", "class A:\n        pass"),
    "assigned attribute": ("attribute", "x.dtype = 1"),
    "call of a parameter": ("call", "x(1)"),
    "call of a call": ("call", "tl.load(x)(1)"),
    "unknown method": ("attribute", "x.numpy()"),
    "local module": ("name", "tl = x"),
    "annotated": ("statement", "z: print(1) = 1"),
    "huge number": ("expression", f"z = 0x1{'0' * 400}"),
    "deep": ("size", "z = " + " + ".join(["x"] * 90)),
}


def rules(source: str) -> set[str]:
    return {d.kind for d in judge_triton(source)}


@pytest.mark.parametrize("name", MODULE)
def test_refuses_at_module_level(name: str) -> None:
    rule, text = MODULE[name]
    source = f"# -*- coding: utf-7 -*-\n{HEAD}{HONEST}" if name == "encoding" else f"{HEAD}{text}\n{HONEST}"
    assert rule in rules(source), judge_triton(source)


@pytest.mark.parametrize("name", BODY)
def test_refuses_in_a_function(name: str) -> None:
    rule, text = BODY[name]
    found = judge_triton(f"{HEAD}{KERNEL}    {text}\n")
    assert rule in {d.kind for d in found}, found
    assert all(d.line >= 4 for d in found), found


@pytest.mark.parametrize("name", TRITON)
def test_an_honest_kernel_passes(name: str) -> None:
    assert judge_triton(TRITON[name]) == []


@pytest.mark.parametrize(
    "text",
    [
        "SCALE: tl.constexpr = 0.125", "N = tl.constexpr(64)", "A = -1", "B = 2 * 64 + 1", "T = (tl.float16, 'x')",
        "from triton.language import arange as iota, float32", "from triton import cdiv", "'a' if x else 'b'",
    ],
)  # fmt: skip
def test_plain_constants_and_imports_pass(text: str) -> None:
    refused = text.startswith("'a'")
    assert bool(judge_triton(f"{HEAD}{text}\n{HONEST}")) == refused


@pytest.mark.parametrize(
    "text",
    [
        "z = tl.load(x, cache_modifier='.cg')", "z = x.to(tl.float32).trans()", "z = max(n, 1)",
        "z = tl.extra.libdevice.tanh(x)", "z = triton.language.exp(x)", "z: tl.constexpr = B * 2",
        "a, b = x, y", "z = tl.dot(x, y, input_precision='tf32x3')", "z = x[:, None, ...]", "return",
        "max = tl.max(x, 0)", "z = tl.make_tensor_descriptor(x, [n, n], [n, 1], [B, B]).load([0, 0])",
        "z = tl.float32.primitive_bitwidth", "for i in tl.range(0, n, num_stages=2, flatten=True):\n        pass",
    ],
)  # fmt: skip
def test_the_language_passes(text: str) -> None:
    assert judge_triton(f"{HEAD}{KERNEL}    {text}\n") == []


def test_an_empty_module_holds_no_kernel() -> None:
    assert rules(HEAD) == {"module"}
    assert rules("") == {"module"}


def test_a_rule_names_its_line() -> None:
    (found,) = judge_triton(f"{HEAD}{KERNEL}    z = 1\n    print(z)\n")
    assert (found.line, found.kind) == (7, "call")


def test_nothing_of_the_source_runs(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    assert judge_triton(f"{HEAD}open({str(trap)!r}, 'w')\n{HONEST}")
    assert not trap.exists()


def test_the_judge_is_fast_on_what_is_large() -> None:
    started = time.process_time()
    assert rules(f"{HEAD}{KERNEL}" + "    z = x + y\n" * 2900) == set()
    assert rules(f"{HEAD}{KERNEL}" + "    z = x + y\n" * 4000) == {"size"}
    assert rules(f"{HEAD}A = '{'a' * (1 << 18)}'\n{HONEST}") == {"size"}
    assert rules(HEAD + KERNEL + "    z = " + "+".join(["(x)"] * 30000) + "\n") & {"size"}
    assert time.process_time() - started < 20.0
