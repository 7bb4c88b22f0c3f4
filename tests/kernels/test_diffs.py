"""A person's diff as edits: what fits, where, in which change, and what is told when it does not."""

from __future__ import annotations

import pytest

from kernelcrew.kernels.diffs import Group, Piece, diff_of, edits_from, parse_group, pieces_of

OLD = "".join(f"line {n}\n" for n in range(1, 41))
NEW = OLD.replace("line 5\n", "line five\n").replace("line 30\n", "line 30\nline 30b\n").replace("line 39\n", "")


def pieces(diff: str, old: str = OLD) -> list[Piece]:
    found = pieces_of(diff, old, "kernel.c")
    assert isinstance(found, list), found
    return found


def applied(old: str, found: list[Piece]) -> str:
    for piece in found:
        assert old.count(piece.block.search) == 1
        old = old.replace(piece.block.search, piece.block.replace)
    return old


def test_hunks_give_the_new_text() -> None:
    found = pieces(diff_of(OLD, NEW, "kernel.c"))
    assert len(found) == 3 and applied(OLD, found) == NEW
    assert [p.line for p in found] == [5, 31, 39]


def test_a_diff_without_context_and_one_that_has_slid() -> None:
    bare = "--- a/kernel.c\n+++ b/kernel.c\n@@ -30,0 +31 @@\n+line 30b\n"
    assert applied(OLD, pieces(bare)) == OLD.replace("line 30\n", "line 30\nline 30b\n")
    slid = diff_of(OLD, OLD.replace("line 9\n", "line nine\n"), "kernel.c")
    longer = "new first line\n" + OLD
    assert applied(longer, pieces(slid, longer)) == longer.replace("line 9\n", "line nine\n")


def test_lines_that_occur_more_than_once_are_told_apart() -> None:
    twice = "a\nb\nc\n" * 3
    changed = "a\nb\nc\na\nB\nc\na\nb\nc\n"
    assert applied(twice, pieces(diff_of(twice, changed, "kernel.c"), twice)) == changed


def test_a_diff_of_two_names_is_as_good() -> None:
    renamed = diff_of(OLD, NEW, "kernel.c").replace("b/kernel.c", "patched.c").replace("a/kernel.c", "kernel.c")
    assert applied(OLD, pieces(renamed)) == NEW


def test_no_newline_at_the_end() -> None:
    assert applied("a\nb", pieces(diff_of("a\nb", "a\nc", "kernel.c"), "a\nb")) == "a\nc"


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        ("", "no change"),
        ("hello\n", "no change"),
        ("--- a/kernel.c\n+++ b/kernel.c\n@@ -1,2 +1,2 @@\n-other\n+text\n more\n", "hunk 1 does not fit"),
        ("--- a/plan.toml\n+++ b/plan.toml\n@@ -1 +1 @@\n-line 1\n+x\n", "only the kernel's source (.c)"),
        ("--- /dev/null\n+++ b/kernel.c\n@@ -0,0 +1 @@\n+x\n", "adds or removes"),
        ("--- a/kernel.c\n+++ b/kernel.c\n@@ -1,9 +1,9 @@\n-line 1\n+x\n", "no unified diff"),
    ],
)
def test_what_cannot_be_used_is_told(diff: str, words: str) -> None:
    found = pieces_of(diff, OLD, "kernel.c")
    assert isinstance(found, str) and words in found


def test_groups_become_changes() -> None:
    found = pieces(diff_of(OLD, NEW, "kernel.c"))
    edits = edits_from(found, (Group(name="a", hunks=(3, 1)), Group(name="b", hunks=(2,))))
    assert not isinstance(edits, str)
    assert [(e.change, len(e.blocks)) for e in edits] == [("a", 2), ("b", 1)]
    assert edits[0].blocks == (found[0].block, found[2].block)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((Group(name="a", hunks=(1, 2)),), "hunk 3 is in no change"),
        ((Group(name="a", hunks=(1, 2, 3)), Group(name="b", hunks=(3,))), "in 'a' and in 'b'"),
        ((Group(name="a", hunks=(1, 2, 3, 4)),), "the diff has 3"),
        ((Group(name="a", hunks=(1,)), Group(name="a", hunks=(2, 3))), "there twice"),
    ],
)
def test_groups_that_do_not_add_up(groups: tuple[Group, ...], words: str) -> None:
    found = edits_from(pieces(diff_of(OLD, NEW, "kernel.c")), groups)
    assert isinstance(found, str) and words in found


def test_group_words() -> None:
    assert parse_group("unroll=1,3") == Group(name="unroll", hunks=(1, 3))
    assert parse_group("b-2=2: hides latency") == Group(name="b-2", hunks=(2,), why="hides latency")
    for text in ("unroll", "=1", "a b=1", "a=x", "a="):
        assert isinstance(parse_group(text), str)
