"""Console output for a run: a line for each step. A terminal also shows a progress bar below the lines, and logs have
no escape codes.

    console = RunConsole(sys.stdout)
    console.step(3, 200, {"reward": 0.5, "step_time": 1.2})
    console.examples(3, records)
    console.close()
    print_summary(folder, results, before, after)

Questions and completions are untrusted, so they are printed as data, never as markup or terminal control codes.
"""

import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rg_env.core.run_folder import checkpoint_step
from rg_env.core.statistics import with_interval
from rg_env.core.text import counted, visible_line
from rg_env.evaluation.results import Results, Scores
from rg_env.evaluation.scores import together
from rg_env.evaluation.tables import print_results

QUESTION_LENGTH, COMPLETION_LENGTH, ANSWER_LENGTH = 200, 400, 100
"""Maximum number of characters for each part of an example."""
STEP_METRICS = {
    "loss": "loss {:.3f}",
    "reward": "reward {:.2f}",
    "accuracy": "accuracy {:.2f}",
    "completions/mean_length": "length {:.0f} tokens",
    "step_time": "{:.2f} s/step",
    "tokens_per_second": "{:,.0f} tokens/s",
}
"""Metrics shown for a step."""
_REWARD = re.compile("rewards/(.+)/mean")
_PROGRESS_EVERY_S = 15.0


