"""The last word is a person's: approve or reject a run, bring its branch to one's own, take an adopted kernel back.

Each word is a step of the run's journal and a line of `.kernelcrew/history.jsonl`; what it says of a change goes into
memory, so that a rejected change is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kernelcrew.errors import StoreError, UserMistake
from kernelcrew.kernels.load import is_shipped, kernel_file, load_operator
from kernelcrew.kernels.nouns import Operator
from kernelcrew.kernels.planfile import to_files
from kernelcrew.memory.embed import choose
from kernelcrew.memory.store import Memory
from kernelcrew.platforms.detect import detect
from kernelcrew.record import Record
from kernelcrew.runs.deeds import author
from kernelcrew.runs.journal import Journal, payload_of, read_steps
from kernelcrew.runs.listing import run_folder
from kernelcrew.runs.nouns import RunRecord, Settled, Start, Step
from kernelcrew.runs.remembering import Remembered
from kernelcrew.runs.vcs import copy_of, repo_for
from kernelcrew.settings import Settings
from kernelcrew.tools.git import Repo
from kernelcrew.tools.git_merge import merge_into_head

Word = Literal["approved", "rejected", "rolled back"]


class LastWord(Record):
    """What a person decided."""

    word: Word
    """approved, rejected or rolled back."""
    run: str
    """The run it is about; empty for a rollback to the start."""
    operator: str
    """Its operator."""
    platform: str
    """Its platform."""
    backend: str
    """Its backend."""
    by: str
    """`person:NAME`."""
    why: str
    """Their reason."""
    when: str
    """ISO time."""
    before: str
    """Where the incumbent stood."""
    after: str
    """Where it stands now; empty for the user's own source."""
    merged: str = ""
    """The commit of the user's branch that holds it now."""
    written: tuple[str, ...] = ()
    """Files that were written out."""


def approve(settings: Settings, run: str, why: str, *, merge: bool, out: Path | None) -> LastWord:
    """Record the approval; on request merge the run's branch, or write its kernel's files to a folder.

    Raises UserMistake when the run adopted nothing or the merge does not apply cleanly; nothing is changed then.
    """
    start, end, settled = _finished(settings, run)
    operator = load_operator(start.operator_path)
    repo = _repo(settings, operator, start.backend, lambda r: r.commit_named(settled[0].commits[0]) is not None)
    merged = merge_into_head(repo, settled[-1].branch, operator.folder) if merge else ""
    written = _write_out(out, end) if out is not None else ()
    stands = repo.incumbent(start.operator, start.platform, start.backend).commit or ""
    word = _word("approved", start, why, (stands, stands))
    return _kept(settings, run, word.model_copy(update={"merged": merged, "written": written}))


def reject(settings: Settings, run: str, why: str) -> LastWord:
    """Take the run's changes back: the incumbent returns to where it stood before, and memory refutes the changes.

    What was adopted upon them later goes with them. Raises UserMistake when the run adopted nothing.
    """
    start, _, settled = _finished(settings, run)
    operator = load_operator(start.operator_path)
    repo = _repo(settings, operator, start.backend, lambda r: r.commit_named(settled[0].commits[0]) is not None)
    stood = repo.incumbent(start.operator, start.platform, start.backend).commit or ""
    base = repo.parent_of(settled[0].commits[0])
    after = stood
    if stood and repo.descends(stood, settled[0].commits[0]):
        after = repo.reset_incumbent(start.operator, start.platform, start.backend, base)
    word = _kept(settings, run, _word("rejected", start, why, (stood, after)))
    _refute(settings, run, word)
    return word


def roll_back(settings: Settings, operator: str, to: str, why: str, backend: str = "c") -> LastWord:
    """Move this platform's incumbent back: one run by default, else to a run, a commit, or `start`."""
    about = load_operator(operator)
    platform = detect(settings.cc).platform.id
    repo = _repo(settings, about, backend, lambda r: r.incumbent(about.name, platform, backend).commit is not None)
    stood = repo.incumbent(about.name, platform, backend).commit
    if stood is None:
        raise UserMistake(f"nothing is adopted for {about.name} on {platform}", fix="there is nothing to roll back")
    target = _target(settings, repo, about.name, stood, to)
    after = repo.reset_incumbent(about.name, platform, backend, target)
    word = LastWord(
        word="rolled back", run=to if _is_run(settings, to) else "", operator=about.name, platform=platform,
        backend=backend, by=f"person:{author()}", why=why, when=_now(), before=stood, after=after,
    )  # fmt: skip
    _append(settings, word)
    return word


def _repo(settings: Settings, operator: Operator, backend: str, holds: Callable[[Repo], bool]) -> Repo:
    """Where the kernels in question lie: the user's repository, or the copy that a run with --anyway worked in. What is
    not committed yet does not matter here."""
    if is_shipped(operator):
        return repo_for(settings, operator, backend)
    copied = (settings.home / "repos" / operator.name / "HEAD").is_file()
    try:
        own = Repo.at(operator.folder, kernel_file(operator, backend))
    except UserMistake:
        if copied:
            return copy_of(settings, operator, backend)
        raise
    return copy_of(settings, operator, backend) if copied and not holds(own) else own


