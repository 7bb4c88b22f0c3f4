"""The worker: honest kernels run, each kind of misbehaviour gets its status, and nothing is left behind."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.errors import HarnessError, MissingTool
from kernelcrew.tools.arena import InputRing, OutputRing
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.sandbox import Sandbox, usable
from kernelcrew.tools.worker import Sample, Worker, WorkerLimits

sys.path.insert(0, str(Path(__file__).parent))
import worker_kit as kit

USABLE = [kind for kind, refusal in usable().items() if not refusal]
RLIMITS = Sandbox(kind="rlimits")
OPERATOR = kit.operator()
CONSTRUCTOR = "__attribute__((constructor)) static void f(void) { %s } void shift(void) {}"
x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="uses an x86 instruction")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


def start(build: Build, folder: Path, kind: str = "rlimits", memory_bytes: int = 1 << 29) -> Worker:
    limits = WorkerLimits(memory_bytes=memory_bytes, start_s=1.5)
    core = min(os.sched_getaffinity(0))
    return Worker.start(build, OPERATOR, kit.settings(folder), Sandbox(kind=kind), core, limits)  # type: ignore[arg-type]


@contextmanager
def rings(n: int = 1000, slots: int = 3, layout: str = "guarded") -> Iterator[tuple[InputRing, OutputRing]]:
    axes = {"n": n, "k": 3}
    with (
        InputRing(OPERATOR, axes, slots, layout=layout) as inputs,  # type: ignore[arg-type]
        OutputRing(OPERATOR, axes, slots, layout=layout) as outputs,  # type: ignore[arg-type]
    ):
        inputs.stacked("x")[...] = np.arange(slots * n, dtype=np.float32).reshape(slots, n)
        outputs.poison()
        yield inputs, outputs


def one_batch(name: str, folder: Path, kind: str = "rlimits", limit_s: float = 5.0) -> tuple[Sample, str]:
    with start(kit.build(name, folder), folder, kind) as worker, rings() as (inputs, outputs):
        sample = worker.batch(worker.attach(inputs, outputs), 4, 1, limit_s=limit_s)
        return sample, outputs.damage()


@pytest.mark.parametrize("kind", USABLE)
@pytest.mark.parametrize("layout", ["guarded", "packed"])
def test_honest_kernel_fills_the_slots_that_outputs_of_names(kind: str, layout: str, folder: Path) -> None:
    with start(kit.build("honest", folder), folder, kind) as worker, rings(layout=layout) as (inputs, outputs):
        handle = worker.attach(inputs, outputs)
        for calls, first in ((2, 0), (3, 1), (10, 2), (11, 7)):
            outputs.poison()
            sample = worker.batch(handle, calls, first)
            assert sample.status == "ok" and 0 < sample.worker_ns <= sample.elapsed_ns, sample
            held = worker.outputs_of(handle, calls, first)
            for slot in range(outputs.slots):
                got = outputs.views(slot)["y"]
                if slot in held:
                    assert np.array_equal(got, inputs.views(held[slot])["x"] + 3)
                else:
                    assert np.isnan(got).all()
        assert outputs.damage() == "" and worker.failure is None
        assert worker.containment.startswith(kind)


def test_several_shapes_in_one_worker(folder: Path) -> None:
    build = kit.build("honest", folder)
    with start(build, folder) as worker, rings(7) as small, rings(5000, 2) as large, rings(0) as none:
        handles = [worker.attach(*pair) for pair in (small, large, none)]
        for handle, (inputs, outputs) in zip(handles, (small, large, none), strict=True):
            assert worker.batch(handle, 1).ok
            assert np.array_equal(outputs.views(0)["y"], inputs.views(0)["x"] + 3)
        worker.detach(handles[0])
        assert worker.attach(*large) == handles[0]
        assert worker.batch(handles[1], 1).ok


@pytest.mark.parametrize("kind", USABLE)
@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("past_the_end", "crashed", "SIGSEGV: .* past the end of 'y'"),
        ("reads_past_the_end", "crashed", "SIGSEGV: .* 0 bytes past the end of 'x' in slot 0"),
        ("writes_input", "crashed", "SIGSEGV: .* read-only 'x' in slot 0"),
        ("writes_unchanged_input", "crashed", "SIGSEGV: .* read-only 'x'"),
        ("null", "crashed", "SIGSEGV: .* in no tensor"),
        ("loop", "timeout", "no answer within 0.2 s"),
        ("exits", "crashed", "exit status 0"),
    ],
)
def test_misbehaviour_has_its_status(name: str, status: str, detail: str, kind: str, folder: Path) -> None:
    sample, _ = one_batch(name, folder, kind, limit_s=0.2 if name == "loop" else 5.0)
    assert sample.status == status and re.search(detail, sample.detail), sample


@pytest.mark.parametrize("name", ["syscall", "forks", "thread", "floods", "opens", "executable", "abort"])
def test_system_calls_end_the_worker(name: str, folder: Path) -> None:
    with start(kit.build("honest", folder), folder) as probe:
        if "no seccomp" in probe.containment:
            pytest.skip("this kernel has no seccomp")
    sample, _ = one_batch(name, folder)
    assert sample.status == "crashed" and "SIGSYS" in sample.detail, sample


def test_write_before_the_start_is_damage(folder: Path) -> None:
    assert one_batch("honest", folder)[1] == ""
    sample, damage = one_batch("before_the_start", folder)
    assert sample.ok and "before 'y'" in damage


def test_write_before_a_tensor_that_fills_its_pages_hits_a_guard(folder: Path) -> None:
    with start(kit.build("before_the_start", folder), folder) as worker, rings(2048) as (inputs, outputs):
        assert "4 bytes before 'y'" in worker.batch(worker.attach(inputs, outputs), 1).detail


def test_memory_is_bounded_and_malloc_is_allowed(folder: Path) -> None:
    assert one_batch("mallocs", folder)[0].ok
    with start(kit.build("allocates", folder), folder, memory_bytes=1 << 27) as worker, rings() as (inputs, outputs):
        assert worker.batch(worker.attach(inputs, outputs), 1).status == "crashed"


@x86_only
def test_changed_rounding_mode_is_a_protocol_failure(folder: Path) -> None:
    sample, _ = one_batch("rounding", folder)
    assert sample.status == "protocol" and "floating-point" in sample.detail


def test_a_forged_answer_is_seen(folder: Path) -> None:
    sample, _ = one_batch("forges", folder)
    assert sample.status == "protocol" and "not asked for" in sample.detail


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        ("void other(void) {}", "crashed", "undefined symbol: shift"),
        ("void missing(void); void shift(void) { missing(); }", "crashed", "undefined symbol: missing"),
        (CONSTRUCTOR % "__builtin_trap();", "crashed", "SIGILL"),
        (CONSTRUCTOR % "fork();", "crashed", "clone"),
        (CONSTRUCTOR % "for (;;);", "timeout", "no answer to load"),
    ],
)
def test_a_candidate_that_cannot_be_loaded_is_a_value(text: str, status: str, detail: str, folder: Path) -> None:
    build = kit.compile_text(kit.with_headers(text), folder, f"load{abs(hash(text))}")
    with start(build, folder) as worker, rings() as (inputs, outputs):
        assert worker.failure is not None
        sample = worker.batch(worker.attach(inputs, outputs), 1)
        assert sample.status == status and detail in sample.detail, sample


def test_scratch_is_poisoned_before_each_call(folder: Path) -> None:
    text = (
        "void shift(const float *x, float *y, int n, int k, void *s) {"
        "float *f = s; for (int i = 0; i < 2 * n; i++) if (f[i] == f[i]) return;"
        "for (int i = 0; i < n; i++) y[i] = x[i] + k; for (int i = 0; i < 2 * n; i++) f[i] = 0; }"
    )
    build = kit.compile_text(text, folder, "scratch", scratch_bytes="8 * n")
    with start(build, folder) as worker, rings() as (inputs, outputs):
        assert worker.batch(worker.attach(inputs, outputs), 3).ok
        assert np.array_equal(outputs.stacked("y"), inputs.stacked("x") + 3)
    beyond = kit.compile_text(text.replace("f[i] = 0", "f[i + 16] = 0"), folder, "beyond", scratch_bytes="8 * n")
    with start(beyond, folder) as worker, rings() as (inputs, outputs):
        assert worker.batch(worker.attach(inputs, outputs), 1).status == "crashed"


@pytest.mark.parametrize("kind", USABLE)
def test_the_process_that_runs_the_kernel_is_frozen_and_killed(kind: str, folder: Path) -> None:
    with start(kit.build("honest", folder), folder, kind) as worker, rings() as (inputs, outputs):
        assert Path(f"/proc/{worker.pid}/comm").read_text().strip() == "worker"
        handle = worker.attach(inputs, outputs)
        assert state(worker.pid) in "SR"
        worker.freeze()
        worker.freeze()
        assert state(worker.pid) == "T"
        worker.thaw()
        assert state(worker.pid) in "SR"
        assert worker.batch(handle, 3).ok
        assert state(worker.pid) == "T"
        assert worker.batch(handle, 3).ok
        pid = worker.pid
    assert gone(pid)
    assert worker.batch(handle, 1).status == "crashed"


@pytest.mark.parametrize("kind", USABLE)
def test_a_worker_killed_from_outside_is_a_value(kind: str, folder: Path) -> None:
    with start(kit.build("honest", folder), folder, kind) as worker, rings() as (inputs, outputs):
        handle = worker.attach(inputs, outputs)
        os.kill(worker.pid, signal.SIGKILL)
        sample = worker.batch(handle, 1)
        assert sample.status == "crashed", sample
        # unshare passes every signal on but this one, which it turns into an exit status.
        assert ("SIGKILL" in sample.detail) != (kind == "namespaces"), sample


@pytest.mark.parametrize("kind", USABLE)
def test_nothing_is_left_behind(kind: str, folder: Path) -> None:
    build = kit.build("honest", folder)
    start(build, folder, kind).kill()
    before = len(os.listdir("/proc/self/fd"))
    pids = []
    for _ in range(50 if kind == "rlimits" else 5):
        with start(build, folder, kind) as worker, rings(10) as (inputs, outputs):
            worker.attach(inputs, outputs)
            pids.append(worker.pid)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(gone(pid) for pid in pids)


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
import test_worker as t
with t.start(t.kit.build("loop", t.Path(sys.argv[2])), t.Path(sys.argv[2]), sys.argv[3]) as worker:
    with t.rings() as (inputs, outputs):
        handle = worker.attach(inputs, outputs)
        print(worker.pid, flush=True)
        worker.batch(handle, 1, limit_s=60)
"""


