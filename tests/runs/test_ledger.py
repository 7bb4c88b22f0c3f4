"""Money: what a price makes of tokens, and that what is unknown stays so."""

from __future__ import annotations

import pytest

from kernelcrew.agents.nouns import Usage
from kernelcrew.runs.crew import Ledger

ASKED = Usage(prompt_tokens=2_000_000, completion_tokens=500_000, calls=1)


@pytest.mark.parametrize(
    ("prices", "usd"),
    [((0.5, 2.0), 2.0), ((0.0, 0.0), 0.0), ((None, None), None), ((0.5, None), None), ((None, 2.0), None)],
)
def test_tokens_cost_what_both_prices_say_or_it_is_unknown(
    prices: tuple[float | None, float | None], usd: float | None
) -> None:
    ledger = Ledger(prices=prices)
    ledger.add("read", ASKED)
    assert ledger.usage["read"].money_usd == usd
    ledger.add("read", ASKED)
    assert ledger.usage["read"].money_usd == (None if usd is None else 2 * usd)
    assert ledger.usage["read"].prompt_tokens == 4_000_000


def test_one_question_of_unknown_cost_makes_the_sum_unknown() -> None:
    ledger = Ledger()
    ledger.add("read", ASKED.model_copy(update={"money_usd": 1.0}))
    assert ledger.usage["read"].money_usd == 1.0
    ledger.add("read", ASKED)
    ledger.add("read", ASKED.model_copy(update={"money_usd": 1.0}))
    assert ledger.usage["read"].money_usd is None
