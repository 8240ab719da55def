"""Fixes applied to the library in generation processes so that a draw yields the same item on every machine.

- codeio executes code snippets. Snippets that read the clock, files, entropy, memory addresses or the process's state
  are excluded. Items whose snippet failed are also excluded (the library stores `{}` as their input and output).
- number_sequence squares numbers until they have millions of digits, and then rejects the sequence. Five draws in a
  thousand would take seconds or longer, and some of them hours. The fix rejects a sequence as soon as a number is
  huge, which yields the same items.
- arc_1d draws distinct colors for any number of blocks, which never ends if a long grid has more than nine. The fix
  puts blocks only into the first 40 cells of such a grid.
- basic_arithmetic tries every possible divisor of numbers with up to 24 digits, which can take days. The fix factors
  the numbers' greatest common divisor, which yields the same items.
- game_of_life_halting prints only the edges of boards with more than 1,000 cells. The fix prints all cells.
- pool_matrix does not say that regions at the edges are pooled even if the kernel does not fit. The fix adds a line to
  the question.
- power_function asks for `-3^2`, which is -9 by the usual precedence, but expects 9. The fix writes `(-3)^2`.
- propositional_logic does not say that restated premises are not a conclusion. The fix adds a line to the question.
- time_intervals completes partial dates with today's date. The fix uses a fixed date.
- Questions without a right answer, with several right answers, or with only a trivial answer are excluded (see
  `LEFT_OUT`):
  - propositional_logic: in 20% of the questions, the premises contradict each other, so any conclusion follows. In more
    than half, the premises imply nothing new in at most two variables.
  - syllogism: in one question in six, the answer depends on existential import.
  - quantum_lock: 4% of the questions have a shorter solution if every press of a button toggles the light.
  - tsumego: in 24% of the questions, no move captures a white stone.
  - aiw: one question in six asks about a person whom it has not mentioned before.

The user's process is not affected: only `core.data.items.serve` calls `fix_library`.
"""

import datetime
import hashlib
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from rg_env.core.grading.graders.algorithmic import POOLED_EDGES
from rg_env.core.grading.graders.arithmetic import NEGATIVE_BASE
from rg_env.core.grading.graders.games import captures
from rg_env.core.grading.graders.gold import syllogism_follows
from rg_env.core.grading.graders.logic import Premises
from rg_env.core.grading.graders.move_games import is_shortest_lock
from rg_env.core.tasks import library
from rg_env.core.tasks.faster import speed_up
from rg_env.core.tasks.task_table import shipped_table

_UNREPEATABLE = re.compile(
    # clocks
    r"\.now\(|today\(|utcnow|\btime\.|from time |localtime|strftime\(\)|sleep\("
    # entropy
    r"|secrets|uuid|urandom|SystemRandom|random\.seed\(\)|random\.Random\(\)|\bRandom\(\)|default_rng\(\)|RandomState\(\)"
    # files, other processes, the machine
    r"|\bopen\(|\.open\(|\bos\.(?!path\.(?:join|basename|splitext))|subprocess|socket|requests|tempfile|shutil|pathlib"
    r"|\bglob\b|getpass|platform\.|psutil|sys\.stdin|\binput\(|\bexit\(|sys\.exit|signal|thread|multiprocess"
    # memory addresses, and state that outlives the snippet
    r"|\bid\(|gc\.|getcontext|setrecursionlimit|set_printoptions|seterr|setlocale"
)
_UNREPEATABLE_SNIPPETS = {  # found by running all snippets not matched above in two processes, in opposite orders
    "1ce2c56560b7",
    "2e21bffd7df3",
    "dc1220c90670",
    "ed02255ea49c",
    "2a8106c4fd7c",  # this snippet takes seconds for some inputs
}
_FIXED = "_fixed_by_rg_env"
_HUGE = 10**100
_SMALL = 10**9
_A_DAY = datetime.date(2024, 1, 1)


def fix_library(task: str) -> None:
    """Apply the fixes for `task`, which must already be imported, and its faster version (`core.tasks.faster`). A
    second call has no effect."""
    module = sys.modules[library.dataset_class(task)[0].__module__]
    if task in shipped_table() and not hasattr(module, _FIXED):
        if task in _FIXES:
            _FIXES[task](module)
        speed_up(task, module)
        setattr(module, _FIXED, True)


def _asks_about_a_stranger(entry: Mapping[str, Any]) -> bool:
    asked = re.search(r"How many sisters does (\w+)'s brother have", entry["question"])
    return asked is not None and not entry["question"].startswith(f"{asked[1]} ")


LEFT_OUT: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "aiw": ("the question asks about a person whom it has not mentioned before", _asks_about_a_stranger),
    "codeio": (
        "the code snippet failed",
        lambda entry: not (entry["metadata"]["input_data"] or entry["metadata"]["output_data"]),
    ),
    "game_of_life_halting": ("the question shows only part of the board", lambda entry: "..." in entry["question"]),
    "propositional_logic": (
        "the premises contradict each other, or imply no new statement in at most two variables",
        lambda entry: Premises(entry["metadata"]).conclusion() is None,
    ),
    "quantum_lock": (
        "the shortest sequence would be shorter if every press of a button toggled the light",
        lambda entry: not is_shortest_lock(entry),
    ),
    "syllogism": (
        "the answer depends on existential import: whether every term has a member",
        lambda entry: syllogism_follows(entry) is None,
    ),
    "tsumego": ("no move captures a white stone", lambda entry: not captures(entry["metadata"]["board"])),
}
"""For each task, the reason why some of the library's entries are excluded, and the function that finds them."""


