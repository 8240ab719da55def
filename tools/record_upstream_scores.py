"""Run Reasoning Gym's own tests, and record the answers that they grade in `tests/data/upstream_scores.jsonl.gz`.

    git clone --branch v0.1.25 https://github.com/open-thought/reasoning-gym /tmp/reasoning-gym
    PYTHONHASHSEED=0 .venv/bin/python tools/record_upstream_scores.py /tmp/reasoning-gym

The tests come from the clone and the graders from the installed library, so check out the tag of the installed version.
The tests run unchanged, and every outermost call of a task's `score_answer` is recorded with its answer, entry and
score. Only this data is recorded, not the tests' code. Similar calls, such as calls with gold answers to items
generated in a loop, are sampled. Handwritten entries, which have only the fields that the library's grader reads, are
completed. The script takes about six minutes.
"""

import argparse
import dataclasses
import functools
import gzip
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sympy

from rg_env.core.tasks import library

DATA = Path(__file__).parents[1] / "tests/data" / "upstream_scores.jsonl.gz"
GOLD_PER_LINE, OTHERS_PER_LINE = 2, 12
"""Maximum numbers of calls to keep for each line of a test and each task: calls with gold answers, and calls with each
other outcome (full, partial or no credit). The kept calls are spread evenly over all calls from the line."""
LONGEST = 10_000
"""Maximum length of an entry in characters; longer entries (a large haystack, a long program) are omitted."""


class Call(NamedTuple):
    test: str
    line: int
    """Line of the test file that made the call, directly or through the library."""
    task: str
    config: str
    entry: str
    answer: str | None
    score: float


class Recorder:
    """A pytest plugin that records each graded answer with the test that graded it."""

    def __init__(self, tests: Path) -> None:
        self._tests = f"{tests}{os.sep}"
        self.calls: list[Call] = []
        self._test = ""
        self._depth = 0
        datasets = library.factory().DATASETS
        self._tasks = {dataset: task for task, (dataset, _) in datasets.items() if task != library.NOT_A_TASK}
        for owner in {base for dataset in self._tasks for base in dataset.__mro__ if "score_answer" in vars(base)}:
            owner.score_answer = self._recording(vars(owner)["score_answer"])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid.partition("tests/")[2]

    def _line(self) -> int:
        frame = sys._getframe()
        while frame.f_back and not frame.f_code.co_filename.startswith(self._tests):
            frame = frame.f_back
        return frame.f_lineno

    def _recording(self, grader: Any) -> Any:
        @functools.wraps(grader)
        def score_answer(dataset: Any, answer: Any, entry: Any) -> Any:
            task = self._tasks.get(type(dataset))
            outer, self._depth = self._depth, self._depth + (task is not None)
            # Converted to JSON before the call, because the grader or the test may change the entry.
            before = "" if outer or task is None else _json(entry)
            try:
                score = grader(dataset, answer, entry)
            finally:
                self._depth = outer
            if task and before and (answer is None or isinstance(answer, str)):
                config = _json(_options(dataset.config))
                self.calls.append(Call(self._test, self._line(), task, config, before, answer, float(score)))
            return score

        return score_answer


def _json(value: Any) -> str:
    return json.dumps(value, default=library.to_plain, ensure_ascii=False, sort_keys=True)