@pytest.mark.parametrize("kind", USABLE)
def test_a_looping_worker_ends_with_its_parent(kind: str, folder: Path) -> None:
    line = [sys.executable, "-c", PARENT, str(Path(__file__).parent), str(folder), kind]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "worker"
        parent.kill()
    assert gone(pid)


def test_our_own_failures_are_harness_errors(folder: Path, tmp_path: Path) -> None:
    build = kit.build("honest", folder)
    with pytest.raises(HarnessError, match="cannot pin to core 900"):
        Worker.start(build, OPERATOR, kit.settings(folder), RLIMITS, 900)
    with pytest.raises(MissingTool, match="no-such-cc"):
        Worker.start(build, OPERATOR, kit.settings(tmp_path).model_copy(update={"cc": "no-such-cc"}), RLIMITS)
    with pytest.raises(HarnessError, match="does not compile"):
        Worker.start(build, OPERATOR, kit.settings(tmp_path).model_copy(update={"cc": "false"}), RLIMITS)
    with pytest.raises(ValueError, match="failed"):
        Worker.start(Build(status="failed", identity="x"), OPERATOR, kit.settings(folder), RLIMITS)
    worker = start(build, folder, memory_bytes=1 << 26)
    with worker, rings(1 << 23, 2) as (inputs, outputs), pytest.raises(HarnessError, match="cannot map"):
        worker.attach(inputs, outputs)
    worker = start(build, folder)
    with worker, rings(10) as (inputs, _), rings(11) as (_, outputs), pytest.raises(ValueError, match="differ"):
        worker.attach(inputs, outputs)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(pid: int) -> bool:
    """Whether it ends within two seconds: a sandbox's own reaper may take a moment."""
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.01)
    return False
