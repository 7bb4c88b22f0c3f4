"""The preflight: each finding with the case that it refuses or warns of, and the case that passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flow_kit as kit
import pytest

from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import Operator
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine
from kernelcrew.runs import check, check_trial
from kernelcrew.runs.check_trial import Passing, Tried, trivial_outputs
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import Start


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return load_operator(str(kit.small_operator(tmp_path_factory.mktemp("operator") / "reduction")))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return detect("gcc")


@pytest.fixture
def say(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> kit.Say:  # fmt: skip
    kit.simulate(monkeypatch)
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    return lambda *words: kit.command(monkeypatch, capsys, *words, "--workdir", str(tmp_path))


def committed(folder: Path) -> Path:
    """A small operator in a repository of its own, as a user would have it."""
    kit.small_operator(folder)
    kit.git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    kit.git(folder, "add", ".")
    kit.git(folder, "commit", "--quiet", "-m", "Operator")


def with_(operator: Operator, **changes: Any) -> Operator:
    return operator.model_copy(update=changes)


def test_no_timed_shapes_or_none_of_real_size_is_no_benchmark(operator: Operator) -> None:
    assert check.benchmark(operator).severity == "ok"
    edges = tuple(s.model_copy(update={"role": "edge"}) for s in operator.shapes)
    assert check.benchmark(with_(operator, shapes=edges)).severity == "refuse"
    tiny = operator.shapes[0].model_copy(update={"axes": {"rows": 1, "n": 2}})
    none = check.benchmark(with_(operator, shapes=(tiny,)))
    assert (none.severity, "rows=1,n=2" in none.what) == ("refuse", True)
    some = check.benchmark(with_(operator, shapes=(tiny, *operator.shapes)))
    assert (some.severity, some.what.endswith("rows=1,n=2")) == ("warn", True)


def test_an_operator_that_is_in_no_repository_is_refused(tmp_path: Path) -> None:
    bare = check.version_control(load_operator(str(kit.small_operator(tmp_path / "bare"))))
    assert (bare.severity, "git init" in bare.do) == ("refuse", True)
    assert check.version_control(load_operator(str(committed(tmp_path / "kept")))).severity == "ok"
    assert check.version_control(load_operator("reduction")).severity == "ok"


@pytest.mark.parametrize(
    ("calls_per_day", "severity", "told"),
    [
        (None, "warn", "unknown: 80,000 calls a day pay 4 minutes in a month"),
        (1e6, "ok", "of 200 us: twice as fast saves 100 s a day, which pays 4 minutes in 2.4 days"),
        (40_000, "warn", "in 60.0 days"),
        (1, "refuse", "in 2,400,000.0 days"),
        (0, "refuse", "never"),
    ],
)
def test_what_runs_too_seldom_does_not_pay(
    operator: Operator, calls_per_day: float | None, severity: str, told: str
) -> None:
    us = {s.key: 200.0 for s in operator.timed()}
    found = check.pays(with_(operator, calls_per_day=calls_per_day), 4.0, us)
    assert found.severity == severity
    assert told in found.what
    if severity == "refuse":
        assert "6,575 calls a day" in found.do


def test_calls_count_by_the_weights_of_their_shapes(operator: Operator) -> None:
    first, second = operator.timed()[:2]
    heavy = with_(operator, calls_per_day=1e6, shapes=(first.model_copy(update={"weight": 3.0}), second))
    assert "of 25 us" in check.pays(heavy, 4.0, {first.key: 10.0, second.key: 70.0}).what
    assert check.pays(heavy, 4.0, {}).severity == "warn"


def test_shapes_that_leave_a_class_out_or_lie_close_together_are_told(operator: Operator) -> None:
    assert check.coverage(operator).severity == "ok"
    no_long = tuple(s for s in operator.shapes if s.shape_class != "long")
    found = check.coverage(with_(operator, shapes=no_long))
    assert (found.severity, found.what) == ("warn", "no timed shape of class long")
    alike = tuple(
        operator.shapes[0].model_copy(update={"axes": {"rows": 64, "n": 1024 + i}, "shape_class": c})
        for i, c in enumerate(("main", "short", "long"))
    )
    assert "differ by 1.0 times" in check.coverage(with_(operator, shapes=alike)).what


def test_no_held_out_shape_and_limits_without_reason_are_told(operator: Operator) -> None:
    assert check.held_out(operator).severity == "ok"
    assert check.held_out(with_(operator, shapes=operator.timed())).severity == "warn"
    assert check.tolerances(operator).severity == "ok"
    for reason, severity in (("", "refuse"), ("seems right", "warn")):
        limits = tuple(t.model_copy(update={"reason": reason}) for t in operator.tolerances)
        assert check.tolerances(with_(operator, tolerances=limits)).severity == severity


def test_what_hangs_on_hardware_that_is_not_here_is_refused(
    operator: Operator, machine: Machine, tmp_path: Path
) -> None:
    assert [f.severity for f in check.hardware(operator, "c", machine)] == ["ok"]
    gpu = with_(operator, backends={**operator.backends, "cuda": operator.backends["c"]})
    assert [f.severity for f in check.hardware(gpu, "cuda", machine)] == ["refuse"]
    assert [f.severity for f in check.hardware(gpu, "c", machine)] == ["warn"]
    flags = operator.backends["c"].model_copy(update={"base_flags": ("-O3", "-mavx10.2", "-march=native", "-msse2")})
    (found,) = check.hardware(with_(operator, backends={"c": flags}), "c", machine)
    assert (found.severity, "avx10_2" in found.what, "sse2" in found.what) == ("refuse", True, False)
    folder = kit.small_operator(tmp_path / "vendor")
    source = folder / "start.c"
    source.write_text("#include <mkl.h>\n" + source.read_text())
    (leaning,) = check.hardware(load_operator(str(folder)), "c", machine)
    assert (leaning.severity, "mkl.h" in leaning.what) == ("refuse", True)


def test_limits_that_let_zeros_pass_are_refused_with_distribution_and_shape(operator: Operator) -> None:
    honest = trivial_outputs(operator, 60.0)
    assert honest["everywhere"] == ()
    assert not any(p.output == "zeros" for p in honest["passing"])
    copied = {p.shape for p in honest["passing"] if p.output == "a copy of the first input"}
    assert copied == {"rows=997,n=1"}, "the sum of one element is that element"
    assert check.trivial(Tried(start="", **honest)).severity == "ok"
    anything = {"error": "33554432", "bias": "33554432", "deviation": "33554432", "slope": "33554432"}
    wide = tuple(t.model_copy(update=anything) if t.distribution == "wide" else t for t in operator.tolerances)
    loose = Tried(start="", **trivial_outputs(with_(operator, tolerances=wide), 60.0))
    zeros = [p for p in loose.passing if p.output == "zeros"]
    assert {p.distribution for p in zeros} == {"wide"}
    found = check.trivial(loose)
    assert found.severity == "refuse"
    assert "zeros passes: wide at rows=" in found.what


def test_another_trivial_output_that_passes_everywhere_is_a_warning() -> None:
    some = Tried(start="", passing=(Passing(output="ones", distribution="normal", shape="n=1"),), cases=9)
    assert check.trivial(some).severity == "ok"
    everywhere = some.model_copy(update={"everywhere": (("ones", "normal"),)})
    assert (check.trivial(everywhere).severity, "ones under normal" in check.trivial(everywhere).what) == ("warn", True)


def test_check_tells_all_findings_and_keeps_the_expensive_ones(say: kit.Say, tmp_path: Path) -> None:
    folder = committed(tmp_path / "mine")
    said = say("check", str(folder), "--json")
    assert said.code == 0, said.out
    found = {f["name"]: f for f in said.last["findings"]}
    assert {n for n, f in found.items() if f["severity"] != "ok"} == {"use"}
    assert all(f["why"] and f["do"] for f in found.values() if f["severity"] != "ok")
    calls = kit.calls(tmp_path)
    assert [c.split()[0] for c in calls] == ["build", "verify"]
    assert say("check", str(folder), "--json").last == said.last
    assert kit.calls(tmp_path) == calls
    assert "set calls_per_day" in re.sub(r"\s+", " ", say("check", str(folder)).out)
    source = folder / "start.c"
    source.write_text(source.read_text() + "\n/* another source */\n")
    commit(folder)
    assert say("check", str(folder)).code == 0
    assert len(kit.calls(tmp_path)) == 2 * len(calls)


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return damage


@pytest.mark.parametrize(
    ("damage", "name", "told"),
    [
        (replaced("start.c", "s += p[i];", "s += 2 * p[i];"), "start kernel", "it is not right"),
        (replaced("start.c", "s += p[i];", "s += p[i]"), "start kernel", "it does not build"),
        (replaced("operator.toml", "version = 1", "version = 1\ncalls_per_day = 1"), "use", "1 calls a day"),
    ],
)
def test_a_run_is_refused_before_any_work_and_goes_on_only_when_told(
    say: kit.Say, tmp_path: Path, damage: Callable[[Path], None], name: str, told: str
) -> None:
    folder = kit.small_operator(tmp_path / "mine")
    damage(folder)
    kit.git(folder, "init", "--quiet")
    commit(folder)
    checked = say("check", str(folder), "--json")
    assert checked.code == 2
    (refused,) = [f for f in checked.last["findings"] if f["severity"] == "refuse"]
    assert (refused["name"], told in refused["what"]) == (name, True)
    said = say("run", str(folder))
    assert said.code == 2
    for words in (told, "why:", "do:", "--anyway"):
        assert words in said.err
    assert not list((tmp_path / ".kernelcrew").glob("runs/*"))


def test_going_on_anyway_is_recorded_in_start_and_report(say: kit.Say, tmp_path: Path) -> None:
    folder = kit.small_operator(tmp_path / "mine")
    replaced("operator.toml", "version = 1", "version = 1\ncalls_per_day = 1")(folder)
    said = say("run", str(folder), "--anyway", "--rounds", "1", "--json")
    assert said.code == 0, said.err
    assert [line.split(":")[0] for line in said.last["overridden"]] == ["version control", "use"]
    run = tmp_path / ".kernelcrew" / "runs" / said.last["run"]
    start = payload_of(read_steps(run), "start", Start)
    assert start is not None
    assert list(start.overridden) == said.last["overridden"]
    assert (run / "report.html").read_text().count("went on anyway") == 2
    assert "went on anyway" in say("report", said.last["run"]).out


def test_a_kept_answer_that_cannot_be_read_is_worked_out_again(tmp_path: Path) -> None:
    path = tmp_path / "check" / "a.json"
    check_trial._keep(path, Tried(start="it is not right"))
    assert check_trial._kept(path) == Tried(start="it is not right")
    path.write_text("{")
    assert check_trial._kept(path) is None
    assert check_trial._kept(tmp_path / "nothing") is None
