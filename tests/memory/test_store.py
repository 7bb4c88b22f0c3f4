"""The store on disk: one entry an id, both searches, other processes, damage and mismatch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest

from kernelcrew.errors import StoreError
from kernelcrew.memory.embed import Hashing, MiniLm, make
from kernelcrew.memory.store import Memory

WRITER = """
import sys
from pathlib import Path
from kernelcrew.memory.embed import Hashing
from kernelcrew.memory.nouns import Rationale
from kernelcrew.memory.store import Memory

home, tag, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Memory(home, Hashing()) as memory:
    for i in range(number):
        memory.explain(Rationale(
            id=f"{tag}:{i}", run=tag, operator="reduction", backend="c", platform="cpu-amd-25-17", mechanism="idea",
            decision="adopt", shape_classes=(), why="w", evidence="e", text=f"{tag} padding {i} removes bank conflicts",
            created="2025-01-01T00:00:00Z",
        ))
        print(f"{tag}:{i}", flush=True)
"""

LIMIT = """
import sys, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, resource.RLIM_INFINITY))
"""


def _writer(home, tag, number) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(home), tag, str(number)], stdout=subprocess.PIPE, text=True, cwd="/"
    )


@pytest.fixture
def memory(tmp_path):
    with Memory(tmp_path, Hashing()) as opened:
        yield opened


def test_an_empty_store_answers_nothing(memory, build):
    assert memory.query("why is it slow", platform=build.here) == []
    assert memory.tried("reduction", build.here) == [] and memory.counts() == {"tried": 0, "rationale": 0}


def test_what_was_remembered_comes_back_whole_after_reopening(tmp_path, build):
    change = build.change(knobs=(build.knob("LANES", 8),))
    patch = build.tried(change, tried_knobs={"LANES": (4, 8)}, fates=("refuted",))
    reason = build.rationale("run1:r1p1:a", "padding removes bank conflicts")
    with Memory(tmp_path, Hashing()) as memory:
        memory.remember(patch)
        memory.explain(reason)
    with warnings.catch_warnings(), Memory(tmp_path, Hashing()) as memory:
        warnings.simplefilter("error")
        assert memory.tried("reduction", build.here) == [patch]
        assert memory.tried("gemm", build.here) == [] and memory.tried("reduction", "other") == []
        assert memory.query("bank conflicts", platform=build.here)[0].entry == reason


def test_the_same_id_is_one_entry_and_the_last_word_counts(memory, build):
    memory.remember(build.tried(build.change(), commit="", tried_knobs={"A": (1,)}))
    memory.remember(build.tried(build.change(), commit="abc", classes={}))
    memory.write([build.rationale("x", "one"), build.rationale("x", "two")])
    (kept,) = memory.tried("reduction", build.here)
    assert kept.commit == "abc" and kept.classes == {} and kept.tried_knobs == {}
    assert memory.counts() == {"tried": 1, "rationale": 1} and memory.rationales(None, build.here)[0].text == "two"


def test_tried_patches_come_oldest_first(memory, build):
    for id_, day in (("r:2", "2025-01-02"), ("r:3", "2025-01-03"), ("r:1", "2025-01-01")):
        memory.remember(build.tried(build.change(), id_=id_, created=day))
    assert [t.id for t in memory.tried("reduction", build.here)] == ["r:1", "r:2", "r:3"]


def test_other_platforms_answer_only_when_asked_and_are_marked(memory, build):
    memory.explain(build.rationale("here", "unrolling hides latency"))
    memory.explain(build.rationale("there", "unrolling hides latency well", platform="cpu/intel 6:143"))
    assert [h.entry.id for h in memory.query("unrolling", platform=build.here)] == ["here"]
    both = {h.entry.id: h.proven_here for h in memory.query("unrolling", platform=build.here, any_platform=True)}
    assert both == {"here": True, "there": False}
    assert set(memory.platforms()) == {build.here, "cpu/intel 6:143"}


def test_names_that_only_differ_in_odd_letters_stay_apart(memory, build):
    for platform in ("cpu/1", "cpu 1", "cpu-1", "核", "-"):
        memory.explain(build.rationale("x", platform, platform=platform))
    assert memory.count("rationale") == 5
    assert [r.text for r in memory.rationales(None, "cpu 1")] == ["cpu 1"]


def test_an_operator_narrows_the_answer_and_n_cuts_it(memory, build):
    for i in range(6):
        memory.explain(build.rationale(f"r{i}", f"padding {i} removes conflicts"))
    memory.explain(build.rationale("g", "padding removes conflicts", operator="gemm"))
    assert [h.entry.id for h in memory.query("padding", "gemm", platform=build.here)] == ["g"]
    assert len(memory.query("padding", platform=build.here, n=3)) == 3


def test_each_hit_says_how_it_was_found(tmp_path, build):
    entry = build.rationale("x", "padding removes bank conflicts")
    with Memory(tmp_path / "a", Hashing()) as memory:
        memory.explain(entry)
        assert memory.query("bank conflicts", platform=build.here)[0].how == "both"
    with Memory(tmp_path / "b", make("lexical")) as memory:
        memory.explain(entry)
        assert memory.query("bank conflicts", platform=build.here)[0].how == "lexical"
        assert memory.query("chocolate cake", platform=build.here) == []


def test_another_embedder_is_refused_with_the_fix(tmp_path, build):
    with Memory(tmp_path, Hashing()) as memory:
        memory.explain(build.rationale("x", "padding"))
    with Memory(tmp_path, Hashing("hashing-other")) as memory:
        with pytest.raises(StoreError, match="memory rebuild"):
            memory.explain(build.rationale("y", "padding"))
        with pytest.raises(StoreError, match="hashing-256"):
            memory.query("padding", platform=build.here)
        assert memory.counts()["rationale"] == 1 and memory.made_with() == {"hashing-256"}


@pytest.mark.parametrize("exact_limit", [5000, 0])
def test_an_open_reader_finds_what_another_process_wrote(tmp_path, build, exact_limit):
    with Memory(tmp_path, Hashing(), exact_limit=exact_limit) as memory:
        memory.explain(build.rationale("mine", "unrolling hides latency"))
        assert len(memory.query("unrolling", platform=build.here)) == 1
        writer = _writer(tmp_path, "other", 3)
        assert writer.wait(60) == 0
        found = memory.query("bank conflicts", platform=build.here)
        assert {h.entry.id for h in found} == {"other:0", "other:1", "other:2"} and {h.how for h in found} == {"both"}
        writer.stdout.close()


def test_two_writers_lose_nothing_and_a_killed_one_at_most_its_last(tmp_path, build):
    stays, dies = _writer(tmp_path, "stays", 15), _writer(tmp_path, "dies", 100_000)
    said = []
    with Memory(tmp_path, Hashing()) as reader:
        for _ in range(10):
            said.append(dies.stdout.readline().strip())
            found = {h.entry.id for h in reader.query("bank conflicts", platform=build.here, n=10_000)}
            assert set(said) <= found, "a reader that is open sees each entry as soon as it is written"
    os.kill(dies.pid, signal.SIGKILL)
    said += dies.stdout.read().split()
    dies.wait(60)
    assert stays.wait(60) == 0 and len(said) >= 10
    with Memory(tmp_path, Hashing()) as memory:
        kept = {r.id for r in memory.rationales("reduction", build.here)}
        assert set(said[:-1]) | {f"stays:{i}" for i in range(15)} <= kept
        assert len(kept) <= len(said) + 1 + 15
        memory.explain(build.rationale("after", "still writable"))
    for child in (stays, dies):
        child.stdout.close()


def test_a_place_that_cannot_hold_a_store_is_a_store_error(tmp_path):
    (tmp_path / "memory").write_text("a file")
    with pytest.raises(StoreError, match="cannot be read or written"):
        Memory(tmp_path, Hashing())


def test_a_damaged_store_is_a_store_error_with_the_way_out(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "chroma.sqlite3").write_bytes(b"no database" * 500)
    with pytest.raises(StoreError, match="memory rebuild"):
        Memory(tmp_path, Hashing())


def test_a_full_disk_is_a_store_error(tmp_path):
    limited = WRITER.replace("import sys\n", LIMIT, 1)
    ended = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path), "full", "5000"],
        capture_output=True, text=True, cwd="/", timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1 and "kernelcrew.errors.StoreError" in ended.stderr, ended.stderr
    assert "free or unlock the disk" in ended.stderr
    with Memory(tmp_path, Hashing()) as memory:
        kept = memory.count("rationale")
        assert kept >= len(ended.stdout.split())


CORPUS = {
    "chain": "One serial chain of additions waits for the latency of each; eight independent accumulators fill it.",
    "occupancy": "Low occupancy: 168 registers a thread leave only a few warps resident on each multiprocessor.",
    "overhead": "Rows of at most 64 elements pay the overhead of the call and of the tail loop, not of memory.",
    "prefetch": "Software prefetch on long rows gained nothing: the processor's own prefetcher keeps up.",
    "vector": "gcc left the loop scalar: float sums may not be reordered without -fassociative-math.",
    "conflicts": "A stride of 32 floats puts every lane on the same bank of shared memory; padding by one removes it.",
    "bandwidth": "At 64 MiB the kernel moves 41 GB/s of a measured peak of 44: nothing is left to gain from memory.",
}


def test_the_packaged_model_answers_questions_of_the_field(tmp_path, build):
    questions = {
        "too few active warps": "occupancy",
        "why does more than one running sum help": "chain",
        "the compiler did not emit SIMD code": "vector",
        "small inputs are dominated by fixed costs": "overhead",
        "are we close to the memory roofline": "bandwidth",
    }
    with Memory(tmp_path, MiniLm()) as memory:
        memory.write([build.rationale(id_, text) for id_, text in CORPUS.items()])
        answers = {q: [h.entry.id for h in memory.query(q, platform=build.here, n=3)] for q in questions}
        assert all(want in answers[q][:2] for q, want in questions.items()), answers
        assert sum(answers[q][0] == want for q, want in questions.items()) >= 4, answers
        assert memory.query("a recipe for chocolate cake", platform=build.here) == []