class RunConsole:
    """Shows a run's progress on `stream`.

    Args:
        stream: output stream. A terminal shows a live bar, with the other output above it.
        environ: environment variables that describe the terminal.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ):
        if isinstance(stream, io.TextIOWrapper):  # characters missing from the stream's encoding must not end the run
            stream.reconfigure(errors="replace")
        self._live = stream.isatty() and environ.get("TERM") not in (None, "", "dumb", "unknown")
        self._console = Console(
            file=stream, force_terminal=self._live, highlight=False, markup=False, emoji=False, _environ=environ
        )
        self._progress: Progress | None = None
        self._shown = time.monotonic()

    def step(self, step: int, max_steps: int, metrics: dict[str, Any]) -> None:
        """Show a step with the metrics that `STEP_METRICS` lists and, if there are several rewards, each one's mean. A
        step without `reward` reuses the last rollouts."""
        figures = {name: text.format(metrics[name]) for name, text in STEP_METRICS.items() if name in metrics}
        rewards = {match[1]: value for name, value in metrics.items() if (match := _REWARD.fullmatch(name))}
        if len(rewards) > 1 and "reward" in figures:
            parts = ", ".join(f"{name} {value:.2f}" for name, value in rewards.items() if value is not None)
            figures["reward"] += f" ({parts})"
        reused = [] if "reward" in metrics else ["same rollouts"]
        self.line("  ".join([f"step {step:>3}/{max_steps}", *reused, *figures.values()]))
        if not self._live:
            return
        if self._progress is None:  # without automatic refreshes, there is no additional thread
            columns = (MofNCompleteColumn(), BarColumn(None), TimeRemainingColumn(), TextColumn("left"))
            self._progress = Progress(*columns, console=self._console, expand=True, auto_refresh=False)
            self._progress.add_task("", total=max_steps, completed=step)
            self._progress.start()
        self._progress.update(TaskID(0), completed=step, refresh=True)

    def evaluating(self, made: int, wanted: int) -> None:
        """Report an evaluation's progress, at most once every 15 seconds."""
        if made < wanted and time.monotonic() - self._shown > _PROGRESS_EVERY_S:
            self.line(f"evaluating: {made:,} of {wanted:,} answers")

    def line(self, text: str) -> None:
        """Print a line."""
        self._shown = time.monotonic()
        self._console.print(Text(text), soft_wrap=not self._live)  # on a terminal, lines are wrapped at spaces

    def examples(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        """Print the questions and answers in `records` (see `Rollouts.records`)."""
        self.line(f"answers after step {step}:")
        for record in records:
            _print_example(self._console, completion=record)

    def close(self) -> None:
        """Stop the progress bar and leave it on the terminal. This method can be called more than once."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def spread(records: Sequence[Any], number: int) -> list[Any]:
    """Select up to `number` evenly spaced records, because adjacent records usually answer the same question."""
    number = min(number, len(records))
    return [records[i * len(records) // number] for i in range(number)]


def shorten(text: str, length: int) -> str:
    """Shorten `text` to `length` characters by cutting out the middle, so that the answer at the end remains."""
    if len(text) <= length:
        return text
    tail = (length - 3) // 2
    return f"{text[: length - 3 - tail]} … {text[len(text) - tail :]}"


def _print_example(console: Console, **rollouts: dict[str, Any]) -> None:
    """Print a question and its answers. `rollouts` contains records by name (`completion`, or `before` and `after`)."""
    record = next(iter(rollouts.values()))
    heads = [("  ", ""), (visible_line(record["task"]), "bold")]
    parts = [("question", record["question"], QUESTION_LENGTH)]
    for name, rollout in rollouts.items():
        correct = rollout["correct"]
        status = rollout.get("status") or {True: "correct", False: "wrong", None: ""}[correct]
        status = f"{name} {status}".rstrip() if len(rollouts) > 1 else status
        heads += [(f"  {status}", {True: "green", False: "red", None: ""}[correct])] if status else []
        heads.append(("  reward none" if rollout["reward"] is None else f"  reward {rollout['reward']:.2f}", ""))
        parts.append((name, rollout["completion"], COMPLETION_LENGTH))
    console.print(Text.assemble(*heads), soft_wrap=not console.is_terminal)
    for name, value, length in [*parts, ("gold answer", record["answer"], ANSWER_LENGTH)]:
        text = shorten(visible_line(str(value)), length) or "(nothing)"
        console.print(Text.assemble((f"    {name + ':':<13}", "dim"), text), soft_wrap=not console.is_terminal)


def headline(evaluation: Results) -> str:
    """Return a one-line summary of an evaluation, with 95% confidence intervals in brackets."""
    parts: list[str] = []
    if scores := evaluation.overall():
        figures = {"greedy": scores.greedy_accuracy, **dict(list(scores.pass_at_k.items())[-1:])}
        if scores.accuracy is not None:
            figures["reward"] = scores.reward
        parts = [_measured(scores), *(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)]
        if scores.mean_completion_tokens is not None:
            parts.append(f"length {scores.mean_completion_tokens:.0f} tokens")
        parts.append(f"on {counted(scores.n, 'problem')}")
    others = {"held out": evaluation.overall("held_out"), **evaluation.scores("labelled")}
    parts += [f"{name}: {_measured(each)}  on {counted(each.n, 'problem')}" for name, each in others.items() if each]
    return "  ".join(parts)


def _measured(scores: Scores) -> str:
    """Return the accuracy, or the reward if accuracy is not measured, as text with a confidence interval."""
    name = "reward" if scores.accuracy is None else "accuracy"
    return f"{name} {with_interval(getattr(scores, name) or 0.0, scores.intervals.get(name), 2)}"


def print_summary(
    folder: Path, results: dict[str, Any], before: Results | None, after: Results | None, console: Console | None = None
) -> None:
    """Print a run's summary: scores before and after training, sample rollouts and files."""
    console = console or Console(highlight=False)
    ended = "Interrupted after" if results["interrupted"] else "Trained for"
    if rule := results.get("stopped_by"):
        ended = f"Stopped by monitor {rule} after"
    console.print(
        f"\n{ended} {counted(results['steps'], 'step')} in {results['seconds']:.0f} s "
        f"({escape(str(results['model']))}, {results['engine']} engine)"
    )
    columns = {"before": before, f"after {counted(after.step or 0, 'step')}" if after else "": after}
    if made := {head: evaluation for head, evaluation in columns.items() if evaluation}:
        print_results(together(made), console)
    if before and after and (note := unearned(before, after)):
        console.print(note, markup=False)
    for old, new in examples_of(before, after) if before and after else []:
        _print_example(console, before=old, after=new)
    files = sorted(folder.iterdir(), key=lambda file: (checkpoint_step(file) or 0, file.name))
    names = escape(", ".join(file.name for file in files))
    console.print(f"Files in [bold]{escape(str(folder))}[/]: {names}", soft_wrap=True)


def unearned(before: Results, after: Results) -> str:
    """Return a note if the reward has clearly risen and accuracy has not, or "".

    Monitors compare windows of steps, so they do not report this in a short run.
    """
    old, new = before.overall(), after.overall()
    if not old or not new or not {"reward", "accuracy"} <= old.intervals.keys() & new.intervals.keys():
        return ""
    rose = {name: new.intervals[name][0] > old.intervals[name][1] for name in ("reward", "accuracy")}
    if not rose["reward"] or rose["accuracy"]:
        return ""
    means = []
    for rollouts in (before.rollouts, after.rollouts):
        each = [record["rewards"] for record in rollouts if record.get("rewards")]
        means.append({name: fmean(rewards[name] for rewards in each) for name in (each[0] if each else ())})
    gains = {name: means[1][name] - value for name, value in means[0].items() if name not in ("correctness", "partial")}
    name = max(gains, key=lambda name: gains[name], default="")
    shown = f"; {name} rose from {means[0][name]:.2f} to {means[1][name]:.2f}" if name else ""
    return (
        f"note: the reward rose from {old.reward:.2f} to {new.reward:.2f}, but accuracy ({old.accuracy:.2f} to "
        f"{new.accuracy:.2f}) did not clearly rise{shown}: lower rewards.{name or 'NAME'}.weight, or set "
        f"rewards.{name or 'NAME'}.when=correct"
    )


def examples_of(before: Results, after: Results) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return up to three pairs of answers to the same question (one before and one after training): the pair with the
    largest improvement, the median pair, and the pair with the smallest improvement."""

    def value(record: dict[str, Any]) -> float:
        return float(record["reward"] if record["correct"] is None else record["correct"])

    first = [[r for r in each.rollouts if r["draw"] == "sampled" and r["rollout"] == 0] for each in (before, after)]
    pairs = sorted(zip(*first, strict=True), key=lambda pair: value(pair[0]) - value(pair[1]))
    return [pairs[index] for index in sorted({0, len(pairs) // 2, len(pairs) - 1})] if pairs else []
