"""Faster versions of the library's slowest generators, for generation processes. The items are the same, byte for byte.

Each function in `FASTER` replaces the hot part of one generator with an equivalent one. Where an item depends on the
order of a Python set, the faster version keeps that order. A replacement is used only if the library's code is the code
that it was written for (`REPLACED` has the hashes), so another release of the library draws its own items.

`benchmarks/rows.py` compares both versions.
"""

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rg_env.core.tasks.faster import algebra, grids, searches


def speed_up(task: str, module: ModuleType) -> None:
    """Replace the generator of `task` in its `module` of the library, if there is a faster version of it."""
    if task in FASTER and source_hash(task, module) == REPLACED[task]:
        FASTER[task](module)


def source_hash(task: str, module: ModuleType) -> str:
    """Return a hash of the library's code that the faster version of `task` replaces or relies on."""
    digest = hashlib.sha256()
    for each in (module, *(importlib.import_module(f"reasoning_gym.{name}") for name in _ALSO.get(task, ()))):
        digest.update(Path(str(each.__file__)).read_bytes())
    return digest.hexdigest()[:16]


FASTER: dict[str, Callable[[Any], None]] = {
    "countdown": algebra.countdown,
    "futoshiki": grids.futoshiki,
    "intermediate_integration": algebra.intermediate_integration,
    "knight_swap": searches.knight_swap,
    "polynomial_equations": algebra.polynomial_equations,
    "puzzle24": algebra.puzzle24,
    "quantum_lock": searches.quantum_lock,
    "sokoban": searches.sokoban,
    "sudoku": grids.sudoku,
    "zebra_puzzles": searches.zebra_puzzles,
}
_ALSO = {
    "sokoban": [
        f"games.contrib.sokoban.src.{name}" for name in ("astar", "box", "game", "generator", "player", "utils")
    ],
    "zebra_puzzles": ["logic.contrib.logic_puzzle." + name for name in ["clues", "generate", "puzzle", "sat_utils"]],
}
"""Other modules of the library on which a task's items depend."""
REPLACED = {
    "countdown": "349cd7042a92a8b5",
    "futoshiki": "1e17d801b9695f35",
    "intermediate_integration": "74838f0224b504e3",
    "knight_swap": "a9de444d885125e0",
    "polynomial_equations": "d41b84e2daf73105",
    "puzzle24": "542f8a43867de1cc",
    "quantum_lock": "2f96d165fe0a33fb",
    "sokoban": "878ecf34088d46c4",
    "sudoku": "dcb9e0c968d33b0f",
    "zebra_puzzles": "63245dd49dd4cc19",
}
"""For each task, the hash of the library's code (see `source_hash`)."""
