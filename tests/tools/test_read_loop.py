"""The bare read: an ordinary kernel by the policy, and one that does read every word of whole steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcrew import proc
from kernelcrew.kernels.load import load_operator
from kernelcrew.tools.policy import source_policy
from kernelcrew.tools.read_loop import LOADS, STREAMS, read_loop

MAIN = """
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    static unsigned int x[5 * 1000];
    float y[5] = {0};
    for (int i = 0; i < 5000; i++)
        x[i] = 1;
    reduction((const float *)x, y, 5, 1000);
    printf("%.0f %.0f\\n", y[0], y[1]);
    return 0;
}
"""


@pytest.mark.parametrize("streams", STREAMS)
def test_reads_every_word_of_whole_steps(tmp_path: Path, streams: int) -> None:
    made = read_loop(load_operator("reduction"), "c", 32, streams)
    source = tmp_path / "read.c"
    source.write_text(made.variants[0].source.text + MAIN)
    assert proc.run(["gcc", "-O2", "-Wall", "-Werror", "-Wno-psabi", "-o", str(tmp_path / "read"), str(source)]).ok
    step = LOADS // streams * 32
    words = 20000 // streams // step * step * streams // 4
    assert proc.run([str(tmp_path / "read")]).out == f"{words} 0\n"


@pytest.mark.parametrize("streams", STREAMS)
def test_passes_the_policy(streams: int) -> None:
    operator = load_operator("reduction")
    assert source_policy(read_loop(operator, "c", 64, streams), operator) == ()
