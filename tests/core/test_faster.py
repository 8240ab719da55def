"""The faster generators draw the library's own items. `benchmarks/rows.py` compares both in separate processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_code import run_code

from rg_env.core.tasks.faster import FASTER

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "rows.py"
OTHER_OPTIONS = [
    ("countdown", 10, '{"min_numbers": 3, "max_numbers": 3, "max_value": 300, "max_target": 5000}'),
    ("futoshiki", 3, '{"min_board_size": 4, "max_board_size": 5, "max_difficulty": 0}'),
    ("futoshiki", 1, '{"min_board_size": 9, "max_board_size": 9, "min_difficulty": 3}'),
    ("intermediate_integration", 10, '{"symbols": "X", "max_linear_degree": 6, "outer_constant_max": 9}'),
    ("knight_swap", 2, '{"min_nodes": 10, "max_nodes": 12, "min_pieces": 3, "max_pieces": 3, "max_steps": 40}'),
    ("knight_swap", 4, '{"impossible_ratio": 1.0}'),
    ("polynomial_equations", 8, '{"max_degree": 4, "max_terms": 5}'),
    ("puzzle24", 3, '{"operators": ["*", "/"], "max_value": 6}'),
    ("quantum_lock", 30, '{"difficulty": 25}'),
    ("sokoban", 5, '{"max_w": 7, "max_h": 7, "min_boxes": 1, "max_boxes": 3}'),
    ("sudoku", 3, '{"min_empty": 55, "max_empty": 64}'),
    ("zebra_puzzles", 5, '{"num_people": 3, "num_characteristics": 6}'),
]


def compare(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_librarys_code_is_the_code_that_was_replaced() -> None:
    """Another release of the library, here with another hash, draws its own items."""
    code = """
import sys
from rg_env.core.tasks import faster, library
from rg_env.core.tasks.task_table import load_table
for task in faster.FASTER:
    library.import_only(task, load_table()[task]["module"])
    module = sys.modules[load_table()[task]["module"]]
    assert faster.source_hash(task, module) == faster.REPLACED[task], task
sudoku = sys.modules["reasoning_gym.games.sudoku"]
solve, faster.REPLACED["sudoku"] = sudoku.SudokuDataset._solve, "another"
faster.speed_up("sudoku", sudoku)
assert sudoku.SudokuDataset._solve is solve
"""
    run_code(code)


@pytest.mark.slow
def test_items_are_the_same_for_the_default_options() -> None:
    assert compare(*FASTER, "--draws", "4").count("\n") == 1 + len(FASTER)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "draws", "config"), OTHER_OPTIONS)
def test_items_are_the_same_for_other_options(task: str, draws: int, config: str) -> None:
    compare(task, "--draws", str(draws), "--config", config)
