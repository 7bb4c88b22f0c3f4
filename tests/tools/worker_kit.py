"""A small operator and C kernels, honest and hostile, for the tests of arena and worker."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kernelcrew.kernels.nouns import Axis, Backend, Contract, Cost, Distribution, Operator, Shape, Tensor, Tolerance
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import Build

HONEST = "for (int i = 0; i < n; i++) y[i] = x[i] + k;"
KERNELS = {
    "honest": HONEST,
    "past_the_end": HONEST + " y[n] = 1;",
    "before_the_start": HONEST + " y[-1] = 1;",
    "reads_past_the_end": HONEST + " y[0] += ((volatile const float *)x)[n];",
    "writes_input": HONEST + " ((float *)x)[n / 2] = 7;",
    "writes_unchanged_input": HONEST + " *(volatile float *)x = x[0];",
    "loop": "for (;;) *(volatile float *)y = x[0];",
    "null": "*(volatile float *)0 = x[0];",
    "abort": "abort();",
    "exits": "_exit(0);",
    "syscall": HONEST + " syscall(39);",
    "forks": HONEST + " fork();",
    "thread": HONEST + " pthread_t t; pthread_create(&t, 0, (void *(*)(void *))getpid, 0);",
    "floods": HONEST + ' for (;;) puts("flood");',
    "opens": HONEST + ' open("/etc/passwd", 0);',
    "executable": HONEST + " *(int *)mmap(0, 4096, 7, 0x22, -1, 0) = 0;",
    "allocates": HONEST + " for (;;) { char *p = malloc(1 << 24); memset(p, 1, 1 << 24); }",
    "mallocs": "float *t = malloc(1 << 20); for (int i = 0; i < n; i++) t[i] = x[i]; "
    "for (int i = 0; i < n; i++) y[i] = t[i] + k; free(t);",
    "rounding": HONEST + " __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x6000);",
    "forges": HONEST + " char *name = program_invocation_name; long w[41] = {5, 1, 1};"
    " send(atoi(name + strlen(name) + 1), w, 320, 0); for (;;) *(volatile float *)y += 1;",
}
"""Bodies of `void shift(const float *x, float *y, int n, int k)`; `forges` finds the link's number behind argv[0]."""
HEADERS = "errno.h fcntl.h pthread.h stdlib.h stdio.h string.h sys/mman.h sys/socket.h sys/syscall.h unistd.h"


def operator() -> Operator:
    """y[n] = x[n] + k, float32."""
    name = "shift"
    return Operator(
        name=name, version=1, summary="x plus k", folder=Path("."),
        axes=(Axis(name="n"), Axis(name="k")),
        tensors=(Tensor(name="x", role="in", dims=("n",)), Tensor(name="y", role="out", dims=("n",))),
        contract=Contract(),
        backends={"c": Backend(entry=name, args=("x", "y", "n", "k"), source="start.c", base_flags=("-O2",))},
        cost=Cost(flops="n", bytes="8 * n"),
        distributions=(Distribution(name="normal", kind="normal"),), timing_distribution="normal",
        tolerances=(Tolerance(error="1", bias="1", deviation="1", reason="exact"),),
        shapes=(Shape(axes={"n": 1000, "k": 1}, shape_class="main"),),
    )


def compile_text(text: str, folder: Path, name: str, scratch_bytes: str = "") -> Build:
    """A build of one C text, without any policy."""
    source, artifact = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(text)
    subprocess.run(
        ["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", str(artifact), str(source)], check=True, capture_output=True
    )
    return Build(status="ok", identity=name, artifact=str(artifact), scratch_bytes=scratch_bytes)


def build(name: str, folder: Path) -> Build:
    """One of KERNELS."""
    text = f"void shift(const float *x, float *y, int n, int k) {{ {KERNELS[name]} }}"
    return compile_text(with_headers(text), folder, name)


def with_headers(text: str) -> str:
    """The text behind every header that the kernels here use."""
    includes = "".join(f"#include <{header}>\n" for header in HEADERS.split())
    return f"#define _GNU_SOURCE\n{includes}{text}\n"


def settings(folder: Path) -> Settings:
    """Default settings with their home under `folder`."""
    return Settings(workdir=folder, cc="gcc", sandbox="auto", core=None, embedder="minilm")
