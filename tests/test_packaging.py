"""The wheel holds one import name with everything in it, and works where no checkout is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from source_tree import ROOMS, ROOT

from kernelcrew import proc
from kernelcrew.settings import child_environment
from kernelcrew.version import VERSION

UNDONE = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources: a build leaves files beside them."""
    work = tmp_path_factory.mktemp("wheel")
    for room in ROOMS:
        shutil.copytree(ROOT / room, work / "src" / room, ignore=UNDONE)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, work / "src" / name)
    build = "import setuptools.build_meta as b; b.build_wheel('../out')"
    done = proc.run([sys.executable, "-c", build], cwd=work / "src", limits=proc.Limits(output_bytes=1 << 30))
    assert done.ok, done.err
    (found,) = (work / "out").glob("*.whl")
    return found


def expected() -> set[str]:
    """Every file of every room, under its name in the wheel."""
    names = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            # Recorded runs are for the tests alone.
            if path.is_file() and not {"__pycache__", "evidence"} & set(path.parts):
                inner = path.relative_to(ROOT / room)
                names.add(str(Path("kernelcrew", *([] if room == "base" else [room]), inner)))
    return names


def test_the_wheel_holds_every_file_under_one_name(wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if not name.startswith(f"kernelcrew-{VERSION}.dist-info/")}
    assert {"kernelcrew/py.typed", "kernelcrew/kernels/reduction/reference.py", "kernelcrew/__main__.py"} <= names
    assert names == expected()


def test_the_wheel_carries_its_licence_and_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        info = f"kernelcrew-{VERSION}.dist-info"
        assert "kernelcrew = kernelcrew.runs.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_an_installed_copy_works_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    ZipFile(wheel).extractall(site)
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import kernelcrew.tools, kernelcrew.kernels.load as load\n"
        "print(kernelcrew.tools.__file__)\n"
        "print(load.load_operator('reduction').folder)\n"
    )
    done = proc.run([sys.executable, "-I", "-c", script], cwd=tmp_path, env=child_environment())
    assert done.ok, done.err
    assert done.out.splitlines() == [
        str(site / "kernelcrew" / "tools" / "__init__.py"), str(site / "kernelcrew" / "kernels" / "reduction"),
    ]


def test_no_bare_room_can_be_imported(tmp_path: Path) -> None:
    script = f"import importlib.util as u; print([r for r in {ROOMS!r} if u.find_spec(r) is not None])"
    done = proc.run([sys.executable, "-I", "-c", script], cwd=tmp_path, env=child_environment())
    assert done.out.strip() == "[]", done.err


def test_the_lock_names_exact_versions_and_no_host() -> None:
    lines = [line for line in (ROOT / "requirements-lock.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if line.count("==") != 1 or "/" in line or "@" in line] == []
    names = {line.split("==")[0].lower() for line in lines}
    assert {"chromadb", "autogen-core", "numpy", "pytest", "mypy", "ruff"} <= names
    assert not {"torch", "triton", "kernelcrew"} & names
