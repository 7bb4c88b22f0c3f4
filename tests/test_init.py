"""`kernelcrew init`: what it writes runs as it stands, and it overwrites nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import flow_kit as kit
import own_kit as own
import pytest
from source_tree import ROOT

from kernelcrew.kernels import nouns
from kernelcrew.kernels.load import load_operator, shipped
from kernelcrew.runs.starting import EXAMPLE, TEMPLATE

FIELDS = (nouns.Operator, nouns.Axis, nouns.Tensor, nouns.Shape, nouns.Distribution, nouns.Tolerance, nouns.Cost,
          nouns.Contract, nouns.Backend)  # fmt: skip
UNSAID = {"folder", "slope"}
"""Not in a manifest; and a limit that follows from another one."""


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> kit.Say:
    own.simulate(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return lambda *words: kit.command(monkeypatch, capsys, *words)


def test_it_writes_an_operator_of_that_name_and_says_what_to_do_next(say: kit.Say, tmp_path: Path) -> None:
    said = say("init", "row_gain")
    assert said.code == 0, said.err
    assert sorted(p.name for p in (tmp_path / "row_gain").iterdir()) == sorted(TEMPLATE)
    operator = load_operator("row_gain")
    assert (operator.name, operator.backends["c"].entry) == ("row_gain", "row_gain")
    assert EXAMPLE not in "".join((tmp_path / "row_gain" / name).read_text() for name in TEMPLATE)
    for words in ("row_gain/start.c", "kernelcrew check ./row_gain", "kernelcrew run ./row_gain", "git init"):
        assert words in said.out


def test_what_it_writes_runs_to_the_end_as_it_stands(
    say: kit.Say, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    own.begin(tmp_path)
    own.commit(tmp_path / "my_op")
    said = say("run", "./my_op", "--rounds", "1", "--json")
    assert said.code == 0, said.err
    assert (said.last["operator"], said.last["status"]) == ("my_op", "finished")


def test_every_field_of_a_manifest_is_explained_in_a_comment() -> None:
    text = (ROOT / "runs" / "templates" / "operator" / "operator.toml").read_text()
    data = tomllib.loads(text)
    wanted = {name for noun in FIELDS for name in noun.model_fields} - UNSAID
    assert {name for name in wanted if name not in text} == set()
    assert data["calls_per_day"] > 0
    assert set(data) == set(nouns.Operator.model_fields) - UNSAID


def test_in_a_repository_it_says_how_to_commit_it(say: kit.Say, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    own.commit(tmp_path)
    said = say("init", "my_op", "--json")
    assert said.last["files"] == list(TEMPLATE)
    assert "no commit holds this folder" in said.last["version_control"]
    assert "git -C" in said.last["version_control"]
    assert kit.git(tmp_path, "status", "--porcelain") == "?? my_op/\n"


def test_nothing_is_overwritten(say: kit.Say, tmp_path: Path) -> None:
    assert say("init", "my_op").code == 0
    mine = tmp_path / "my_op" / "start.c"
    mine.write_text("mine\n")
    said = say("init", "my_op")
    assert (said.code, said.out, mine.read_text()) == (2, "", "mine\n")
    assert "is there already: it holds operator.toml, reference.py, start.c" in said.err
    (tmp_path / "a_file").write_text("mine\n")
    assert "it is a file" in say("init", "a_file").err
    (tmp_path / "empty").mkdir()
    assert say("init", "empty").code == 0


BAD_NAMES = ("my-op", "2nd", "../up", "a b", "", "int", "main", "sqrtf", "größe", "a" * 65, "/tmp/x")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_no_c_function_can_have_is_refused(say: kit.Say, tmp_path: Path, name: str) -> None:
    said = say("init", name)
    assert said.code == 2
    assert "cannot name a C function" in said.err
    assert not list(tmp_path.iterdir())


def test_a_name_that_comes_with_kernelcrew_is_refused(say: kit.Say) -> None:
    for name in shipped():
        said = say("init", name)
        assert said.code == 2
        assert f"my_{name}" in said.err
