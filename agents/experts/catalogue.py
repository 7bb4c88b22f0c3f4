"""All moves and directions that the proposer's rules know, family by family."""

from __future__ import annotations

from kernelcrew.agents.experts import moves_rows
from kernelcrew.agents.experts.moves import Direction, Move

MOVES: tuple[Move, ...] = (*moves_rows.MOVES,)
"""In no order of their own; a mechanism stands here once."""
DIRECTIONS: tuple[Direction, ...] = (*moves_rows.DIRECTIONS,)
"""In the order in which equals are proposed."""
