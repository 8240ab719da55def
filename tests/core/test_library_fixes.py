"""Fixes to the library for generation, tested in separate processes because fixes are permanent."""

import pytest
from run_code import run_code

from rg_env.core.tasks.library_fixes import left_out


def test_number_sequences_stay_the_same_without_the_slow_ones() -> None:
    """Quick draws are unchanged, and one that took more than 5 s (library seed 1705) needs under 1 s of CPU time."""
    code = """
import time
from rg_env.core.tasks import library, library_fixes
library.import_only("number_sequence", "reasoning_gym.cognition.number_sequences")
dataset = library.create("number_sequence", {}, seed=1000, size=20000)
before = [dataset[i] for i in range(700)]
library_fixes.fix_library("number_sequence")
assert [dataset[i] for i in range(700)] == before
start = time.process_time()
dataset[705]
assert time.process_time() - start < 1
"""
    run_code(code)


def test_a_grid_with_more_blocks_than_colors_has_fewer_blocks() -> None:
    """Draws 16 and 98 would never end, and all others are unchanged. Grids of any length are drawn."""
    code = """
import resource
from random import Random
from rg_env.core.data.items import ItemStream
from rg_env.core.tasks import library, library_fixes
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
library.import_only("arc_1d", "reasoning_gym.arc.arc_1d")
stream = ItemStream("arc_1d", {"min_size": 10, "max_size": 100}, 0)
before = {i: stream.draw(i) for i in range(120) if i not in (16, 98)}
library_fixes.fix_library("arc_1d")
assert {i: stream.draw(i) for i in before} == before
assert all("recolor_blocks_from_palette" in repr(stream.draw(i)) for i in (16, 98))
from reasoning_gym.arc.arc_1d_tasks import ARC_1D_TASKS
recolor, _ = ARC_1D_TASKS["recolor_blocks_from_palette"]
for example in filter(None, [recolor(Random(seed), 1000) for seed in range(50)]):
    question, answer = example["input"], example["output"]
    assert len(question) == len(answer) == 1000
    assert set(answer) <= set(question) and question != answer
"""
    run_code(code)


def test_divisors_are_found_by_factoring() -> None:
    """The divisors and their order are unchanged, and those of large numbers are found in seconds."""
    code = """
import random, time
from rg_env.core.tasks import library, library_fixes
library.import_only("basic_arithmetic", "reasoning_gym.arithmetic.basic_arithmetic")
import reasoning_gym.arithmetic.basic_arithmetic as module
slow = module.find_common_divisors
library_fixes.fix_library("basic_arithmetic")
library_fixes._SMALL = 1
rng = random.Random(0)
for a, b in [(36, 0), (0, 49), (-12, 18), *((rng.randint(-10**8, 10**8), rng.choice([0, 720])) for _ in range(200))]:
    assert module.find_common_divisors(a, b) == slow(a, b), (a, b)
start = time.process_time()
assert len(module.find_common_divisors(7811 * 8636 * 9459 * 2892 * 9973, 0)) > 100
assert time.process_time() - start < 10
"""
    run_code(code)


def test_questions_of_game_of_life_halting_show_the_whole_board() -> None:
    """At every level, the question contains one line per row and one number per cell, and nothing is elided."""
    code = """
import re
from rg_env.core.tasks import library, library_fixes
from rg_env.core.tasks.task_table import working_levels
library.import_only("game_of_life_halting", "reasoning_gym.algorithmic.game_of_life_halting")
library_fixes.fix_library("game_of_life_halting")
levels = working_levels("game_of_life_halting")
assert len(levels) == 4
for options in levels.values():
    entry = library.create("game_of_life_halting", options, seed=1, size=2)[1]
    rows = re.findall(r"\\[([01 ]+)\\]", entry["question"])
    sizes = entry["metadata"]["grid_size_x"], entry["metadata"]["grid_size_y"]
    assert [len(rows), *{len(row.split()) for row in rows}] == list(sizes), options
    assert "..." not in entry["question"]
"""
    run_code(code)


def test_published_questions_with_a_part_of_the_board_are_left_out() -> None:
    question = "Initial board:\n[[0 0 0 ... 0 0 0]\n [0 0 0 ... 0 0 0]]"
    assert left_out("game_of_life_halting", {"question": question, "answer": "True", "metadata": {}})
    assert not left_out("game_of_life_halting", {"question": "[[0 0]\n [0 1]]", "answer": "True", "metadata": {}})


def test_powers_of_negative_numbers_have_brackets() -> None:
    """Only the question of a negative base changes."""
    code = """
from rg_env.core.tasks import library, library_fixes
library.import_only("power_function", "reasoning_gym.arithmetic.power_function")
dataset = library.create("power_function", {}, seed=1, size=40)
before = [dataset[i] for i in range(40)]
library_fixes.fix_library("power_function")
for old, new in zip(before, (dataset[i] for i in range(40))):
    base, exponent = old["metadata"]["base"], old["metadata"]["exponent"]
    assert f"Compute {base}^{exponent}." in old["question"]
    power = f"({base})^{exponent}" if base < 0 else f"{base}^{exponent}"
    assert new == {**old, "question": old["question"].replace(f"{base}^{exponent}", power)}
assert 10 < sum("(-" in dataset[i]["question"] for i in range(40)) < 30
"""
    run_code(code)


