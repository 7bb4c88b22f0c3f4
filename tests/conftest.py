"""What whole-flow tests share: one small run, made once a session."""

from __future__ import annotations

import json

import pytest
from command_line import SmallRun, call_kernelcrew


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """One round on `reduction` within a minute. Copy its working directory before changing anything in it."""
    workdir = tmp_path_factory.mktemp("small run")
    words = ("run", "reduction", "--rounds", "1", "--budget-min", "1", "--seed", "1", "--json")
    done = call_kernelcrew(*words, cwd=workdir)
    assert done.returncode == 0, done.stderr
    return SmallRun(workdir, json.loads(done.stdout.splitlines()[-1]))
