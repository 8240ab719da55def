# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["rg-env", "verifiers==0.3.1", "reasoning-gym==0.1.25"]
#
# [tool.uv.sources]
# rg-env = { path = "..", editable = true }
# ///
"""Measure the seconds per score over all tasks in rg_env and in Verifiers' `ReasoningGymEnv`, on the same completions.

    uv run --script benchmarks/scoring.py              # every task; about two minutes (longer the first time)
    .venv/bin/python benchmarks/scoring.py --workers   # overhead of a worker pool, event loop lateness
    .venv/bin/python benchmarks/scoring.py --times     # maximum time per answer, task by task

The header above is inline script metadata (PEP 723). uv creates a separate environment for this file, because neither
Verifiers 0.4.0, which is installed in `.venv`, nor 0.1.6 includes `ReasoningGymEnv`. Both sides run in one process.

Each entry has three completions: its gold answer, another entry's gold answer, and reasoning with a short wrong answer.
Upstream must not receive any other text, because the graders of nine of its tasks run answers as code. Upstream's
reward function regenerates the entry for each score. The two sides take turns in windows of equal length, and each
side's best window is used. With `--check`, the exit code is 1 if a target is missed.

`--times` measures CPU time per score for the answers in `long_answers.py`, at the maximum length that is graded, with
each task's default options and at its highest working level. Slow answers are measured five times, and the minimum is
used.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import io
import json
import math
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from long_answers import answers

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from audit.rows import Draws

from rg_env.core.grading import scoring
from rg_env.core.grading.extraction import Extraction
from rg_env.core.grading.graders import gold_answer
from rg_env.core.grading.workers import WorkerPool
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import load_table, working_levels
from rg_env.errors import GenerationError

MEAN_RATIO, LEAST_RATIO = 300.0, 0.6
OVERHEAD_MS, GAP_MS = 0.2, 5.0
"""Project targets: minimum speedup (mean, and for every task); maximum overhead and lateness in ms."""

ANSWER_MS, ANSWER_TO_LONG_GOLD_MS, LONG_GOLD = 50.0, 100.0, 100_000
"""Maximum CPU time per answer in ms; the second limit is for gold answers longer than `LONG_GOLD` characters."""

WINDOWS = 5
KINDS = 3
"""Number of completions per entry."""
WRONG = "-98765"
REASONING = "Let me go through the question once more, step by step, and check each part before I answer.\n" * 15

Messages = list[dict[str, str]]
Call = Callable[[], float]


@dataclass
class Side:
    """The scoring calls of one side for one task."""

    calls: list[Call]
    best_s: float = math.inf
    """Seconds per score in the best window."""

    def window(self, passes: int) -> None:
        begin = time.perf_counter()
        for _ in range(passes):
            for call in self.calls:
                call()
        self.best_s = min(self.best_s, (time.perf_counter() - begin) / passes / len(self.calls))

    def first_pass(self, limit_s: float) -> int:
        """Make the calls kind by kind until `limit_s` seconds have passed, and return the number of calls."""
        begin = time.perf_counter()
        for done, call in enumerate(self.calls):
            if done and done % (len(self.calls) // KINDS) == 0 and time.perf_counter() - begin > limit_s:
                return done
            call()
        return len(self.calls)


def measure(ours: Side, upstream: Side, seconds: float) -> None:
    """Time both sides on the same calls for about `seconds` each; the sides take turns.

    The first pass is warm-up. If upstream's first pass takes longer than `seconds`, it is upstream's only pass; if it
    takes longer than ten times `seconds`, the remaining kinds of completions are skipped.
    """
    begin = time.perf_counter()
    done = upstream.first_pass(10 * seconds)
    length = time.perf_counter() - begin
    ours.calls, upstream.calls = ours.calls[:done], upstream.calls[:done]
    ours.window(1)
    our_length = ours.best_s * done
    ours.best_s = math.inf
    # Both sides get the same number of windows, because the minimum over more windows is lower.
    windows = max(1, min(WINDOWS, int(seconds / length)))
    for _ in range(windows):
        if length < seconds:
            upstream.window(max(1, int(seconds / windows / length)))
        ours.window(max(1, int(seconds / windows / our_length)))
    if length >= seconds:
        upstream.best_s = length / done


def completions_of(task: str, entries: list[dict[str, Any]]) -> list[tuple[int, str, Messages]]:
    """Return tuples (entry index, kind, completion), grouped by kind. If an entry has no gold answer, another entry's
    gold answer is used."""
    golds = [gold_answer(task, entry) for entry in entries]
    known = [gold for gold in golds if gold is not None]
    found = []
    for index, gold in enumerate(golds):
        assert gold != WRONG
        others = [other for other in known if other != gold] or known
        other = others[index % len(others)]
        texts = {
            "unknown" if gold is None else "gold": f"<answer>{gold or other}</answer>",
            "another's": f"<answer>{other}</answer>",
            "wrong": f"<think>\n{REASONING}</think>\n<answer>{WRONG}</answer>",
        }
        found += [(index, kind, [{"role": "assistant", "content": text}]) for kind, text in texts.items()]
    return [found[at] for kind in range(KINDS) for at in range(kind, len(found), KINDS)]


def our_call(info: dict[str, str], completion: Messages) -> Call:
    return lambda: scoring.score(completion, info).value


def upstream_call(reward: Callable[..., Any], index: int, completion: Messages) -> Call:
    """Return a function that calls upstream's reward function as upstream's rubric does. No event loop is needed,
    because the reward function never awaits anything."""

    def call() -> float:
        try:
            reward(completion=completion, answer=str(index)).send(None)
        except StopIteration as end:
            return float(end.value)
        except Exception:  # like the rubric, which scores errors as 0.0
            return 0.0
        raise AssertionError("the reward function awaited something")

    return call


def upstream_entries(task: str, count: int) -> list[dict[str, Any]]:
    """Return the library's first entries with seed 0 and without our fixes, as upstream regenerates them."""
    dataset = library.create(task, {}, seed=0, size=max(count, 50))
    entries = []
    with library.quiet():
        for index in range(count):
            random.seed(index)
            entries.append(json.loads(json.dumps(dataset[index], default=library.to_plain)))
    return entries


