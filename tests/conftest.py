"""The order of the test files: the longest first, so that they run beside all the others and not behind them."""

from __future__ import annotations

import pytest

LONGEST = (
    "test_docs.py", "test_resume.py", "test_people.py", "test_flow_rounds.py", "test_bad_input.py", "test_lock.py",
    "test_own_operators.py", "test_permissions.py", "test_recipes_attention.py", "test_recipes_matmul.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
