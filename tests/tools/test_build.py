"""The builder: objects, diagnostics with lines, remarks, the object policy, variants, the cache and its failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.errors import MissingTool, StoreError
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.tools import build_lines, elf
from kernelcrew.tools.build import Builder
from kernelcrew.tools.build_words import IN_ORDER, diagnostics, loop_remarks
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.policy_object import object_policy

sys.path.insert(0, str(Path(__file__).parent))
import net_kit as kit


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    folder = tmp_path_factory.mktemp("build")
    return Builder(kit.operator(), kit.settings(folder), kit.sandbox(), kit.machine())


def of_body(builder: Builder, body: str, before: str = "", **plan: object) -> Build:
    return builder.build(kit.candidate(body, before=before, **plan))


def test_builds_the_start(builder: Builder) -> None:
    build = builder.build(kit.start())
    assert build.status == "ok" and build.text_bytes > 50 and not build.diagnostics
    found = elf.read(Path(build.artifact).read_bytes())
    assert [s.name for s in found.dynamic_symbols if s.section] == ["reduction"]
    assert "-O3" in build.commands[0] and str(Path.home()) not in " ".join(build.commands)


def test_paths_do_not_enter_the_object(builder: Builder, tmp_path: Path) -> None:
    other = Builder(kit.operator(), kit.settings(tmp_path), kit.sandbox(), kit.machine())
    one, two = builder.build(kit.start()), other.build(kit.start())
    assert one.artifact != two.artifact and one.artifact_hash == two.artifact_hash
    assert str(tmp_path).encode() not in Path(two.artifact).read_bytes()


def test_remarks_tell_a_chain_from_free_lanes(builder: Builder) -> None:
    plain = {loop.line: loop for loop in builder.build(kit.start()).loops}
    chained = [loop for loop in plain.values() if loop.message == IN_ORDER]
    assert any(not loop.vectorized for loop in plain.values())
    flags = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
    free = of_body(builder, kit.sums(), flags=flags).loops
    assert any(loop.vectorized and not loop.message for loop in free)
    assert chained or not any(loop.vectorized for loop in plain.values())


def test_keeps_a_build_and_finds_it_again(builder: Builder) -> None:
    first = of_body(builder, kit.sums(last="s + 0.0f"))
    again = of_body(builder, kit.sums(last="s + 0.0f"))
    assert first.seconds > 0 and again.seconds == 0
    assert again.model_copy(update={"seconds": first.seconds}) == first


def test_a_damaged_object_is_built_again(builder: Builder) -> None:
    first = of_body(builder, kit.sums(last="s + 1.0f"))
    Path(first.artifact).write_bytes(b"damaged")
    again = of_body(builder, kit.sums(last="s + 1.0f"))
    assert again.seconds > 0 and again.artifact_hash == first.artifact_hash
    assert Path(again.artifact).read_bytes() != b"damaged"


def test_another_flag_is_another_build(builder: Builder) -> None:
    one, two = of_body(builder, kit.sums()), of_body(builder, kit.sums(), flags=("-O2",))
    assert one.artifact != two.artifact


def test_compile_errors_name_the_line(builder: Builder) -> None:
    build = builder.build(kit.whole(f"{kit.WHY}{kit.HEAD}    y[0] = z;\n}}\n"))
    assert build.status == "failed" and build.stage == "build" and not build.artifact
    (error,) = [d for d in build.diagnostics if d.kind == "error"]
    assert error.line == 4 and "z" in error.message


def test_warnings_are_kept(builder: Builder) -> None:
    build = of_body(builder, "    int unused;\n" + kit.sums())
    assert build.status == "ok"
    assert [(w.option, w.line) for w in build.warnings] == [("-Wunused-variable", 4)]


def test_another_signature_is_an_error(builder: Builder) -> None:
    build = builder.build(kit.whole(f"{kit.WHY}void reduction(float *x, float *y, long rows, int n)\n{{\n}}\n"))
    assert build.status == "failed" and "conflicting types" in build.diagnostics[0].message


OBJECT_REFUSED = {
    "state": ("state", "float kept[4];\n", "    kept[0] += 1;\n"),
    "pointer that changes": ("state", "static const float *last;\n", "    if (last == x) return; last = x;\n"),
    "missing entry": ("export", "", None),
    "unknown symbol": ("symbol", "", "    extern char **environ; if (environ) return;\n"),
}


@pytest.mark.parametrize("name", OBJECT_REFUSED)
def test_object_policy_refuses(builder: Builder, name: str) -> None:
    rule, before, statement = OBJECT_REFUSED[name]
    if statement is None:
        made = kit.whole(kit.WHY + "int other(void) { return 1; }\n")
    else:
        made = kit.candidate(statement + kit.sums(), before=before)
    build = builder.build(made)
    assert build.status == "refused" and build.stage == "policy" and not build.artifact
    assert rule in {d.kind for d in build.diagnostics}, build.diagnostics


def compiled(folder: Path, text: str, *flags: str) -> tuple[Path, str]:
    """An object built without any policy, and its disassembly."""
    source, made = folder / "k.c", folder / "k.so"
    source.write_text(text)
    assert proc.run(["gcc", "-O1", "-shared", "-fPIC", "-w", *flags, "-o", str(made), str(source)]).ok
    return made, proc.run([*build_lines.disassemble_line(folder)[:-1], str(made)]).out


EVIL = {
    "instruction": 'void reduction(void) { __asm__ volatile("syscall"); }',
    "startup": "void __attribute__((constructor)) early(void) { } void reduction(void) { }",
    "export": "void reduction(void) { } void other(void) { }",
    "symbol": "int system(const char *); void reduction(void) { system(0); }",
    "state": "_Thread_local float kept; void reduction(void) { kept += 1; }",
    "call": "void reduction(void (**p)(int)) { p[0](1); p[1](2); }",
    "section": '__attribute__((section(".other"))) void helper(void) { } void reduction(void) { helper(); }',
}


@pytest.mark.parametrize("rule", EVIL)
def test_object_policy_sees_what_a_source_could_hide(tmp_path: Path, rule: str) -> None:
    made, words = compiled(tmp_path, EVIL[rule], "-nostartfiles")
    assert rule in {d.kind for d in object_policy(made, "reduction", 1, words)}


@pytest.mark.parametrize("flag", ["-fplt", "-fno-plt"])
def test_object_policy_takes_an_honest_object(tmp_path: Path, flag: str) -> None:
    text = "#include <math.h>\n#include <string.h>\nvoid reduction(float *y) { memset(y, 0, 9); *y = expf(y[1]); }"
    made, words = compiled(tmp_path, text, "-nostartfiles", "-lm", flag)
    assert object_policy(made, "reduction", 1, words) == ()


TAIL = """#include <string.h>
#define USE(f) (void)(f)
typedef void *(*fn)(void *, const void *, unsigned long);
"""
SWITCH = """    for (int r = 0; r < rows; r++) {
        const float *p = x + (long)r * n;
        float s = 0;
        int i = 0;
        for (; i + 8 <= n; i += 8) for (int k = 0; k < 8; k++) s += p[i + k];
        switch (n % 8) {
            case 7: s += p[i + 6]; case 6: s += p[i + 5]; case 5: s += p[i + 4]; case 4: s += p[i + 3];
            case 3: s += p[i + 2]; case 2: s += p[i + 1]; case 1: s += p[i]; default: break;
        }
        y[r] = s;
    }"""


def test_a_jump_through_a_pointer_is_refused_and_a_switch_is_not(builder: Builder) -> None:
    tail = "    fn go = memcpy; USE(go); volatile fn held = go; go = held; if (rows) go(y, y, 4);"
    found = of_body(builder, f"{kit.sums()}\n{tail}", before=TAIL)
    assert found.status == "refused" and "goes where a pointer says" in found.diagnostics[0].message
    labels = "    static const void *const to[] = {&&one, &&two}; goto *to[n & 1]; one: y[0] = 1; two: y[1] = 2;"
    assert of_body(builder, labels).status != "ok"
    assert of_body(builder, SWITCH).status == "ok"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("  10: jmp    *%rax", True), ("  10: notrack jmp *0x10(,%rax,8)", True), ("  10: jmp    *0x2fe2(%rip)", False),
        ("  10: call   *%rdx", True), ("  10: jmp    1140 <reduction+0x40>", False), ("  10: blr    x3", True),
        ("  10: br     x17", True), ("  10: bl     1140 <f>", False), ("  10: b      1140 <f>", False),
        ("Disassembly of section .plt:\n  10: br     x17", False),
    ],
)
def test_every_way_through_a_pointer_is_seen(tmp_path: Path, line: str, refused: bool) -> None:
    made, words = compiled(tmp_path, "void reduction(void) { }", "-nostartfiles")
    found = object_policy(made, "reduction", 1, f"{words}\n{line}\n")
    assert ("call" in {d.kind for d in found}) is refused


def test_object_policy_refuses_what_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "k.so").write_bytes(b"#!/bin/sh\n")
    assert [d.kind for d in object_policy(tmp_path / "k.so", "reduction", 1, "")] == ["object"]


def test_host_files_cannot_be_read_while_compiling(builder: Builder) -> None:
    build = of_body(builder, '#include "/etc/passwd"\n' + kit.sums())
    assert build.status == "refused" and {d.kind for d in build.diagnostics} == {"include"}


def variants(*parts: tuple[str, str | None]) -> Candidate:
    helper = "float helper(float v);\nfloat helper(float v) { return v; }\n"
    made = [kit.candidate(body, before=helper) for body, _ in parts]
    listed = tuple(m.variants[0].model_copy(update={"when": w}) for m, (_, w) in zip(made, parts, strict=True))
    return made[0].model_copy(update={"variants": listed})


def test_variants_get_a_dispatcher(builder: Builder) -> None:
    build = builder.build(variants((kit.sums(last="helper(s)"), "n <= 64 and rows % 2 == 0"), (kit.sums(), None)))
    assert build.status == "ok", build.diagnostics
    found = elf.read(Path(build.artifact).read_bytes())
    assert [s.name for s in found.dynamic_symbols if s.section] == ["reduction"]
    assert {"reduction_v1", "reduction_v2"} <= {s.name for s in found.symbols}


def test_scratch_of_variants_is_the_largest() -> None:
    both = variants((kit.sums(), "n <= 64"), (kit.sums(), None))
    two = tuple(
        v.model_copy(update={"plan": v.plan.model_copy(update={"scratch_bytes": declared})})
        for v, declared in zip(both.variants, ("4 * n", "8 * rows"), strict=True)
    )
    whole = both.model_copy(update={"variants": two})
    assert build_lines.scratch_of(whole) == "max(4 * n, 8 * rows)"
    text = build_lines.dispatcher(kit.operator(), kit.operator().backends["c"], whole)
    assert "reduction_v1(x, y, rows, n, scratch)" in text


def test_scratch_is_a_parameter(builder: Builder) -> None:
    head = "void reduction(const float *x, float *y, int rows, int n, void *scratch)\n{\n"
    build = builder.build(kit.candidate("    (void)scratch;\n" + kit.sums(), head=head, scratch_bytes="4 * n"))
    assert build.status == "ok" and build.scratch_bytes == "4 * n"


def test_many_are_built_in_their_order(builder: Builder) -> None:
    made = [kit.candidate(kit.sums(last=f"s + {k}.5f")) for k in range(3)]
    made.insert(1, kit.candidate("    y[0] = z;"))
    builds = builder.build_many(made)
    assert [b.identity for b in builds] == [c.identity for c in made]
    assert [b.status for b in builds] == ["ok", "failed", "ok", "ok"]


def test_a_compiler_that_goes_on_for_ever_is_a_failed_build(tmp_path: Path) -> None:
    limits = proc.Limits(time_s=0.01)
    hasty = Builder(kit.operator(), kit.settings(tmp_path), kit.sandbox(), kit.machine(), limits)
    build = hasty.build(kit.start())
    assert build.status == "failed" and "did not finish" in build.diagnostics[0].message


def test_a_flood_of_output_is_a_failed_build(tmp_path: Path) -> None:
    limits = proc.Limits(output_bytes=256)
    narrow = Builder(kit.operator(), kit.settings(tmp_path), kit.sandbox(), kit.machine(), limits)
    assert narrow.build(kit.start()).status == "failed"


def test_a_cache_that_cannot_be_written_stops_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / ".kernelcrew").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="workdir"):
        Builder(kit.operator(), kit.settings(tmp_path), kit.sandbox(), kit.machine()).build(kit.start())


def test_no_compiler_is_said(tmp_path: Path) -> None:
    gone = kit.machine().model_copy(
        update={"toolchain": kit.machine().toolchain.model_copy(update={"path": "no-such-compiler"})}
    )
    with pytest.raises(MissingTool, match="no-such-compiler"):
        Builder(kit.operator(), kit.settings(tmp_path), kit.sandbox(), gone)


def test_reads_text_where_there_is_no_json() -> None:
    text = "kernel.c:7:3: warning: unused variable 'a' [-Wunused-variable]\n/usr/bin/ld: undefined reference to `f'\n"
    found = diagnostics(text, "kernel.c")
    assert [(d.kind, d.line, d.option) for d in found] == [("warning", 7, "-Wunused-variable"), ("error", 0, "")]


def test_the_reason_that_tells_most_is_kept() -> None:
    text = (
        "kernel.c:4:9: missed:   not vectorized, possible dependence between data-refs *_1 and *_2\n"
        "kernel.c:4:9: missed:   not vectorized: no vectype for stmt: _3 = *_4;\n"
        "kernel.c:4:9: missed: couldn't vectorize loop\n"
        "kernel.c:9:9: optimized: loop vectorized using 32 byte vectors\n"
    )
    one, two = loop_remarks(text, "kernel.c")
    assert (one.line, one.vectorized, one.message) == (4, False, "possible dependence between data-refs *_1 and *_2")
    assert (two.line, two.vectorized, two.vector_bytes) == (9, True, 32)