def upstream_env(task: str, entries: list[dict[str, Any]]) -> tuple[Any, int]:
    """Return upstream's environment, and the number of its entries that differ from `entries`."""
    from verifiers.legacy.envs.integrations.reasoninggym_env import ReasoningGymEnv

    for size in (len(entries) + 1, max(len(entries) + 1, 50)):
        # Entries of some tasks depend on the dataset's size, which is 50 in `upstream_entries`. A smaller dataset often
        # has the same entries.
        env = ReasoningGymEnv(task, num_train_examples=len(entries), num_eval_examples=size - len(entries), seed=0)
        questions = env.get_dataset()["question"]
        others = sum(entry["question"] != question for entry, question in zip(entries, questions, strict=True))
        if not others:
            break
    return env, others


def compare(task: str, count: int, seconds: float) -> dict[str, Any]:
    """Measure both sides on the completions of one task."""
    with contextlib.redirect_stdout(io.StringIO()):  # codeio prints
        entries = upstream_entries(task, count)
        env, others = upstream_env(task, entries)
        reward = next(function for function in env.rubric.funcs if function.__name__ == "check_answer_reward_func")
        completions = completions_of(task, entries)
        infos = [{"rg_task": task, "config": "{}", "entry": json.dumps(entry)} for entry in entries]
        ours = Side([our_call(infos[index], completion) for index, _, completion in completions])
        upstream = Side([upstream_call(reward, index, completion) for index, _, completion in completions])
        measure(ours, upstream, seconds)
        golds = [at for at, (_, kind, _) in enumerate(completions) if kind == "gold"]
        golds = golds[: 1 if upstream.best_s > 0.1 else None]  # one gold answer is enough if upstream is slow
        return {
            "task": task,
            "ours": ours.best_s,
            "upstream": upstream.best_s,
            "ratio": upstream.best_s / ours.best_s,
            "timed": len(ours.calls),
            "others": others,
            "golds": len(golds),
            "gold_right": [sum(side.calls[at]() >= scoring.CORRECT_FROM for at in golds) for side in (ours, upstream)],
        }


def verdict(text: str, met: bool, target: str) -> bool:
    print(f"{text}  (target {target}: {'met' if met else 'MISSED'})")
    return met