def _finished(settings: Settings, run: str) -> tuple[Start, RunRecord, list[Settled]]:
    steps = read_steps(run_folder(settings, run))
    start, end = payload_of(steps, "start", Start), payload_of(steps, "end", RunRecord)
    if start is None or end is None:
        raise UserMistake(f"run {run} has not ended", fix=f"kernelcrew resume {run}")
    settled = [s for r in end.rounds for s in r.settled if s.commits]
    if not settled:
        raise UserMistake(f"run {run} adopted nothing", fix="there is nothing to approve or to take back")
    return start, end, settled


def _word(word: Word, start: Start, why: str, moved: tuple[str, str]) -> LastWord:
    return LastWord(
        word=word, run=start.run, operator=start.operator, platform=start.platform, backend=start.backend,
        by=f"person:{author()}", why=why.strip(), when=_now(), before=moved[0], after=moved[1],
    )  # fmt: skip


def _kept(settings: Settings, run: str, word: LastWord) -> LastWord:
    journal = Journal.open(run_folder(settings, run))
    kept = journal.do(f"person.{word.word}", LastWord, [word.word, word.why, word.when], lambda: word)
    _append(settings, kept)
    return kept


def _append(settings: Settings, word: LastWord) -> None:
    path = settings.home / "history.jsonl"
    try:
        with open(path, "a", encoding="utf-8") as handle:
            handle.write(word.model_dump_json() + "\n")
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", fix="free space there or choose another --workdir") from error


def _refute(settings: Settings, run: str, word: LastWord) -> None:
    """What memory holds of the run's adopted changes becomes refuted, with the person's reason; journalled too."""
    folder = run_folder(settings, run)
    journal = Journal.open(folder)
    kept = [Remembered.model_validate(s.payload) for s in journal.steps if s.kind == "Remembered"]
    changed = journal.do("person.remember", Remembered, [word.when], lambda: refuted(kept, word))
    memory = Memory(settings.home, choose(settings.embedder)[0])
    try:
        for tried in changed.tried:
            memory.remember(tried)
        for rationale in changed.rationale:
            memory.explain(rationale)
    finally:
        memory.close()


def refuted(kept: list[Remembered], word: LastWord) -> Remembered:
    """Pure: the entries of adopted changes as rejected by a person."""
    said = f"Rejected by {word.by.removeprefix('person:')}: {word.why}"
    tried = {t.id: t for k in kept for t in k.tried if t.decision in ("adopt", "adopt_when")}
    why = {r.id: r for k in kept for r in k.rationale if r.decision in ("adopt", "adopt_when")}
    return Remembered(
        tried=tuple(
            t.model_copy(
                update={
                    "decision": "rollback", "gate": "person", "result": "", "commit": "",
                    "fates": tuple("refuted" for _ in t.features), "text": f"{said}\n{t.text}",
                }
            )
            for t in tried.values()
        ),
        rationale=tuple(
            r.model_copy(
                update={"decision": "rollback", "evidence": f"{said} {r.evidence}", "text": f"{r.text} {said}"}
            )
            for r in why.values()
        ),
    )  # fmt: skip


def _target(settings: Settings, repo: Repo, operator: str, stood: str, to: str) -> str:
    source = repo.current_commit()
    if to == "start":
        return source
    if _is_run(settings, to):
        _, _, settled = _finished(settings, to)
        return settled[-1].commits[-1]
    if to:
        commit = repo.commit_named(to)
        if commit is None or not repo.descends(commit, source):
            fix = "name a run, a commit that grew from the current source, or `start`"
            raise UserMistake(f"--to {to}: no run and no such commit of {operator}", fix=fix)
        return commit
    for folder in sorted((settings.home / "runs").glob("*/journal.jsonl")):
        steps = read_steps(folder.parent)
        made = [c for s in _settled(steps) for c in s.commits]
        if stood in made:
            return repo.parent_of(made[0])
    return source


def _settled(steps: list[Step]) -> list[Settled]:
    end = payload_of(steps, "end", RunRecord)
    return [s for r in end.rounds for s in r.settled if s.commits] if end else []


def _is_run(settings: Settings, name: str) -> bool:
    return bool(name) and (settings.home / "runs" / name / "journal.jsonl").exists()


def _write_out(out: Path, end: RunRecord) -> tuple[str, ...]:
    files = to_files(end.final)  # a kernel that lies elsewhere in a tree is called kernel.c here
    if there := [name for name in files if (out / name).exists()]:
        raise UserMistake(f"{out / there[0]} is there already", fix="choose an empty folder for --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserMistake(f"{out}: {error.strerror}", fix="choose a folder that can be written") from error
    return tuple(str(out / name) for name in files)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
