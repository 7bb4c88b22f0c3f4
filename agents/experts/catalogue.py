"""All moves and directions that the proposer's rules know, family by family."""

from __future__ import annotations

from kernelcrew.agents.experts import moves_attention, moves_columns, moves_generic, moves_matmul, moves_rows
from kernelcrew.agents.experts.moves import Direction, Move

MOVES: tuple[Move, ...] = (
    *moves_rows.MOVES, *moves_columns.MOVES, *moves_matmul.MOVES, *moves_attention.MOVES, *moves_generic.MOVES,
)
"""In no order of their own; a mechanism stands here once."""
DIRECTIONS: tuple[Direction, ...] = (
    *moves_attention.DIRECTIONS, *moves_matmul.DIRECTIONS, *moves_columns.DIRECTIONS,
    *moves_generic.DIRECTIONS, *moves_rows.DIRECTIONS,
)
"""In the order in which equals are proposed."""
