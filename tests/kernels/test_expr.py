"""Expressions: the subset and nothing else, exact integers, and C that gives the same values."""

from __future__ import annotations

import math
import random
import subprocess
from pathlib import Path

import pytest

from kernelcrew.errors import UserMistake
from kernelcrew.kernels.expr import MAX_DEPTH, BadExpression, parse, to_c

AXES = {"rows": 7, "n": 12}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rows * max(n - 1, 0)", 77), ("4 * rows * n + 4 * rows", 364), ("n // 5", 2), ("-n // 5", -3), ("-n % 5", 3),
        ("n / 8", 1.5), ("ceil_div(n, 5)", 3), ("ceil_div(-n, 5)", -2), ("min(n, rows, 3)", 3), ("sqrt(n + 4)", 4.0),
        ("log2(n - 4)", 3.0), ("4 + 0.5 * n", 10.0), ("n <= 12 and rows > 7", 0), ("n <= 12 or rows > 7", 1),
        ("not n == 12", 0), ("1 < rows < n", 1), ("(n >= 12) + (rows >= 7)", 2), ("+n", 12), ("n and rows", 1),
        ("1000000007 * 1000000009 * 1000000021 % 97", 1000000007 * 1000000009 * 1000000021 % 97),
    ],
)
def test_values(text: str, value: float) -> None:
    found = parse(text).value(AXES)
    assert found == value and type(found) is type(value)


def test_names_are_known_before_a_value_is_asked() -> None:
    assert parse("rows * max(n, 2) + sqrt(4)").names == {"rows", "n"}
    assert parse("3").names == frozenset()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n ** 2", "Pow"), ("n if n else 1", "IfExp"), ("n.real", "n.real"), ("__import__('os')", "__import__('os')"),
        ("n[0]", "n[0]"), ("lambda: 1", "lambda"), ("[n for n in (1, 2)]", "[n for"), ("f(n)", "f(n)"), ("'a'", "'a'"),
        ("True", "True"), ("None", "None"), ("1j", "1j"), ("1e999", "1e999"), ("min(n)", "min(n)"), ("n <", "n <"),
        ("sqrt(n, 2)", "sqrt(n, 2)"), ("max(*n)", "max(*n)"), ("min(n, key=n)", "key"), ("n != 1", "NotEq"),
        ("n is 1", "Is"), ("n & 1", "BitAnd"), ("~n", "Invert"), ("(n := 3)", "NamedExpr"), ("", "empty"),
        ("sqrt", "sqrt"), ("n\n+ 1", "one line"), ("n + \u0661", "ASCII"), ("n, 1", "Tuple"), ("f'{n}'", "JoinedStr"),
        ("n\x00", "readable"),
        ("+".join("n" * 300), "characters"),
        ("not " * (MAX_DEPTH + 1) + "n", "nested"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(BadExpression) as caught:
        parse(text)
    assert any(word in str(caught.value) for word in part.split("|"))
    assert isinstance(caught.value, UserMistake) and caught.value.exit_status == 2 and caught.value.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rows // (n - 12)", "division by zero"), ("rows % (n - 12)", "division by zero"),
        ("1 / (n - 12)", "division by zero"),
        ("ceil_div(rows, n - 12)", "division by zero"), ("sqrt(0 - n)", "no value for -12"),
        ("log2(n - 12)", "no value for 0"),
        ("n + k", "no value for this name; there are rows, n"), ("1.5 * 1" + "0" * 320, "too large"),
    ],
)
def test_what_has_no_value_says_why(text: str, reason: str) -> None:
    with pytest.raises(BadExpression, match=reason):
        parse(text).value(AXES)


@pytest.mark.parametrize(
    "text",
    [
        "n / 2", "sqrt(n)", "n < 2.5", "n // rows", "n % 0", "n // -3", "n * n * n", "rows * n * 4 * 1000", "9" * 30,
        "log2(n)",
    ],
)
def test_c_is_refused_where_it_could_differ(text: str) -> None:
    with pytest.raises(BadExpression):
        to_c(parse(text))


def random_rule(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(["rows", "n", str(rng.randint(0, 5000))])
    kind = rng.randrange(8)
    a, b = random_rule(rng, depth - 1), random_rule(rng, depth - 1)
    if kind == 0:
        return f"({a} {rng.choice('+-')} {b})"
    if kind == 1:
        return f"({a} {rng.choice(['//', '%'])} {rng.randint(1, 64)})"
    if kind == 2:
        return f"ceil_div({a}, {rng.randint(1, 64)})"
    if kind == 3:
        return f"{rng.choice(['min', 'max'])}({a}, {b})"
    if kind == 4:
        return f"({a} {rng.choice(['<', '<=', '>', '>=', '=='])} {b})"
    if kind == 5:
        return f"({a} {rng.choice(['and', 'or'])} {b})"
    return f"(not {a})" if kind == 6 else f"(-{a})"


def test_c_has_exactly_the_value_that_python_has(tmp_path: Path) -> None:
    rng = random.Random(5)
    rules = ["n <= 64 and rows % 8 == 0", "0 < n < 9", *(random_rule(rng, rng.randint(1, 4)) for _ in range(150))]
    ends = [0, 1, 63, 64, 65, 2**31 - 1, -(2**31), -1]
    points = [(rng.choice(ends), rng.choice(ends)) for _ in range(20)]
    cases = "\n".join(f"    printf(\"%lld\\n\", (long long){to_c(parse(rule))});" for rule in rules)
    pairs = ", ".join(f"{{{r}LL, {n}LL}}" for r, n in points)
    program = (
        "#include <stdio.h>\nstatic void show(int rows, int n)\n{\n    (void)rows; (void)n;\n" + cases + "\n}\n"
        f"int main(void)\n{{\n    long long p[][2] = {{{pairs}}};\n"
        f"    for (int i = 0; i < {len(points)}; i++) show((int)p[i][0], (int)p[i][1]);\n    return 0;\n}}\n"
    )
    binary = str(tmp_path / "rules")
    flags = ["-O1", "-ftrapv", "-xc", "-", "-o", binary]
    subprocess.run(["gcc", *flags], input=program, text=True, check=True, timeout=60)
    printed = subprocess.run([binary], capture_output=True, text=True, check=True, timeout=10).stdout.split()
    expected = [int(parse(rule).value({"rows": r, "n": n})) for r, n in points for rule in rules]
    assert [int(word) for word in printed] == expected


def test_reading_is_pure_and_repeatable() -> None:
    assert parse("n + 1") is parse("n + 1")
    assert math.isclose(float(parse("2 + 0.15 * sqrt(n)").value({"n": 100})), 3.5)
