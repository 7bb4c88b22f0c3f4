"""What a kernel leaves for its next call is gone: memory of malloc, registers, the stack, and the contents it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.tools.arena import InputRing, OutputRing
from kernelcrew.tools.sandbox import choose
from kernelcrew.tools.worker import Worker

sys.path.insert(0, str(Path(__file__).parent))
import worker_kit as kit

AXES = {"n": 64, "k": 3}
SLOTS, PASSES = 4, 5

STATE = {
    "chunk of the heap": "char *p = malloc(1000); volatile int *v = (volatile int *)p; old = v[9] == 12345;"
    " v[9] = 12345; free(p);",
    "beyond a chunk": "char *p = malloc(8); volatile int *v = (volatile int *)(p + 99000); old = *v == 12345;"
    " *v = 12345; free(p);",
    "aligned chunk": "char *p = aligned_alloc(64, 640); volatile int *v = (volatile int *)p; old = v[9] == 12345;"
    " if ((long)p % 64) abort(); v[9] = 12345; free(p);",
    "vector register": "long v; "
    '__asm__ volatile("movq %%xmm9, %0; movq %1, %%xmm9" : "=&r"(v) : "r"(12345L)); old = v == 12345;',
    "stack": "volatile char deep[300000]; volatile int *v = (volatile int *)(deep + 8); old = *v == 12345; *v = 12345;",
}
"""Each sets `old` when it finds what an earlier call left."""
OVER_BATCHES = {"beyond a chunk", "stack"}
"""Gone after a batch, not after each call."""


def kernel(body: str) -> str:
    text = f"void shift(const float *x, float *y, int n, int k) {{ {body} }}"
    return kit.with_headers(text)


def outputs_after(folder: Path, text: str, slots: int = SLOTS, passes: int = PASSES) -> list[bool]:
    """Whether every output was right, in two batches; the last pass over windows reads what the parent reads."""
    build = kit.compile_text(text, folder, "kernel")
    settings = kit.settings(folder)
    found = []
    with (
        Worker.start(build, kit.operator(), settings, choose(settings)) as worker,
        InputRing(kit.operator(), AXES, slots, layout="windowed") as inputs,
        OutputRing(kit.operator(), AXES, slots, layout="packed") as outputs,
    ):
        handle = worker.attach(inputs, outputs)
        rng = np.random.default_rng(5)
        for _ in range(2):
            for slot in range(slots):
                for flat in inputs.fillings(slot):
                    flat[...] = rng.standard_normal(flat.size, dtype=np.float32)
            outputs.poison()
            sample = worker.batch(handle, slots * passes)
            assert sample.ok, sample
            held = outputs.outputs_of(slots * passes, 0)
            pairs = [(outputs.views(place)["y"], inputs.views(source)["x"]) for place, source in held.items()]
            found.append(all(np.array_equal(y, x + np.float32(3)) for y, x in pairs))
    return found


@pytest.mark.parametrize("name", sorted(STATE))
def test_nothing_is_left_for_the_next_call(tmp_path: Path, name: str) -> None:
    text = kernel(f"int old = 0; {STATE[name]} for (int i = 0; i < n; i++) y[i] = x[i] + k + old;")
    assert outputs_after(tmp_path, text, slots=1, passes=1) == [True, True]
    # What is taken away after a batch alone is found within one: the kernel does look.
    assert all(outputs_after(tmp_path, text)) is (name not in OVER_BATCHES)


def test_a_leak_fails_the_batch_and_balanced_memory_does_not(tmp_path: Path) -> None:
    settings = kit.settings(tmp_path)
    bodies = {
        "leaks": kit.HONEST + " volatile char *p = malloc(40); p[0] = 1;",
        "balanced": "float *a = malloc(4 * n), *b = calloc(n, 4); void *c; if (posix_memalign(&c, 64, 100)) abort();"
        " for (int i = 0; i < n; i++) { a[i] = x[i]; if (b[i]) abort(); } free(a); free(c); free(b); free(0); "
        + kit.HONEST,
        "frees twice": kit.HONEST + " char *volatile p = malloc(40); char *q = p; free(p); free(q);",
    }
    said = {}
    for name, body in bodies.items():
        build = kit.compile_text(kernel(body), tmp_path, name.replace(" ", "_"))
        with (
            Worker.start(build, kit.operator(), settings, choose(settings)) as worker,
            InputRing(kit.operator(), AXES, 1) as inputs,
            OutputRing(kit.operator(), AXES, 1) as outputs,
        ):
            sample = worker.batch(worker.attach(inputs, outputs), 3)
            said[name] = (sample.status, sample.detail)
    assert said["balanced"][0] == "ok"
    assert said["leaks"][0] == "protocol" and "still allocated" in said["leaks"][1]
    assert said["frees twice"] == ("protocol", "memory was freed that was not allocated")


MEMO = """
static float memo[4][64];
static int calls;
void shift(const float *x, float *y, int n, int k)
{
    int slot = calls % 4, again = calls++ % 20 >= 4;
    for (int i = 0; i < n; i++)
        y[i] = again ? memo[slot][i] : (memo[slot][i] = x[i] + k);
}
"""


def test_answers_of_an_earlier_pass_are_wrong_in_the_last(tmp_path: Path) -> None:
    assert outputs_after(tmp_path, kernel(kit.HONEST)) == [True, True]
    assert outputs_after(tmp_path, kit.with_headers(MEMO)) == [False, False]


def test_outputs_of_an_earlier_pass_are_not_what_was_written(tmp_path: Path) -> None:
    """In its second pass this kernel copies what its first one wrote into the neighbouring slot: 3 everywhere."""
    settings = kit.settings(tmp_path)
    with (
        InputRing(kit.operator(), AXES, 2, layout="windowed") as inputs,
        OutputRing(kit.operator(), AXES, 2, layout="packed") as outputs,
    ):
        step = outputs.plan.stride_bytes // 4
        body = f"static int c; int late = c >= 2; float *other = c++ % 2 == late ? y + {step} : y - {step};"
        text = kernel(body + " for (int i = 0; i < n; i++) y[i] = late ? other[i] : k;")
        build = kit.compile_text(text, tmp_path, "copies")
        with Worker.start(build, kit.operator(), settings, choose(settings)) as worker:
            sample = worker.batch(worker.attach(inputs, outputs), 4)
        assert sample.ok, sample
        assert any((outputs.views(slot)["y"] != 3).any() for slot in range(2))
        assert all((outputs.views(slot)["y"] == 3).sum() > 30 for slot in range(2))
