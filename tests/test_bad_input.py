"""What a user can get wrong, and what a machine can lack: a message with the way out, the right exit status, no
traceback. Commands run in this process, so that whatever escapes the outermost door fails the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.runs.journal import read_steps

TESTS = Path(__file__).parent


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> kit.Say:
    kit.simulate(monkeypatch)
    return lambda *words: kit.command(monkeypatch, capsys, *words)


def refuses(said: kit.Said, code: int, *words: str) -> None:
    """Ends with this status, says these words on standard error, and nothing on standard output."""
    assert said.code == code, said.err
    for word in words:
        assert word in said.err, (word, said.err)
    assert said.out == ""
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "reductoin"), ("unknown operator 'reductoin'. Known: ", "reduction", "fix:")),
        (("run", "reduction", "--platform", "vax"), ("unknown platform 'vax'. Known: ", "auto")),
        (("run", "reduction", "--model", "parrot"), ("unknown model 'parrot'", "recipes", "openai:NAME")),
        (("run", "reduction", "--model", "openai:"), ("openai:",)),
        (("run", "reduction", "--backend", "cuda"), ("unknown backend 'cuda'. Known: c",)),
        (("run", "reduction", "--rounds", "0"), ("--rounds must be at least 1", "fix:")),
        (("run", "reduction", "--budget-min", "0"), ("--budget-min must be above 0", "fix:")),
        (("run", "reduction", "--rounds", "two"), ("'--rounds'", "fix: give a whole number from 1")),
        (("run", "reduction", "--budget-min", "nan"), ("--budget-min must be above 0 and finite, got nan", "fix:")),
        (("run", "reduction", "--budget-min", "inf"), ("--budget-min must be above 0 and finite", "fix:")),
        (("run", "reduction", "--budget-min", "-3"), ("--budget-min must be above 0", "fix:")),
        (("judge", "reduction", "--source", "x.c", "--budget-min", "nan"), ("--budget-min must be above 0", "fix:")),
        (("submit", "reduction", "--patch", "x.c", "--why", "w", "--budget-min", "inf"), ("--budget-min must be",)),
        (("resume", "last", "--budget-min", "nan"), ("--budget-min must be above 0",)),
        (("run", "reduction", "--base-url", "http://127.0.0.1:1"), ("no meaning with --model recipes", "fix:")),
        (("run", "reduction", "--price-in", "1"), ("no meaning with --model recipes", "fix:")),
        (("run", "reduction", "--model", "openai:x", "--base-url", "notaurl"), ("no http or https address", "fix:")),
        (("run", "reduction", "--model", "openai:x", "--base-url", "http://a:b/"), ("--base-url", "fix:")),
        (("run", "reduction", "--workdir", "/nonexistent/x"), ("/nonexistent/x: there is no such folder", "mkdir")),
        (("doctor", "--workdir", "nowhere"), ("there is no such folder",)),
        (("query", "why", "--operator", "softmax"), ("unknown operator 'softmax'. Known: ", "reduction")),
        (("run", "reduction", "--round", "2"), ("--round", "fix: the options of `kernelcrew run` are", "--rounds")),
        (("run",), ("Missing argument 'operator'", "fix: `kernelcrew run --help`")),
        (("judge", "reductoin", "--source", "x.c"), ("unknown operator 'reductoin'. Known: ",)),
        (("judge", "reduction"), ("--source",)),
        (("resume", "nothing"), ("unknown run 'nothing'. Known: none", "kernelcrew run reduction")),
        (("report", "nothing"), ("unknown run 'nothing'. Known: none",)),
        (("report", "../../etc"), ("unknown run '../../etc'",)),
        (("query", "why", "--platform", "vax"), ("unknown platform 'vax'. Known: ",)),
        (("query", "why", "-n", "0"), ("-n", "fix: give a whole number from 1 to 100")),
        (("bench", "reductoin"), ("unknown operator 'reductoin'. Known: ",)),
        (("dance",), ("dance", "fix: the commands are approve", "run, runs")),
        (("memory", "dance"), ("dance", "fix: the commands are export, import, rebuild")),
    ],
    ids=" ".join,
)
def test_unknown_names_and_values_list_the_known_ones(
    say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(say(*words), 2, *told)
    assert not list(tmp_path.glob(".kernelcrew/runs/*"))


def test_an_unknown_run_lists_the_runs_there_are(say: kit.Say, tmp_path: Path) -> None:
    folder = tmp_path / ".kernelcrew" / "runs" / "reduction-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("")
    refuses(say("resume", "reduction-2", "--workdir", str(tmp_path)), 2, "Known: reduction-1")
    refuses(say("resume", "reduction-1", "--workdir", str(tmp_path)), 2, "was killed before it began")
    assert say("report", "reduction-1", "--workdir", str(tmp_path)).code == 1


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "operator.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def garbled(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(b"\xff\xfe\x00")

    return damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (replaced('name = "reduction"', 'nam = "reduction"'), ("field 'name'",)),
        (replaced("version = 1", 'version = "one"'), ("field 'version'", "not a whole number")),
        (replaced("[contract]", "[contract"), ("not TOML", "line")),
        (replaced("max(n - 1, 0)", "depth"), ("field 'cost.flops'", "depth", "the axes are n, rows")),
        (replaced('source = "start.c"', 'source = "else.c"'), ("field 'backends.c.source'", "else.c")),
        (replaced("n = 1024 }", "m = 1024 }"), ("field 'shapes[0].axes'", "rows, n")),
        (replaced('args = ["x", "y", "rows", "n"]', 'args = ["x", "y"]'), ("field 'backends.c.args'",)),
        (gone("operator.toml"), ("has no operator.toml",)),
        (gone("start.c"), ("start.c",)),
        (garbled("operator.toml"), ("cannot be read", "UTF-8")),
        (garbled("start.c"), ("start.c", "cannot be read")),
    ],
)
def test_a_broken_operator_names_file_and_field(
    say: kit.Say, tmp_path: Path, damage: Callable[[Path], None], told: tuple[str, ...]
) -> None:
    folder = kit.small_operator(tmp_path / "mine")
    damage(folder)
    refuses(say("run", str(folder), "--anyway", "--workdir", str(tmp_path)), 2, str(folder), "fix:", *told)


def test_an_operator_without_reference_is_told_before_anything_is_measured(say: kit.Say, tmp_path: Path) -> None:
    folder = kit.small_operator(tmp_path / "mine")
    (folder / "reference.py").unlink()
    said = say("run", str(folder), "--anyway", "--workdir", str(tmp_path))
    refuses(said, 2, "reference.py: no such file", "fix: write reference(inputs, axes)")
    assert kit.calls(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("s += p[i];", "s += p[i]", ("does not build", "line", "mend the start kernel")),
        ("s += p[i];", "s += 2 * p[i];", ("is not right", "rows=")),
        ("y[r] = s;", "y[rows + 70000] = s;", ("is not right",)),
    ],
)
def test_a_start_kernel_that_is_no_base_stops_the_run(
    say: kit.Say, tmp_path: Path, old: str, new: str, told: tuple[str, ...]
) -> None:
    folder = kit.small_operator(tmp_path / "mine")
    text = (folder / "start.c").read_text()
    (folder / "start.c").write_text(text.replace(old, new))
    said = say("run", str(folder), "--anyway", "--workdir", str(tmp_path))
    assert said.code == 1
    for word in (*told, "fix:"):
        assert word in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", ["/nonexistent/gcc", "true"])
def test_without_a_usable_compiler_it_says_what_installs_one(
    say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KERNELCREW_CC", name)
    said = say("run", "reduction", "--workdir", str(tmp_path))
    refuses(said, 1 if name.startswith("/") else 2, name, "fix:", "KERNELCREW_CC")
    assert say("doctor", "--workdir", str(tmp_path)).code == 0


def test_without_git_it_says_what_installs_it(say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("gcc", "as", "ld", "objcopy", "objdump", "bwrap", "unshare", "setpriv", "prlimit", "sh", "env"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    said = say("run", "reduction", "--workdir", str(tmp_path))
    refuses(said, 1, "git is not on the PATH", "apt-get install git")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("KERNELCREW_SANDBOX", "castle", ("unknown sandbox 'castle'. Known: auto, bwrap, namespaces, rlimits",)),
        ("KERNELCREW_CORE", "4711", ("KERNELCREW_CORE=4711",)),
        ("KERNELCREW_CORE", "first", ("KERNELCREW_CORE", "first")),
        ("KERNELCREW_EMBEDDER", "oracle", ("oracle", "minilm", "lexical")),
    ],
)
def test_bad_values_of_the_environment_are_told_as_such(
    say: kit.Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: tuple[str, ...]
) -> None:
    monkeypatch.setenv(name, value)
    refuses(say("run", "reduction", "--workdir", str(tmp_path)), 2, *told)
    assert kit.calls(tmp_path) == []


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_workdir_that_is_no_folder_is_told(say: kit.Say, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "file"
    place.write_text("here already")
    work = place if kind == "a file" else place / "deeper"
    for command in (("run", "reduction"), ("doctor",), ("query", "why"), ("memory", "rebuild"), ("runs",)):
        refuses(say(*command, "--workdir", str(work)), 2, str(work), "folder", "fix:")
    assert place.read_text() == "here already"


def test_no_command_at_all_is_the_help_and_nothing_else(say: kit.Say) -> None:
    for words in ((), ("memory",), ("lock",)):
        said = say(*words)
        assert said.code == 2
        assert "kernelcrew:" not in said.err


def test_a_model_server_that_is_down_is_told_before_anything_is_done(say: kit.Say, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
        words = ("run", "reduction", "--model", "openai:x", "--base-url", url, "--workdir", str(tmp_path))
        refuses(say(*words), 1, f"no answer from the model server at {url} (connection refused)", "start the server")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_a_newer_version_or_a_broken_one_is_told(say: kit.Say, tmp_path: Path) -> None:
    folder = tmp_path / ".kernelcrew" / "runs" / "reduction-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"half": 1}\n{"other": 2}\n')
    for command in ("resume", "report"):
        said = say(command, "reduction-1", "--workdir", str(tmp_path))
        refuses(said, 1, "journal.jsonl, line 1", "fix:")


OUTSIDE = """
import sys
from pathlib import Path

