"""Rebuilding from journals and moving the store as JSON lines."""

from __future__ import annotations

import pytest

from kernelcrew.errors import BadManifest, StoreError
from kernelcrew.memory import rebuild as rebuilding
from kernelcrew.memory.embed import Hashing
from kernelcrew.memory.rebuild import export_jsonl, import_jsonl, rebuild
from kernelcrew.memory.store import Memory


class Counting(Hashing):
    """Counts the texts it embeds."""

    def __init__(self, name: str = "hashing-256") -> None:
        super().__init__(name)
        self.seen = 0

    def embed(self, texts):
        self.seen += len(texts)
        return super().embed(texts)


def test_a_rebuild_changes_the_embedder_and_keeps_what_journals_do_not_have(tmp_path, build):
    with Memory(tmp_path, Hashing("hashing-old")) as memory:
        memory.explain(build.rationale("imported", "padding removes conflicts"))
        memory.explain(build.rationale("told", "an old text"))
    with Memory(tmp_path, Hashing()) as memory:
        patch = build.tried(build.change())
        counts = rebuild(memory, [patch], [build.rationale("told", "the journal's text")])
        assert counts == {"tried": 1, "rationale": 2} and memory.made_with() == {"hashing-256"}
        texts = {r.id: r.text for r in memory.rationales(None, build.here)}
        assert texts == {"imported": "padding removes conflicts", "told": "the journal's text"}
        assert memory.tried("reduction", build.here) == [patch]
        assert memory.query("padding", platform=build.here)[0].entry.id == "imported"
    assert not (tmp_path / "memory-rebuild.jsonl").exists()


def test_a_rebuild_that_was_killed_half_way_loses_nothing(tmp_path, build, monkeypatch):
    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with Memory(tmp_path, Hashing()) as memory:
        memory.explain(build.rationale("imported", "padding removes conflicts"))
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(rebuilding, "_fill", killed)
            rebuild(memory, [], [])
        assert memory.counts()["rationale"] == 0
        assert rebuild(memory, [], []) == {"tried": 0, "rationale": 1}


def test_an_export_moves_a_store_with_its_vectors(tmp_path, build):
    with Memory(tmp_path / "a", Hashing()) as memory:
        reasons = [build.rationale(f"r{i}", f"padding {i} 占用率") for i in range(450)]
        memory.write([build.tried(build.change()), *reasons])
        assert export_jsonl(memory, tmp_path / "all.jsonl") == 451
        before = {r.id: r for r in memory.rationales(None, build.here)}
    same = Counting()
    with Memory(tmp_path / "b", same) as memory:
        assert import_jsonl(memory, tmp_path / "all.jsonl") == 451 and same.seen == 0
        assert import_jsonl(memory, tmp_path / "all.jsonl") == 451
        assert memory.counts() == {"tried": 1, "rationale": 450}
        assert {r.id: r for r in memory.rationales(None, build.here)} == before
    other = Counting("hashing-other")
    with Memory(tmp_path / "c", other) as memory:
        import_jsonl(memory, tmp_path / "all.jsonl")
        assert other.seen == 451


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "tried"}', '{"kind": "rationale", "record": {"id": "x"}}'])
def test_a_bad_line_is_named(tmp_path, build, line):
    path = tmp_path / "bad.jsonl"
    with Memory(tmp_path, Hashing()) as memory:
        memory.explain(build.rationale("r", "text"))
        export_jsonl(memory, path)
        path.write_text(path.read_text() + line + "\n")
        with pytest.raises(BadManifest, match=r"bad\.jsonl:2"):
            import_jsonl(memory, path)


def test_files_that_cannot_be_read_or_written_say_so(tmp_path, build):
    with Memory(tmp_path, Hashing()) as memory:
        with pytest.raises(StoreError, match="cannot be read"):
            import_jsonl(memory, tmp_path / "absent.jsonl")
        with pytest.raises(StoreError, match="cannot be written"):
            export_jsonl(memory, tmp_path / "nowhere" / "x.jsonl")