def left_out(task: str, entry: Mapping[str, Any]) -> str:
    """Return the reason why `entry` is excluded (see `LEFT_OUT`), or "" if it is kept."""
    reason, fails = LEFT_OUT.get(task, ("", bool))
    return reason if fails(entry) else ""


def _fix_arc_1d(module: Any) -> None:
    name, safe = "recolor_blocks_from_palette", 40  # ten blocks of two cells and their colors do not fit into 40 cells
    tasks = importlib.import_module("reasoning_gym.arc.arc_1d_tasks").ARC_1D_TASKS
    recolor, options = tasks[name]

    def with_enough_colors(rng: Random, size: int) -> Any:
        state, starts, start = rng.getstate(), list[int](), 0
        length = rng.randint(2, 4)
        while start + length <= size:  # the library's first draws: where blocks start
            is_block = rng.random() < 0.4
            starts += [start] * is_block
            start += length + 1 if is_block else 1
        while starts and starts[-1] + length + len(starts) + 1 >= size:
            starts.pop()
        rng.setstate(state)
        if len(starts) <= 9:
            return recolor(rng, size)
        example = recolor(rng, safe)
        return example and {part: cells + [0] * (size - safe) for part, cells in example.items()}

    tasks[name] = (with_enough_colors, options)


def _fix_basic_arithmetic(module: Any) -> None:
    slow = module.find_common_divisors

    def find_common_divisors(a: int, b: int) -> list[int]:
        common = math.gcd(a, b)
        if common < _SMALL:
            return slow(a, b)
        divisors = []
        for small in importlib.import_module("sympy").divisors(common):  # ascending
            if small * small > common:
                break
            divisors.append(small)
            if small * small != common:
                divisors.append(common // small)
        return divisors

    module.find_common_divisors = find_common_divisors


def _fix_codeio(module: Any) -> None:
    # Snippets use numpy's generator, and `ItemStream` seeds this generator only if numpy is imported.
    importlib.import_module("numpy")
    cls = module.CodeIODataset
    construct, run = cls.__init__, cls._generate_io_pair

    def init(self: Any, config: Any) -> None:
        construct(self, config)
        cls._jsonl_data = [snippet for snippet in cls._jsonl_data if _repeatable(snippet)]

    def generate_io_pair(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        pair = run(self, *args, **kwargs)
        try:
            json.dumps(pair)
        except (TypeError, ValueError):  # the library would fail on this result
            return {}, {}
        return pair

    cls.__init__, cls._generate_io_pair = init, generate_io_pair


def _repeatable(snippet: Mapping[str, str]) -> bool:
    code = snippet["code_sample"]
    if _UNREPEATABLE.search(code) or _UNREPEATABLE.search(snippet["input_generator"]):
        return False
    return hashlib.sha256(code.encode()).hexdigest()[:12] not in _UNREPEATABLE_SNIPPETS


def _fix_number_sequence(module: Any) -> None:
    rule = module.PatternRule
    apply = rule.apply

    def guarded(self: Any, sequence: list[int], position: int) -> int:
        # The library rejects every sequence that contains a number beyond ±1000, but only after computing all terms.
        # The library also treats an OverflowError as a rejection.
        if abs(sequence[position]) > _HUGE:
            raise OverflowError
        return apply(self, sequence, position)

    rule.apply = guarded


def _fix_game_of_life_halting(module: Any) -> None:
    numpy = importlib.import_module("numpy")
    cls = module.GameOfLifeHaltingDataset
    draw = cls.__getitem__

    def complete(self: Any, index: int) -> Any:
        with numpy.printoptions(threshold=sys.maxsize, linewidth=sys.maxsize):
            return draw(self, index)

    cls.__getitem__ = complete


def _fix_pool_matrix(module: Any) -> None:
    module.QUESTION_TEMPLATE = module.QUESTION_TEMPLATE.replace("\n\n", f"\n{POOLED_EDGES}\n", 1)


def _fix_power_function(module: Any) -> None:
    cls = module.PowerFunctionDataset
    draw = cls.__getitem__

    def bracketed(self: Any, index: int) -> Any:
        entry = draw(self, index)
        return {**entry, "question": NEGATIVE_BASE.sub(r"Compute (\1)^", entry["question"])}

    cls.__getitem__ = bracketed


def _fix_propositional_logic(module: Any) -> None:
    rule = "- The conclusion must neither follow from a single premise nor merely join statements that do.\n"
    module.QUESTION_FORMAT = module.QUESTION_FORMAT.replace("- Use the following", rule + "- Use the following")


def _fix_time_intervals(module: Any) -> None:
    class FixedDate(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:  # type: ignore[override]
            return _A_DAY

    midnight = datetime.datetime.combine(_A_DAY, datetime.time())
    module.date, module.parser = FixedDate, SimpleNamespace(parse=partial(module.parser.parse, default=midnight))


_FIXES = {
    "arc_1d": _fix_arc_1d,
    "basic_arithmetic": _fix_basic_arithmetic,
    "codeio": _fix_codeio,
    "game_of_life_halting": _fix_game_of_life_halting,
    "number_sequence": _fix_number_sequence,
    "pool_matrix": _fix_pool_matrix,
    "power_function": _fix_power_function,
    "propositional_logic": _fix_propositional_logic,
    "time_intervals": _fix_time_intervals,
}
