"""Every command of README.md runs, in the order in which a reader would type it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import SmallRun, call_kernelcrew
from model_server import serve_recipes
from readme import Command, commands, options, readme

from kernelcrew import proc

COMMANDS = commands(readme())
SUBCOMMANDS = ("run", "resume", "judge", "query", "report", "operators", "platforms", "doctor", "bench")


class Reader:
    """Someone who types the README's commands into one shell, in a working directory that a run has filled."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.server = server
        self.typed: list[str] = []

    def types(self, command: Command) -> proc.ProcResult:
        """Run one command, with the variables that the commands before it have set."""
        text = command.text.replace("http://127.0.0.1:8000/v1", self.server)
        setting = [line for line in self.typed if line.split("=", 1)[0].isidentifier()]
        script = "\n".join(["set -euo pipefail", *setting, text])
        self.typed.append(text)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {"PATH": path, "HOME": str(self.folder), "LC_ALL": "C.UTF-8", "OPENAI_API_KEY": "none"}
        limits = proc.Limits(time_s=240, output_bytes=1 << 30)
        return proc.run(["bash", "-c", script], cwd=self.folder, env=env, limits=limits)


@pytest.fixture(scope="module")
def reader(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(small_run.workdir, folder, dirs_exist_ok=True)
    with serve_recipes() as server:
        yield Reader(folder, server)


def is_the_small_run(command: Command) -> bool:
    """A plain team run: the session's small run stands for it."""
    return command.words[:2] == ["kernelcrew", "run"] and "--model" not in command.words


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"line {c.line}: {c.text.splitlines()[0][:60]}")
def test_a_command_of_the_readme_runs(command: Command, reader: Reader, small_run: SmallRun) -> None:
    if is_the_small_run(command):
        assert {"run", "decisions", "speedup", "speedup_over_start", "report"} <= set(small_run.answer)
        return
    done = reader.types(command)
    assert done.ok, f"{command.text}\n{done.out}\n{done.err}"
    if "--json" in command.words and ">" not in command.words:
        assert isinstance(json.loads(done.out.splitlines()[-1]), dict)


def test_the_readme_shows_every_subcommand_that_it_names() -> None:
    shown = {command.words[1] for command in COMMANDS if command.words[0] == "kernelcrew"}
    assert shown == set(SUBCOMMANDS) - {"bench"}
    assert "make bench" in readme()


def test_the_readme_names_no_option_that_is_not_there(tmp_path: Path) -> None:
    known: set[str] = set()
    for name in SUBCOMMANDS:
        done = call_kernelcrew(name, "--help", cwd=tmp_path)
        assert done.ok, done.err
        known |= options(done.out)
    named = options("\n".join(line for line in readme().splitlines() if "git " not in line))
    assert named - known == set()
    assert {"--rounds", "--budget-min", "--seed", "--workdir", "--base-url"} <= known


def test_a_reader_finds_commands_and_notices_failures(tmp_path: Path) -> None:
    text = "```console\n$ make demo\n$ A=1\n$ cat <<END\n> x  y\n>\n> END\nout\n```\n```\n$ no\n```\n"
    found = commands(text)
    assert [(c.line, c.text) for c in found] == [(3, "A=1"), (4, "cat <<END\nx  y\n\nEND")]
    someone = Reader(tmp_path, "")
    assert someone.types(found[0]).ok
    assert someone.types(found[1]).out == "x  y\n\n"
    assert someone.types(Command(1, 'test "$A" = 1')).ok
    assert not someone.types(Command(1, "false | true")).ok
