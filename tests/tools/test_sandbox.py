"""Each containment that works here contains; a forced one that does not work is a clear mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools import sandbox
from kernelcrew.tools.sandbox import Sandbox, choose, usable, wrap

USABLE = [kind for kind, refusal in usable().items() if not refusal]


def settings(folder: Path, kind: str) -> Settings:
    return Settings(workdir=folder, cc="gcc", sandbox=kind, core=None, embedder="minilm")


def run(kind: str, script: str, **paths: list[Path]) -> proc.ProcResult:
    return proc.run(wrap(Sandbox(kind=kind), ["sh", "-c", script], **paths), env=child_environment())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", USABLE)
def test_forced_kind_is_taken_and_described(kind: str, tmp_path: Path) -> None:
    chosen = choose(settings(tmp_path, kind))
    assert chosen.kind == kind and "seccomp" in chosen.detail


def test_auto_takes_the_best_usable(tmp_path: Path) -> None:
    assert choose(settings(tmp_path, "auto")).kind == USABLE[0]


def test_unknown_and_unusable_kinds_are_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="bwrap"):
        choose(settings(tmp_path, "docker"))
    refusals = {"bwrap": "setting up uid map: Permission denied", "namespaces": "not permitted", "rlimits": ""}
    monkeypatch.setattr(sandbox, "_try", refusals.__getitem__)
    with pytest.raises(UserMistake, match="uid map"):
        choose(settings(tmp_path, "bwrap"))
    chosen = choose(settings(tmp_path, "auto"))
    assert chosen.kind == "rlimits" and "not permitted" in chosen.detail


@pytest.mark.parametrize("kind", USABLE)
def test_exit_status_and_output_come_through(kind: str) -> None:
    result = run(kind, "echo out; echo err >&2; exit 7")
    assert (result.status, result.code, result.out, result.err) == ("failed", 7, "out\n", "err\n")


@pytest.mark.parametrize("kind", [k for k in USABLE if k != "rlimits"])
def test_no_network_and_no_foreign_processes(kind: str) -> None:
    assert "lo" in run("rlimits", "cat /proc/net/dev").out
    links = run(kind, "cat /proc/net/dev").out.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in links] in ([], ["lo"])
    assert int(run(kind, "echo $$").out) <= 3


@pytest.mark.skipif("bwrap" not in USABLE, reason="no bubblewrap here")
def test_bwrap_shows_only_what_it_is_given(tmp_path: Path) -> None:
    seen, written, hidden = tmp_path / "seen", tmp_path / "written", tmp_path / "hidden"
    for folder in (seen, written, hidden):
        folder.mkdir()
        (folder / "f").write_text(folder.name)
    script = f"cat {seen}/f; echo new > {written}/g; cat {hidden}/f; echo x > {seen}/h"
    result = run("bwrap", script, read_only=[seen], writable=[written])
    assert result.out == "seen" and "hidden" in result.err and "Read-only" in result.err
    assert (written / "g").read_text() == "new\n" and not (seen / "h").exists()
