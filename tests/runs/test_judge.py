"""`kernelcrew judge`: one source through the same net, ended at each stage. Times come from the simulated clock."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.runs.cli_answers import ratio_text
from kernelcrew.tools.timing_answers import some

WHY = "/* Independent accumulators hide the latency of the addition chain, which bounds long rows. {mark} */\n"
GOOD = "s += p[i];"
KERNEL = """void reduction(const float *x, float *y, int rows, int n)
{{
    for (int r = 0; r < rows; r++) {{
        const float *p = x + (long)r * n;
        float s = 0.0f;
        for (int i = 0; i < n; i++)
            {body}
        y[r] = s;
    }}
}}
"""


@dataclass
class Judge:
    folder: Path
    operator: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, text: str, *more: str, json: bool = True) -> kit.Said:
        source = self.folder / "mine.c"
        source.write_text(text)
        words = ["judge", str(self.operator), "--source", str(source), "--workdir", str(self.folder), *more]
        return kit.command(self.patch, self.capture, *words, *(["--json"] if json else []))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    kit.small_operator(folder / "reduction")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder)
    return folder


@pytest.fixture
def judge(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Judge:
    kit.simulate(monkeypatch)
    return Judge(shared, shared / "reduction", monkeypatch, capsys)


def kernel(mark: str = "", body: str = GOOD) -> str:
    return WHY.format(mark=mark) + KERNEL.format(body=body)


def test_faster_everywhere_is_accepted(judge: Judge) -> None:
    said = judge(kernel("sim(n >= 0)=0.5"))
    assert said.code == 0
    assert said.last.keys() == {"outcome", "stage", "reason", "measurements"}
    assert (said.last["outcome"], said.last["stage"]) == ("accept", "timing")
    classes = {c["shape_class"]: c for c in said.last["measurements"]["timing"]["classes"]}
    assert set(classes) == {"main", "short", "long", "tail"}
    assert all(c["answer"] == "faster" and c["ratio"] == pytest.approx(2.0, rel=0.03) for c in classes.values())
    assert said.last["measurements"]["verification"]["status"] == "ok"
    assert said.last["measurements"]["build"]["status"] == "ok"


@pytest.mark.parametrize(("mark", "words"), [("", "no gain"), ("sim(n > 500)=0.5 sim(n < 20)=1.5", "slower")])
def test_right_but_not_faster_or_mixed_is_rejected_by_timing_with_the_figures(
    judge: Judge, mark: str, words: str
) -> None:
    said = judge(kernel(mark))
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "timing")
    assert words in said.last["reason"]
    assert all(f"{name} " in said.last["reason"] for name in ("main", "short", "long", "tail"))


def test_without_a_rationale_the_policy_says_what_to_add(judge: Judge) -> None:
    said = judge(KERNEL.format(body=GOOD))
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "policy")
    assert "say which mechanism makes it faster" in said.last["reason"]
    assert "--why" in said.last["reason"]
    why = "Independent accumulators hide the latency of the addition chain, which bounds long rows."
    assert judge(KERNEL.format(body=GOOD), "--why", why).last["stage"] == "timing"


def test_a_forbidden_call_is_rejected_by_policy(judge: Judge) -> None:
    said = judge("#include <stdlib.h>\n" + kernel(body='system("id"), s += p[i];'))
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "policy")
    assert "system" in said.last["reason"]


def test_what_does_not_compile_is_rejected_by_the_build_with_the_line(judge: Judge) -> None:
    said = judge(kernel(body="s += p[i] + nothing;"))
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "build")
    assert "line 8" in said.last["reason"]
    assert "nothing" in said.last["reason"]


@pytest.mark.parametrize("body", ["y[rows + 60000] = s += p[i];", "{ s += p[i]; *(volatile int *)8 = 1; }"])
def test_a_write_out_of_bounds_is_rejected_by_safety(judge: Judge, body: str) -> None:
    said = judge(kernel(body=body))
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "safety")
    assert said.last["reason"]


def test_wrong_numbers_are_rejected_by_correctness_with_the_shape(judge: Judge) -> None:
    said = judge(kernel("sim(n >= 0)=0.1", body="s += p[i] * 1.001f;"))
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "correctness")
    assert "rows=" in said.last["reason"]
    assert "timing" not in said.last["measurements"]


def test_no_time_is_inconclusive_not_a_rejection(judge: Judge) -> None:
    said = judge(kernel("sim(n >= 0)=0.5"), "--budget-min", "0.0001")
    assert said.code == 0
    assert (said.last["outcome"], said.last["stage"]) == ("inconclusive", "timing")


def test_a_plan_may_add_flags_and_knobs(judge: Judge) -> None:
    plan = judge.folder / "plan.toml"
    flags = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
    plan.write_text(f"flags = {list(flags)}\ndefines = {{ STEP = 4 }}\n")
    body = '{ _Static_assert(STEP == 4, "knob"); s += p[i]; }'
    said = judge(kernel("sim(n >= 0)=0.5", body), "--plan", str(plan))
    assert (said.last["outcome"], said.last["stage"]) == ("accept", "timing")
    assert any("-fassociative-math" in line for line in said.last["measurements"]["build"]["commands"])
    plan.write_text('flags = ["-ffast-math"]\n')
    said = judge(kernel(), "--plan", str(plan))
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "policy")
    assert "-ffast-math" in said.last["reason"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('flags = "-O2"\n', "field 'flags'"),
        ("thread = 2\n", "field 'thread'"),
        ("flags = [\n", "not TOML"),
        ('threads = "many"\n', "field 'threads'"),
    ],
)
def test_a_broken_plan_names_file_and_field(judge: Judge, text: str, words: str) -> None:
    plan = judge.folder / "broken.toml"
    plan.write_text(text)
    said = judge(kernel(), "--plan", str(plan))
    assert said.code == 2
    assert str(plan) in said.err
    assert words in said.err
    assert "fix:" in said.err
    assert said.out == ""


def test_sources_that_cannot_be_read_are_the_users_mistake(judge: Judge) -> None:
    words = ["judge", str(judge.operator), "--workdir", str(judge.folder), "--source"]
    (judge.folder / "latin.c").write_bytes(b"/* \xe9 */")
    for name in ("nowhere.c", ".", "latin.c"):
        said = kit.command(judge.patch, judge.capture, *words, str(judge.folder / name))
        assert said.code == 2
        assert str(judge.folder / name) in said.err


def test_an_unknown_backend_names_the_known_ones(judge: Judge) -> None:
    said = judge(kernel(), "--backend", "fortran")
    assert said.code == 2
    assert "unknown backend 'fortran'. Known: c" in said.err


def test_the_readable_verdict_has_a_row_a_shape(judge: Judge) -> None:
    said = judge(kernel("sim(n >= 0)=0.5"), json=False)
    assert said.code == 0
    assert said.out.startswith("accept at stage timing: faster")
    assert all(key in said.out for key in ("rows=64,n=1024", "rows=997,n=1"))
    assert "by class" in said.out
    assert "times are medians over all calls" in said.out


@pytest.mark.parametrize(
    ("ratio", "low", "high", "told"),
    [(3.21987, 3.2, 3.24, "3.22x [3.20, 3.24]"), (6.0123, 2.5, 15.0, "6.0x [2.5, 15.0]")],
)
def test_a_ratio_has_no_more_digits_than_its_interval_allows(ratio: float, low: float, high: float, told: str) -> None:
    assert ratio_text(ratio, low, high) == told


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_devices_and_pipes_are_no_sources(judge: Judge, name: str) -> None:
    path = judge.folder / name
    if not path.exists():
        os.mkfifo(path)
    said = kit.command(judge.patch, judge.capture, "judge", str(judge.operator), "--source", str(path))
    assert said.code == 2
    assert "device or pipe" in said.err


def test_a_long_list_of_shapes_is_cut_short() -> None:
    assert some(("a", "b", "c")) == "a, b, c"
    assert some([str(n) for n in range(14)]) == "0, 1, 2 and 11 more"


def test_the_candidate_is_held_against_the_incumbent_that_a_run_adopted(
    judge: Judge, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    assert kit.run(tmp_path, judge.operator).record.rounds[0].settled
    judge.folder = tmp_path
    said = judge(kernel("sim(n >= 0)=0.5"))
    assert (said.last["outcome"], said.last["stage"]) == ("reject", "timing")
    assert {c["answer"] for c in said.last["measurements"]["timing"]["classes"]} != {"faster"}