def _options(config: Any) -> dict[str, Any]:
    """Return the options of a dataset that differ from the defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if field.name not in ("seed", "size")
        and (value := getattr(config, field.name)) != getattr(type(config)(), field.name)
    }


def record(tests: Path) -> list[Call]:
    """Run the tests in this folder and return their calls. The tests use the installed library, which is imported
    first."""
    recorder = Recorder(tests.resolve())
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--rootdir", str(tests.parent)]
    pytest.main([*options, str(tests.resolve())], plugins=[recorder])
    return recorder.calls


def complete(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry, completed with the fields that rg_env's graders need but the test omitted, as the library would
    create them."""
    found = {"question": "", "answer": "", **entry}
    metadata = found["metadata"] = {**entry.get("metadata", {})}
    gold = found["answer"]
    if task in ("binary_matrix", "manipulate_matrix") and not metadata:
        solution = [[int(cell) for cell in row.split()] for row in gold.splitlines()]
        matrix = [[min(cell, 1) for cell in row] for row in solution] if task == "binary_matrix" else solution
        metadata |= {"matrix": matrix, "solution": solution, "operations": []}
    elif task == "spiral_matrix" and not metadata:
        spiral = [int(number) for number in gold.split()]
        size = math.isqrt(len(spiral))
        rows = [sorted(spiral)[row * size : (row + 1) * size] for row in range(size)]  # the test has 1 to 9 in order
        metadata |= {"matrix": rows, "solution": spiral}
    elif task == "decimal_chain_sum" and not metadata:
        metadata |= {"expression": gold}
    elif task == "shortest_path":
        metadata.setdefault("solution", gold.split())
    elif task == "complex_arithmetic" and not gold:
        found["answer"] = "{} + {}i".format(*metadata["result"])
        metadata |= {"num1": metadata["result"], "num2": [0.0, 0.0], "operation": "+"}
    elif task == "letter_jumble":
        metadata.setdefault("scrambled_words", [word[::-1] for word in gold.split()])
    elif task == "number_format" and not gold:
        found["answer"] = str(metadata["solution"])
        metadata.setdefault("candidates", [found["answer"]])
    elif task == "palindrome_partitioning" and not gold:
        found["answer"] = json.dumps(metadata["solution"])
        metadata.setdefault("string", "".join(metadata["solution"][0]))
    elif task == "group_anagrams" and not gold:
        found["answer"] = json.dumps(metadata["solution"])
        metadata.setdefault("words", [word for group in metadata["solution"] for word in group])
    elif task == "word_sorting" and not gold:
        words = metadata["sorted_words"]
        found["answer"] = ", ".join(words)
        metadata |= {"original_words": words, "transformed_words": words, "direction": "ascending"}
    elif task == "n_queens" and not gold:
        found["answer"] = metadata["valid_answers"][0]
        metadata["solutions"] = [[row.split() for row in board.splitlines()] for board in metadata["valid_answers"]]
        metadata["puzzle"] = [["_"] * len(row) for row in metadata["solutions"][0]]
    elif task == "polynomial_equations":
        roots = [root for root in gold.split(",") if root]
        x = sympy.Symbol("x")
        polynomial = sympy.Poly(sympy.prod(x - sympy.Rational(root) for root in roots) if roots else x**2 + 1, x)
        terms = [f"{float(factor)}*x**{degree}" for (degree,), factor in polynomial.terms()]
        new = {"polynomial_expr": " + ".join(terms).replace("+ -", "- "), "variable": "x"}
        found["metadata"] = new | {"degree": polynomial.degree(), "real_solutions": [*map(float, roots)]} | metadata
    elif task in ("simple_integration", "intermediate_integration") and not gold:
        found["answer"] = f"{sympy.integrate(metadata['integrand'], sympy.Symbol(metadata['variable']))} + C"
    return found


def sample(calls: list[Call]) -> list[Call]:
    """Return each distinct call once, but only a few of the similar calls that one line makes in a loop."""
    asked: dict[tuple[str, str, str, str | None], Call] = {}
    for call in calls:
        if len(call.entry) <= LONGEST:
            asked.setdefault((call.task, call.config, call.entry, call.answer), call)
    alike: dict[tuple[str, int, str, str], list[Call]] = {}
    for call in asked.values():
        alike.setdefault((call.test, call.line, call.task, outcome(call)), []).append(call)
    kept: list[Call] = []
    for (_, _, _, kind), some in alike.items():
        most = GOLD_PER_LINE if kind == "gold" else OTHERS_PER_LINE
        kept += [some[i * len(some) // most] for i in range(most)] if len(some) > most else some
    return kept


def outcome(call: Call) -> str:
    """Return "gold" for the gold answer, and otherwise "full", "part" or "nothing", depending on the credit."""
    if call.answer == json.loads(call.entry).get("answer"):
        return "gold"
    return "full" if call.score >= 1 else "part" if call.score > 0 else "nothing"


def write(calls: list[Call]) -> None:
    """Write one line per entry, with all of its answers."""
    rows: dict[tuple[str, str, str], list[tuple[str, str | None, float]]] = {}
    for call in calls:
        asked = rows.setdefault((call.task, call.config, call.entry), [])
        asked.append((call.test, call.answer, round(call.score, 6)))
    with DATA.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        for (task, config, entry), asked in sorted(rows.items()):
            whole = complete(task, json.loads(entry))
            line = {"task": task, "config": json.loads(config), "entry": whole, "calls": asked}
            packed.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of Reasoning Gym at the tag of the installed version")
    options = parser.parse_args()
    calls = record(options.clone / "tests")
    kept = sample(calls)
    write(kept)
    tests = {call.test for call in kept}
    print(f"{len(calls)} calls, {len(kept)} kept from {len(tests)} tests: {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
