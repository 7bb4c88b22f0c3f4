"""The reader of C: functions, loops, knobs and comments by position, and no exception for what is no C."""

from __future__ import annotations

import pytest

from kernelcrew.kernels.cparse import parse_c, set_knob

TEXT = """\
/* Sums rows.
 * Twice. */
#include <stddef.h>
#ifndef ACC
#define ACC 4
#endif
#define FOR for (;;) {
typedef int pair[2];
static inline float half(const float *v, int n) // a helper
{
    return n > 0 ? v[0] * 0.5f : 0.0f;
}
__attribute__((noinline)) void sum(const float *restrict x, float y[], int rows, int n)
{
    char brace = '{'; const char *words = "for (;;) { // no";
    for (int r = 0; r < rows; r++) {
        float s = 0;
        for (int i = 0; i < n; i++) /* serial */
            s += x[i];
        do { s += 1; } while (s < 0);
        if (n) while (n > 1) n--; else for (;;) break;
        y[r] = s + brace + words[0];
    }
}
"""


def test_functions_with_their_parameters() -> None:
    half, total = parse_c(TEXT).functions
    assert (half.name, total.name) == ("half", "sum")
    assert [p.name for p in total.parameters] == ["x", "y", "rows", "n"]
    assert [p.pointer for p in total.parameters] == [True, True, False, False]
    assert (half.span.line_first, half.span.line_last) == (9, 12)
    assert parse_c(TEXT).of(total.body).startswith("{") and parse_c(TEXT).of(total.body).endswith("}")
    assert parse_c("int f(void) { return 0; }").functions[0].parameters == ()


def test_loops_with_lines_and_nesting() -> None:
    source = parse_c(TEXT)
    assert [(loop.kind, loop.depth, loop.innermost, loop.span.line_first) for loop in source.loops] == [
        ("for", 1, False, 16), ("for", 2, True, 18), ("do", 2, True, 20), ("while", 2, True, 21), ("for", 2, True, 21),
    ]
    outer, inner = source.loops[:2]
    assert (outer.span.line_last, inner.span.line_last, inner.parent) == (23, 19, 0)
    assert inner.head == "int i = 0; i < n; i++" and source.code(inner.body) == "s += x[i];"
    assert {loop.function for loop in source.loops} == {"sum"}
    found = source.loop_at(19)
    assert found is not None and found.head == inner.head and source.loop_at(10) is None


def test_knobs_comments_and_blanks() -> None:
    source = parse_c(TEXT)
    assert [(k.name, k.value, k.span.line_first, k.span.line_last) for k in source.knobs] == [("ACC", 4, 4, 6)]
    assert [c.text for c in source.comments] == ["Sums rows.\nTwice.", "a helper", "serial"]
    assert len(source.blank) == len(TEXT) and source.blank.count("\n") == TEXT.count("\n")
    assert "no" not in source.blank.split() and "FOR" not in source.blank and not source.problem


def test_a_knob_is_set_in_its_place() -> None:
    changed = set_knob(TEXT, "ACC", 16)
    assert changed is not None and changed == TEXT.replace("#define ACC 4", "#define ACC 16")
    assert set_knob(TEXT, "VEC", 8) is None
    assert parse_c("#define ACC 4\n").knobs == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("void f(void) {\n  for (;;) {\n}\n", "line 1: '{' is never closed"),
        ("void f(void) )", "line 1: ')' closes nothing"),
        ("int a[3;\n}", "line 2: '}' closes nothing"),
    ],
)
def test_what_does_not_match_is_said_with_its_line(text: str, problem: str) -> None:
    assert parse_c(text).problem == problem


@pytest.mark.parametrize("text", ["", "/* open", '"open', "for", "for (", "for (;;)", "do", "\x00{}", "#if", "}{" * 50])
def test_what_is_no_c_is_read_as_far_as_it_goes(text: str) -> None:
    assert parse_c(text).text == text


def test_deep_nesting_ends_in_a_problem_or_in_loops() -> None:
    deep = parse_c("void f(void) {" + "for (;;) " * 3000 + "; }")
    assert deep.problem and deep.loops == ()
    assert len(parse_c("void f(void) {" + "for (;;) " * 20 + "; }").loops) == 20