import pytest

import flow_kit as kit

kit.simulate(pytest.MonkeyPatch())
sys.argv = ["kernelcrew", *sys.argv[1:]]
kit.cli.main()
"""


def own_mounts() -> bool:
    """Whether a process here may have mounts of its own."""
    tool = shutil.which("unshare")
    words = ["--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return tool is not None and subprocess.run([tool, *words], capture_output=True, check=False).returncode == 0


OnDisk = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def on_a_small_disk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """Runs a shell script in which $WORK is a mount point of its own and $RUN plays kernelcrew on the simulated clock.
    What is built, and what the simulation itself writes, lies elsewhere."""
    work, program = tmp_path / "work", tmp_path / "outside.py"
    for name in ("work", "simulated"):
        (tmp_path / name).mkdir()
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    program.write_text(OUTSIDE)
    operator = kit.small_operator(tmp_path / "reduction")
    env = {
        **os.environ, "WORK": str(work), "RUN": f"{sys.executable} {program}", "OPERATOR": str(operator),
        "PYTHONPATH": str(TESTS), "ELSEWHERE": str(tmp_path),
    }  # fmt: skip
    there = "$ELSEWHERE/.kernelcrew/cache $ELSEWHERE/simulated"
    head = f"prepare() {{ mkdir $WORK/.kernelcrew; ln -s {there} $WORK/.kernelcrew; }}\n"
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    return lambda script: subprocess.run(
        [*argv, head + script], env=env, capture_output=True, text=True, timeout=120, check=False
    )


needs_mounts = pytest.mark.skipif(not own_mounts(), reason="this machine gives a process no mounts of its own")


@needs_mounts
def test_a_full_disk_keeps_what_was_recorded_and_a_resume_finishes(tmp_path: Path, on_a_small_disk: OnDisk) -> None:
    done = on_a_small_disk(
        """
        mount -t tmpfs -o size=400k tmpfs $WORK && prepare
        $RUN run $OPERATOR --anyway --rounds 1 --workdir $WORK; echo first $?
        cp -r $WORK/.kernelcrew/runs $ELSEWHERE/then
        mount -o remount,size=50m $WORK
        $RUN resume $(ls $WORK/.kernelcrew/runs) --workdir $WORK --json; echo second $?
        cp -r $WORK/.kernelcrew/runs $ELSEWHERE/now
        """,
    )
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
    assert "fix: free space" in done.stderr
    assert done.stdout.splitlines()[0] == "first 1"
    assert done.stdout.splitlines()[-1] == "second 0"
    then, now = (read_steps(next((tmp_path / name).iterdir())) for name in ("then", "now"))
    assert 2 < len(then) < len(now)
    assert now[: len(then)] == then
    assert now[-1].step == "end"


@needs_mounts
@pytest.mark.parametrize("size_kib", [16, 100])
def test_a_disk_too_small_for_anything_is_told(on_a_small_disk: OnDisk, size_kib: int) -> None:
    small = f"mount -t tmpfs -o size={size_kib}k tmpfs $WORK && prepare"
    script = f"{small}; $RUN run $OPERATOR --anyway --workdir $WORK; echo $?"
    done = on_a_small_disk(script)
    assert done.stdout == "1\n"
    assert "Traceback" not in done.stderr
    assert "full" in done.stderr or "No space left on device" in done.stderr
    assert "fix:" in done.stderr


@needs_mounts
def test_a_read_only_workdir_is_told_and_unchanged(on_a_small_disk: OnDisk) -> None:
    script = """
    mount -t tmpfs -o size=1m tmpfs $WORK && mount -o remount,ro $WORK
    $RUN run $OPERATOR --anyway --workdir $WORK; echo $?
    $RUN judge $OPERATOR --source $OPERATOR/start.c --workdir $WORK; echo $?
    $RUN doctor --workdir $WORK >&2; echo $?
    ls -A $WORK
    """
    done = on_a_small_disk(script)
    assert done.stdout.split() == ["1", "1", "0"]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Read-only file system") >= 3
    assert "--workdir" in done.stderr