@pytest.mark.parametrize(
    ("task", "module", "rule", "after"),
    [
        ("pool_matrix", "algorithmic.pool_matrix",
         "If the kernel does not fit at the right or bottom edge, pool the elements that are there.\n", "regions.\n"),
        ("propositional_logic", "logic.propositional_logic",
         "- The conclusion must neither follow from a single premise nor merely join statements that do.\n", "\n"),
    ],
)  # fmt: skip
def test_questions_say_what_their_answers_require(task: str, module: str, rule: str, after: str) -> None:
    """The question has one more line; the answer and the metadata are unchanged."""
    code = """
import sys
from rg_env.core.tasks import library, library_fixes
task, module, rule, after = sys.argv[1:]
library.import_only(task, f"reasoning_gym.{module}")
dataset = library.create(task, {}, seed=1, size=1)
before = dataset[0]
library_fixes.fix_library(task)
question = dataset[0]["question"]
assert question.count(after + rule) == 1
assert dataset[0] == {**before, "question": question}
assert question.replace(rule, "") == before["question"]
"""
    run_code(code, task, module, rule, after)


def test_time_intervals_do_not_depend_on_the_date() -> None:
    """No entry contains today's date."""
    code = """
import datetime, json
from rg_env.core.tasks import library, library_fixes
library.import_only("time_intervals", "reasoning_gym.arithmetic.time_intervals")
dataset = library.create("time_intervals", {"task_types": ["time", "time_seconds", "time_ms"]}, seed=1, size=100)
today = datetime.date.today().isoformat()
assert any(today in str(entry["metadata"]) for entry in dataset)
library_fixes.fix_library("time_intervals")
library_fixes.fix_library("time_intervals")
assert not any(today in str(entry) for entry in dataset)
assert all("2024-01-0" in entry["metadata"]["start_time"] for entry in dataset)
"""
    run_code(code)


@pytest.mark.slow
def test_codeio_leaves_out_snippets_that_are_not_reproducible() -> None:
    """Snippets that read clocks, files or entropy are removed, and those that fail give no item."""
    code = """
from rg_env.core.tasks import library, library_fixes
from rg_env.core.data.items import ItemStream
library.import_only("codeio", "reasoning_gym.code.codeio")
library_fixes.fix_library("codeio")
stream = ItemStream("codeio", {}, 0)
drawn = [stream.draw(index) for index in range(40)]
snippets = type(stream._dataset)._jsonl_data
assert 2800 < len(snippets) < 2900
text = "".join(snippet["code_sample"] for snippet in snippets)
assert not any(word in text for word in ("datetime.now", "import secrets", "urandom", "uuid4", "os.walk"))
assert library_fixes.left_out("codeio", {"metadata": {"input_data": {}, "output_data": {}}})
assert not library_fixes.left_out("maze", {"metadata": {}})
"""
    run_code(code)


def test_questions_without_a_new_conclusion_are_left_out() -> None:
    """Premises are left out if they contradict each other, or if nothing follows from them that does not follow from
    one alone."""
    sound = {"variables": ["P", "Q"], "premises": ["P", "(P → Q)"]}
    assert not left_out("propositional_logic", {"metadata": sound})
    assert left_out("propositional_logic", {"metadata": {**sound, "premises": [*sound["premises"], "¬Q"]}})
    assert left_out("propositional_logic", {"metadata": {**sound, "premises": ["P", "Q"]}})


def test_questions_with_two_answers_are_left_out() -> None:
    """Questions that can be read in two ways are left out for a stated reason, such as existential import in a
    syllogism, or a press without effect in a lock."""
    bees = {"premise1": "All bees are ants", "premise2": "All ants are cats", "conclusion": "Some cats are bees"}
    assert "existential import" in left_out("syllogism", {"metadata": bees})
    assert not left_out("syllogism", {"metadata": {**bees, "conclusion": "All bees are cats"}})
    buttons = [
        {"name": "A", "type": "add", "value": 4, "active_state": "green"},
        {"name": "B", "type": "multiply", "value": 2, "active_state": "any"},
    ]
    lock = {"initial_value": 0, "initial_state": "red", "target_value": 4, "buttons": buttons}
    assert not left_out("quantum_lock", {"metadata": {**lock, "solution_path": ["B", "A"]}})
    lock |= {"target_value": 8, "solution_path": ["B", "A", "B", "B", "B"]}
    assert "press" in left_out("quantum_lock", {"metadata": lock})
    board = [list(row) for row in ("XO..X", ".....", "X....", ".....", ".....")]
    assert "captures" in left_out("tsumego", {"metadata": {"board": board}})
    board[1][1] = "X"
    assert not left_out("tsumego", {"metadata": {"board": board}})
    family = "Jennifer has 6 sisters and she also has 4 brothers. How many sisters does {}'s brother have?"
    assert "not mentioned" in left_out("aiw", {"question": family.format("William"), "metadata": {}})
    assert not left_out("aiw", {"question": family.format("Jennifer"), "metadata": {}})