def compare_all(tasks: list[str], count: int, seconds: float) -> bool:
    """Print a line for each task and the overall figures, and return whether the targets are met."""
    print(f"{'task':<32}{'ours, us/score':>16}{'upstream, us/score':>20}{'ratio':>10}")
    results = []
    for task in tasks:
        result = compare(task, count, seconds)
        results.append(result)
        notes = []
        if result["timed"] < KINDS * count:
            notes.append(f"{result['timed']} of {KINDS * count} completions timed")
        if result["others"]:
            notes.append(f"upstream generated {result['others']} of {count} entries differently")
        if result["gold_right"] != [result["golds"]] * 2:
            right, theirs = result["gold_right"]
            notes.append(f"gold answers graded as right: ours {right}, upstream {theirs} of {result['golds']}")
        columns = f"{1e6 * result['ours']:>16.1f}{1e6 * result['upstream']:>20.1f}{result['ratio']:>10.2f}"
        print(f"{task:<32}{columns}  {'; '.join(notes)}".rstrip(), flush=True)
    ours, upstream = (statistics.fmean(result[side] for result in results) for side in ("ours", "upstream"))
    least = min(results, key=lambda result: result["ratio"])
    below = [f"{result['task']} {result['ratio']:.2f}" for result in results if result["ratio"] < LEAST_RATIO]
    print(f"\n{len(results)} tasks, {count} entries each, mean of the tasks' seconds per score:")
    print(f"ours {1e6 * ours:.1f} us, upstream {1e6 * upstream:.1f} us")
    # Speedup when every task has the same number of completions; slow tasks have the most weight.
    met = verdict(f"ratio of these means: {upstream / ours:.1f}", upstream / ours >= MEAN_RATIO, f">= {MEAN_RATIO:g}")
    if len(results) > 1:
        rest = sorted(results, key=lambda result: result["upstream"])[:-1]
        without = sum(result["upstream"] for result in rest) / sum(result["ours"] for result in rest)
        print(f"without upstream's slowest task, {max(results, key=lambda r: r['upstream'])['task']}: {without:.1f}")
    print(f"geometric mean of the tasks' ratios: {statistics.geometric_mean(r['ratio'] for r in results):.1f}")
    print(f"median of the tasks' ratios: {statistics.median(r['ratio'] for r in results):.1f}")
    text = f"lowest ratio: {least['ratio']:.2f} ({least['task']}); below {LEAST_RATIO:g}: {', '.join(below) or 'none'}"
    return verdict(text, not below, f">= {LEAST_RATIO:g} for every task") and met


def answer_ms(answer: str, info: dict[str, str]) -> float:
    """Measure one score up to five times, until a measurement is below 5 ms. Return the minimum CPU time in ms."""
    best = math.inf
    for _ in range(5):
        begin = time.process_time()
        scoring.score_extraction(Extraction("ok", answer), info)
        best = min(best, 1000 * (time.process_time() - begin))
        if best < 5:
            break
    return best


