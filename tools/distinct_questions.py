"""Measure how many distinct questions tasks have, and write `rg_env/core/distinct_questions.json`.

python tools/distinct_questions.py              # adds what is missing: default options, levels and shipped configs
python tools/distinct_questions.py jugs maze    # measures these tasks again

Each measurement draws until enough questions are known, or none is new, for at most `CPU_S` seconds. Results are
written after each task, so an interrupted run continues where it stopped.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from task_table import render

from rg_env.core.data.dataset import DISTINCT_FILE, Distinct, options_key
from rg_env.core.data.items import DrawFailed, ItemStream
from rg_env.core.data.selection import PATIENCE_DRAWS
from rg_env.core.data.splits import question_hash
from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import fix_library
from rg_env.core.tasks.mixture import Mixture, TaskSpec
from rg_env.core.tasks.task_table import shipped_table, working_levels
from rg_env.evaluation.load import load_eval_config
from rg_env.training.config.load import load_train_config

CONFIGS = Path(__file__).parents[1] / "configs"
FIRST_DRAWS = 200
ENOUGH = 20_000
"""Number of questions that is more than any shipped config requests of a task. More are not counted."""
CPU_S = 0.5
DRAW_CPU_S = 5.0
"""CPU seconds of a draw after which a measurement ends. Some levels have draws that take minutes."""
SMALL, MORE_CPU = 2_000, 20
"""Number of questions below which `CPU_S` is multiplied by this factor, to find the complete number."""


class TooLong(BaseException):
    """Raised by a timer during a draw. Unlike an `Exception`, it does not count as a failed draw."""


def measure(spec: TaskSpec, cpu_s: float = CPU_S) -> Distinct:
    """Draw questions of a task, which must already be imported."""
    stream = ItemStream(spec.name, spec.config, 0)
    counts: Counter[str] = Counter()
    found, new_at = {"train": 0, "eval": 0}, {"train": 0, "eval": 0}
    draws, start = 0, time.process_time()
    signal.signal(signal.SIGPROF, too_long)
    while True:
        if draws == 1:  # some tasks take seconds to open
            start = time.process_time()
        item, stopped = None, False
        signal.setitimer(signal.ITIMER_PROF, DRAW_CPU_S)
        try:
            item = stream.draw(draws)
        except DrawFailed:
            pass
        except TooLong:
            stopped = True
        draws += 1
        if item is not None:
            key, split = question_hash(item.question), item.split("problem")
            if key not in counts:
                found[split] += 1
                new_at[split] = draws
            counts[key] += 1
        complete, spent_s = draws - min(new_at.values()) > PATIENCE_DRAWS, time.process_time() - start
        if draws % 100 == 0 or complete or stopped or spent_s > cpu_s * MORE_CPU:
            once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
            result = Distinct(draws, found["train"], found["eval"], once, twice, complete)
            total = len(counts) + result.unseen
            enough = (draws >= FIRST_DRAWS and total >= ENOUGH) or (spent_s > cpu_s and total >= SMALL)
            if complete or enough or stopped or spent_s > cpu_s * MORE_CPU:
                signal.setitimer(signal.ITIMER_PROF, 0)
                return result


def too_long(number: int, frame: object) -> None:
    raise TooLong


def wanted() -> Iterator[TaskSpec]:
    """Yield each task with the options to measure, without repetitions."""
    gyms: list[object] = list(shipped_table())
    for file in sorted((CONFIGS / "train").rglob("*.yaml")):
        if not file.stem.startswith("base"):
            config = load_train_config(file)
            gyms += [*(config.mixture.tasks if config.tasks else ())]
            gyms += [task for mixture in config.evaluation_mixtures.values() for task in mixture.tasks]
    for file in sorted((CONFIGS / "eval").glob("*.yaml")):
        evaluation = load_eval_config(file, ["models.base=any@http://127.0.0.1:1/v1"])
        gyms += [task for name in evaluation.tasks for task in evaluation.mixture(name).tasks]
    for task in shipped_table():
        gyms += [{"name": task, "config": options} for options in working_levels(task).values()]
    seen = set()
    for gym in gyms:
        (spec,) = Mixture.parse(gym).tasks
        if (key := (spec.name, options_key(spec))) not in seen:
            seen.add(key)
            yield spec


def main(again: list[str]) -> None:
    """Measure what is missing, and the tasks in `again`."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("run with PYTHONHASHSEED=0, as rows are drawn")
    table = json.loads(DISTINCT_FILE.read_text(encoding="utf-8")) if DISTINCT_FILE.exists() else {}
    table = {task: found for task, found in table.items() if task not in again}
    specs = [spec for spec in wanted() if options_key(spec) not in table.get(spec.name, {})]
    library.factory()
    for spec in specs:
        fix_library(spec.name)
        try:
            result = measure(spec)
        except Exception as error:
            print(spec.name, spec.config_json, error)
            continue
        table.setdefault(spec.name, {})[options_key(spec)] = [*result[:-1], int(result.complete)]
        print(spec.name, options_key(spec), result, flush=True)
        in_order = {task: dict(sorted(found.items())) for task, found in table.items()}
        DISTINCT_FILE.write_text(render(in_order), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
