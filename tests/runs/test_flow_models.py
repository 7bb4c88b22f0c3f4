"""Runs whose model is a server: whole over the wire, in bad form, down, and up again."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import flow_kit as kit
import model_server
import pytest
import scripted_server

from kernelcrew.errors import ModelError
from kernelcrew.runs.journal import read_steps

NONSENSE = "I would rather talk about the weather."


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.small_operator(tmp_path_factory.mktemp("operator") / "reduction")


@pytest.fixture
def workdir(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    kit.share_builds(tmp_path_factory.getbasetemp(), tmp_path)
    kit.simulate(monkeypatch)
    return tmp_path


@contextmanager
def serving(port: int) -> Iterator[None]:
    """The expert behind the wire, on a port that is known beforehand."""
    server = ThreadingHTTPServer(("127.0.0.1", port), model_server.Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hanging_up(port: int) -> Iterator[None]:
    """Something that accepts connections and closes them at once: a server that dies after the run has begun."""
    with socket.create_server(("127.0.0.1", port)) as listening:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    listening.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_down_stops_the_run_and_a_resume_goes_on_when_it_is_back(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    asked = ("run", str(operator), "--anyway", "--model", "openai:expert", "--base-url", url, "--rounds", "1")
    with hanging_up(port):
        down = kit.command(monkeypatch, capsys, *asked, "--workdir", str(workdir))
    assert down.code == ModelError.exit_status == 1
    assert f"no answer from the model server at {url}" in down.err
    assert "fix: start the server" in down.err
    name = next((workdir / ".kernelcrew" / "runs").iterdir()).name
    gone = kit.command(monkeypatch, capsys, "resume", name, "--workdir", str(workdir))
    assert gone.code == 1
    assert "refused" in gone.err
    measured = kit.calls(workdir)
    assert "baseline" in [s.step for s in read_steps(workdir / ".kernelcrew" / "runs" / name)]
    with serving(port):
        up = kit.command(monkeypatch, capsys, "resume", name, "--workdir", str(workdir), "--json")
    assert up.code == 0
    assert up.last["run"] == name
    assert [d["decision"] for d in up.last["decisions"]] == ["adopt", "inconclusive", "inconclusive"]
    assert kit.calls(workdir)[: len(measured)] == measured
    assert sum(line.startswith(("noise", "profile")) for line in kit.calls(workdir)) == 3
    assert [s.step for s in read_steps(workdir / ".kernelcrew" / "runs" / name)].count("baseline.noise") == 1


def test_bad_form_is_a_failed_round_and_a_finished_run(workdir: Path, operator: Path) -> None:
    with scripted_server.serve([scripted_server.says(NONSENSE)]) as server:
        done = kit.run(workdir, operator, model="openai:small", base_url=server.url, rounds=2)
    assert done.record.status == "finished"
    assert done.record.rounds[0].judged == ()
    assert "no usable answer from the profiler-reader" in done.record.rounds[0].note
    assert done.record.final.identity == done.record.baseline.start.identity
    assert done.step("r1.read")["status"] == "bad_form"
    assert 2 <= len(server.requests) <= 8
    kept = [(done.folder / "blobs" / name).read_text() for name in done.step("r1.read")["exchanges"]]
    assert any(NONSENSE in text for text in kept)


def test_bad_form_from_a_later_role_fails_that_proposal_alone(workdir: Path, operator: Path) -> None:
    def line(request: scripted_server.Request) -> tuple[int, object]:
        reply = model_server.reply_to(request)
        patch = "edits" in json.loads(reply["choices"][0]["message"]["content"])
        return scripted_server.says(NONSENSE)(request) if patch else (200, reply)

    with scripted_server.serve([line]) as server:
        done = kit.run(workdir, operator, model="openai:small", base_url=server.url)
    judged = done.record.rounds[0].judged
    assert judged
    assert {(j.decision.action, j.decision.gate) for j in judged} == {("rollback", "build")}
    assert all("no usable answer" in j.decision.reason for j in judged)
    assert done.record.status == "finished"


def test_a_server_that_refuses_the_key_is_told_as_such(
    workdir: Path, operator: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1234")
    with scripted_server.serve([scripted_server.fails(401, "wrong key sk-secret-1234")]) as server:
        asked = ("run", str(operator), "--anyway", "--model", "openai:small", "--base-url", server.url)
        said = kit.command(monkeypatch, capsys, *asked, "--workdir", str(workdir))
    assert said.code == 1
    assert "refused" in said.err
    assert "OPENAI_API_KEY" in said.err
    everything = [p.read_bytes() for p in (workdir / ".kernelcrew" / "runs").rglob("*") if p.is_file()]
    assert "sk-secret-1234" not in said.err
    assert all(b"sk-secret-1234" not in data for data in everything)
