"""Every command of README.md runs, in the order in which a reader would type it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from model_server import serve_recipes
from readme import Command, commands, options, readme
from typer.testing import CliRunner

from kernelcrew.runs.cli import app, main

COMMANDS = commands(readme())
SUBCOMMANDS = (
    "run", "runs", "resume", "judge", "query", "report", "operators", "platforms", "doctor", "bench", "init", "check",
    "show", "submit", "permissions", "lock", "regress", "nogo", "policy",
)  # fmt: skip
TOLD = ("approve", "reject", "rollback")
"""Commands that the README tells of in words: they need a run that adopted, which tests/runs/test_people.py makes."""


class Reader:
    """Someone who types the README's commands into one shell, in a working directory that a run has filled."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.server = server
        self.typed: list[str] = []

    def types(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Run one command, with the variables that the commands before it have set."""
        text = command.text.replace("http://127.0.0.1:8000/v1", self.server)
        setting = [line for line in self.typed if line.split("=", 1)[0].isidentifier()]
        script = "\n".join(["set -euo pipefail", *setting, text])
        self.typed.append(text)
        return call(["bash", "-c", script], self.folder, {"HOME": str(self.folder), "OPENAI_API_KEY": "none"})


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with serve_recipes() as server:
        yield Reader(tmp_path_factory.mktemp("reader"), server)


def shortened(command: Command) -> Command:
    """The same command with a minute to measure in, or half of one for a judgement."""
    text = re.sub(r"--budget-min \d+", "--budget-min 1", command.text)
    return Command(command.line, re.sub(r"^kernelcrew judge ", "kernelcrew judge --budget-min 0.5 ", text))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"line {c.line}: {c.text.splitlines()[0][:60]}")
def test_a_command_of_the_readme_runs(command: Command, reader: Reader) -> None:
    done = reader.types(shortened(command))
    assert done.returncode == 0, f"{command.text}\n{done.stdout}\n{done.stderr}"
    if "> result.json" in command.text:
        answer = json.loads((reader.folder / "result.json").read_text().splitlines()[-1])
        assert {"run", "operator", "platform", "backend", "decisions", "speedup"} <= set(answer)
        assert {"speedup_over_start", "report"} <= set(answer) and Path(answer["report"]).is_file()
    if "--json" in command.words and ">" not in command.words:
        assert isinstance(json.loads(done.stdout.splitlines()[-1]), dict)


def test_the_readme_shows_every_subcommand_that_it_names() -> None:
    shown = {command.words[1] for command in COMMANDS if command.words[0] == "kernelcrew"}
    assert shown == set(SUBCOMMANDS) - {"bench"}
    assert "make bench" in readme()


def test_the_readme_names_no_option_that_is_not_there() -> None:
    known: set[str] = set()
    for name in (*SUBCOMMANDS, *TOLD, "nogo add"):
        done = CliRunner().invoke(app, [*name.split(), "--help"])
        assert done.exit_code == 0, done.output
        known |= options(done.output)
    named = options("\n".join(line for line in readme().splitlines() if "git " not in line))
    assert named - known == set()
    assert {"--rounds", "--budget-min", "--seed", "--workdir", "--base-url"} <= known


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("run nothing", 2, "Known: attention, gemm, reduction"),
        ("run reduction --platform nothing", 2, "Known: auto"),
        ("run reduction --backend nothing", 2, "Known: c"),
        ("run reduction --model nothing", 2, "Known: openai:NAME"),
        ("run reduction --rounds 0", 2, "--rounds must be at least 1"),
        ("run reduction --nothing", 2, "--nothing"),
        ("nothing", 2, "nothing"),
        ("report nothing", 2, "kernelcrew run reduction"),
        ("judge reduction --source nothing.c", 2, "nothing.c"),
    ],
)
def test_bad_input_is_answered_as_the_readme_says(
    words: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.chdir(tmp_path)
        patch.setattr(sys, "argv", ["kernelcrew", *words.split()])
        main()
    assert stopped.value.code == status
    assert says in capsys.readouterr().err


def test_a_reader_finds_commands_and_notices_failures(tmp_path: Path) -> None:
    text = "```console\n$ make demo\n$ A=1\n$ cat <<END\n> x  y\n>\n> END\nout\n```\n```\n$ no\n```\n"
    found = commands(text)
    assert [(c.line, c.text) for c in found] == [(3, "A=1"), (4, "cat <<END\nx  y\n\nEND")]
    someone = Reader(tmp_path, "")
    assert someone.types(found[0]).returncode == 0
    assert someone.types(found[1]).stdout == "x  y\n\n"
    assert someone.types(Command(1, 'test "$A" = 1')).returncode == 0
    assert someone.types(Command(1, "false | true")).returncode == 1