def measure_times(tasks: list[str], count: int, step: int) -> bool:
    """Print the maximum time per answer for each task and level, and return whether all are within their limits.

    The answers are built around the longest gold answer of `count` entries. Only every `step`th answer is graded, or
    fewer if answers are very long.
    """
    draws = Draws()
    met = True
    slowest = (0.0, "")
    print(f"{'task':<28}{'level':>8}{'gold':>10}{'graded':>10}{'answers':>9}{'most, ms':>10}  by")
    for task in tasks:
        for level, config in [(None, {}), *list(working_levels(task).items())[-1:]]:
            try:
                entries = [json.loads(item.entry) for item in draws.items(task, count, 0, config)]
            except GenerationError as error:
                print(f"{task:<28}{level!s:>8}  skipped: {error}", flush=True)
                draws = Draws()
                continue
            entry = max(entries, key=lambda entry: len(str(entry["answer"])))
            gold, length = gold_answer(task, entry) or "1", len(str(entry["answer"]))
            info = {"rg_task": task, "config": json.dumps(config), "entry": json.dumps(entry), "grading": "partial"}
            answer_ms(gold, info)  # loads word lists, once per process
            most = max(scoring.MAX_ANSWER_CHARS, 2 * length)
            results = [
                (answer_ms(text, info), text) for text in list(answers(gold, most))[:: step * max(1, most // 50_000)]
            ]
            worst, text = max(results)
            limit = ANSWER_MS if length <= LONG_GOLD else ANSWER_TO_LONG_GOLD_MS
            met = met and worst <= limit
            name = "default" if level is None else str(level)
            slowest = max(slowest, (worst, f"{task}, level {name}"))
            columns = f"{name:>8}{length:>10}{most:>10}{len(results):>9}{worst:>10.1f}"
            print(
                f"{task:<28}{columns}  {text[:20]!r}...{text[-10:]!r}{'' if worst <= limit else '  OVER'}", flush=True
            )
    target = f"<= {ANSWER_MS:g} ms, {ANSWER_TO_LONG_GOLD_MS:g} ms if the gold answer has over {LONG_GOLD:,} characters"
    return verdict(f"\nlongest: {slowest[0]:.1f} ms ({slowest[1]})", met, target)


HOSTILE = [
    "9**9**9**9", "[0 for _ in iter(int, 1)]", "'x' * 10**11", "[[0] * 10**6 for _ in range(10**6)]",
    "__import__('os')._exit(3)", "__import__('os').system('true')",
    "open('/proc/self/environ').read()", "'y' * 10**6", "(" * 9000, "+".join(["1"] * 4500), "1/0",
]  # fmt: skip
"""Expressions that hang, exhaust memory, exit, make system calls, return too much or nest deeply."""
THREADS = ThreadPoolExecutor(8)
"""Threads that wait for workers; `core.grading.scoring` also uses eight."""


def overhead(pool: WorkerPool, args: list[Any], batch: int, rounds: int) -> list[float]:
    """Return the time per call, in seconds, for each round of `batch` concurrent calls."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        outcomes = list(THREADS.map(pool.call, [args] * batch))
        found.append((time.perf_counter() - begin) / batch)
        assert all(outcome.status == "ok" for outcome in outcomes)
    return found


def core_wait_s() -> float:
    """Return the time, in seconds, that this thread has spent waiting for a core (Linux only; 0 elsewhere)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


async def lateness(work: "asyncio.Future[Any]") -> list[tuple[float, float]]:
    """Wake every millisecond until `work` is done. Return the lateness of each wake-up in seconds, and the part of the
    lateness that was spent waiting for a core."""
    found = []
    waited = core_wait_s()
    while not work.done():
        begin = time.perf_counter()
        await asyncio.sleep(0.001)
        late = time.perf_counter() - begin - 0.001
        before, waited = waited, core_wait_s()
        found.append((late, min(late, waited - before)))
    return found


async def hostile_lateness(
    pool: WorkerPool,
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], dict[str, int]]:
    """Return the event loop's lateness while `pool` evaluates `HOSTILE`, its lateness over an idle period of the same
    length, and the number of calls by status."""
    begin = time.perf_counter()
    work = asyncio.gather(*(asyncio.wrap_future(THREADS.submit(pool.call, text)) for text in HOSTILE))
    busy = await lateness(work)
    idle = await lateness(asyncio.ensure_future(asyncio.sleep(time.perf_counter() - begin)))
    statuses = [outcome.status for outcome in await work]
    return busy, idle, {status: statuses.count(status) for status in dict.fromkeys(statuses)}


def measure_workers(batch: int, rounds: int) -> bool:
    """Print a pool's overhead and the lateness of an event loop alongside it, and return whether the targets are
    met."""
    task = "leg_counting"
    entry = upstream_entries(task, 1)[0]
    with WorkerPool("operator:not_", workers=2) as pool:
        times = overhead(pool, [task, {}, entry, entry["answer"]], batch, rounds)
    median, low, high = (1000 * f(times) for f in (statistics.median, min, max))
    spread = f"median of {rounds} rounds; min {low:.3f}, max {high:.3f}"
    text = f"overhead of 2 workers at batch {batch}: {median:.3f} ms per score ({spread})"
    met = verdict(text, median <= OVERHEAD_MS, f"<= {OVERHEAD_MS:g} ms")
    # The harshest load: these texts are actually evaluated, so workers hang, die and are replaced.
    with WorkerPool("builtins:eval", workers=2, wall_s=0.5, memory_mb=256) as pool:
        busy, idle, ends = asyncio.run(hostile_lateness(pool))
    late, own, idle_late = (
        1000 * max(values)
        for values in ((gap for gap, _ in busy), (gap - waited for gap, waited in busy), (gap for gap, _ in idle))
    )
    print(f"{len(HOSTILE)} hostile answers: {', '.join(f'{count} {status}' for status, count in ends.items())}")
    over = sum(gap > GAP_MS / 1000 for gap, _ in busy)
    text = (
        f"maximum lateness of the event loop: {late:.1f} ms ({over} of {len(busy)} wake-ups over {GAP_MS:g} ms; without"
    )
    text += f" waits for a core: {own:.1f} ms; idle loop: {idle_late:.1f} ms)"
    return verdict(text, late <= GAP_MS, f"<= {GAP_MS:g} ms") and met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", help="tasks to measure; default: all")
    parser.add_argument("--entries", type=int, default=8, help="entries per task")
    parser.add_argument("--seconds", type=float, default=0.2, help="approximate seconds per task and side")
    parser.add_argument("--workers", action="store_true", help="measure the worker pool instead")
    parser.add_argument("--times", action="store_true", help="measure the maximum time per answer instead")
    parser.add_argument("--step", type=int, default=10, help="with --times: measure every nth of about 6,600 answers")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=200, help="with --workers: number of batches")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args()
    if options.entries < 2 or options.seconds <= 0 or options.batch < 1 or options.rounds < 1:
        parser.error("--entries must be at least 2, --rounds and --batch at least 1, and --seconds greater than 0")
    if unknown := sorted(set(options.tasks) - set(load_table())):
        parser.error(f"unknown tasks: {', '.join(unknown)}")
    if options.workers:
        return 0 if measure_workers(options.batch, options.rounds) or not options.check else 1
    if options.times:
        met = measure_times(options.tasks or sorted(load_table()), options.entries, max(1, options.step))
        return 0 if met or not options.check else 1
    if importlib.util.find_spec("verifiers.legacy") is None:
        parser.error("this environment's verifiers has no ReasoningGymEnv; use uv run --script benchmarks/scoring.py")
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    warnings.simplefilter("ignore")  # warnings from sympy and from the library's dependencies
    met = compare_all(options.tasks or sorted(load_table()), options.entries, options.seconds)
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
