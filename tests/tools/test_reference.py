"""The reference in its child process: values, errors that name the file, time limit, large inputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.errors import BadManifest, HarnessError
from kernelcrew.tools.reference import Reference

sys.path.insert(0, str(Path(__file__).parent))
import net_kit as kit


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with Reference(kit.operator()) as made:
        yield made


@pytest.mark.parametrize(("rows", "n"), [(0, 0), (0, 4), (3, 0), (1, 1), (5, 7), (64, 4096)])
def test_values_and_scales(reference: Reference, rows: int, n: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, n)).astype(np.float32)
    value, scale = reference.values({"x": x}, {"rows": rows, "n": n})["y"]
    assert value.dtype == scale.dtype == np.float64 and value.shape == (rows,)
    np.testing.assert_allclose(value, x.astype(np.float64).sum(axis=1), rtol=0, atol=1e-12 * max(n, 1))
    np.testing.assert_allclose(scale, np.abs(x.astype(np.float64)).sum(axis=1), rtol=1e-12)


def test_answers_are_kept_apart(reference: Reference) -> None:
    ones, twos = np.ones((2, 4), np.float32), np.full((2, 4), 2, np.float32)
    first = reference.values({"x": ones}, {"rows": 2, "n": 4})["y"][0]
    second = reference.values({"x": twos}, {"rows": 2, "n": 4})["y"][0]
    assert list(first) == [4, 4] and list(second) == [8, 8]


def test_sixteen_megabytes_pass(reference: Reference) -> None:
    x = np.ones((4, 1 << 20), np.float32)
    assert list(reference.values({"x": x}, {"rows": 4, "n": 1 << 20})["y"][0]) == [1 << 20] * 4


def with_text(folder: Path, text: str, limit_s: float = 20.0) -> Reference:
    (folder / "reference.py").write_text(text)
    return Reference(kit.operator().model_copy(update={"folder": folder}), limit_s)


BROKEN = {
    "raises": ("def reference(inputs, axes):\n    return 1 / 0\n", r"ZeroDivisionError.*line 2"),
    "no function": ("x = 1\n", "defines no function reference"),
    "not Python": ("def (:\n", "SyntaxError"),
    "no mapping": ("def reference(inputs, axes):\n    return 3\n", "reference.. returned int"),
    "no pair": ("def reference(inputs, axes):\n    return {'y': 1.0}\n", "no pair for 'y'"),
    "no output": ("def reference(inputs, axes):\n    return {}\n", "returned no 'y'"),
    "another shape": (
        "import numpy as np\ndef reference(inputs, axes):\n    return {'y': (np.zeros(9), np.zeros(9))}\n",
        r"shape \(9,\)",
    ),
    "ends": ("import os\ndef reference(inputs, axes):\n    os._exit(3)\n", "process ended"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_failures_name_the_file(tmp_path: Path, name: str) -> None:
    text, words = BROKEN[name]
    with with_text(tmp_path, text) as broken, pytest.raises(HarnessError, match=words) as caught:
        broken.values({"x": np.ones((2, 2), np.float32)}, {"rows": 2, "n": 2})
    assert str(tmp_path / "reference.py") in str(caught.value)


def test_a_reference_that_hangs_is_ended(tmp_path: Path) -> None:
    text = "import time\ndef reference(inputs, axes):\n    time.sleep(60)\n"
    with with_text(tmp_path, text, limit_s=0.5) as slow, pytest.raises(HarnessError, match="no answer within"):
        slow.values({"x": np.ones((2, 2), np.float32)}, {"rows": 2, "n": 2})


def test_the_parent_never_imports_it_and_hands_over_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    text = (
        "import os, sys\nimport numpy as np\nsys.stdout.write('noise')\n"
        "def reference(inputs, axes):\n"
        "    told = np.array([os.getpid(), 'SECRET_KEY' in os.environ], dtype=float)\n"
        "    return {'y': (told, told)}\n"
    )
    with with_text(tmp_path, text) as asked:
        pid, leaked = asked.values({"x": np.ones((2, 2), np.float32)}, {"rows": 2, "n": 2})["y"][0]
    assert pid != 0 and int(pid) != os.getpid() and leaked == 0


def test_no_reference_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match=r"reference\.py"):
        Reference(kit.operator().model_copy(update={"folder": tmp_path}))
