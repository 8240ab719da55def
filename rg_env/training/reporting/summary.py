"""What a run prints: an evaluation in one line, and at the end before and after, sample rollouts, and the files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from rg_env.core.text import without_controls
from rg_env.evaluation.results import Results, Scores
from rg_env.evaluation.summary import together
from rg_env.evaluation.tables import print_results

SAMPLES = 3
LABELS_IN_LINE = 3


def headline(evaluation: Results) -> str:
    """An evaluation in one line."""
    scores, parts = evaluation.overall(), []
    if scores is not None:
        if scores.accuracy is not None:
            parts.append(f"accuracy {_with_error(scores.accuracy, scores.accuracy_se)}")
        if scores.greedy_accuracy is not None:
            parts.append(f"greedy {_with_error(scores.greedy_accuracy, scores.greedy_accuracy_se)}")
        if scores.pass_at_k:
            name, value = list(scores.pass_at_k.items())[-1]
            parts.append(f"{name} {value:.2f}")
        if scores.reward is not None:
            parts.append(f"reward {scores.reward:.2f}")
        if scores.mean_completion_tokens is not None:
            parts.append(f"length {scores.mean_completion_tokens:.0f} tokens")
        parts.append(f"on {scores.n} problems")
    held_out, labelled = evaluation.overall("held_out"), list(evaluation.scores("labelled").items())
    others = [("held out", held_out)] if held_out else []
    for name, other in [*others, *labelled[:LABELS_IN_LINE]]:
        parts.append(f"{name}: {_accuracy(other)}  on {other.n} problems")
    if (more := len(labelled) - LABELS_IN_LINE) > 0:
        parts.append(f"and {more} more")
    return "  ".join(parts)


def print_summary(
    folder: Path,
    results: dict[str, Any],
    before: Results | None,
    after: Results | None,
    console: Console | None = None,
) -> None:
    """Print the end of a run. Model text is shown as it is, never as markup."""
    console = console or Console(highlight=False)
    ended = "Interrupted" if results["interrupted"] else "Trained"
    if rule := results.get("stopped_by"):
        ended = f"Stopped by monitor {rule}"
    console.print(
        f"\n{ended} after {results['steps']} steps in {results['seconds']:.0f} s "
        f"({escape(str(results['model']))}, {results['engine']} engine)"
    )
    columns = {"before": before, f"after {after.step} steps" if after else "": after}
    if made := {head: evaluation for head, evaluation in columns.items() if evaluation}:
        print_results(together(made), console)
    if before and after:
        for old, new in list(zip(samples(before), samples(after), strict=True))[:SAMPLES]:
            _print_sample(console, old, new)
    # Files that a person opens first, then the others; an early interrupt leaves fewer.
    order = ("reward_curve.png", "train_results.json", "metrics.jsonl", "rollouts.jsonl", "eval_results")
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (*order, name).index(name))
    console.print(f"Files in [bold]{escape(str(folder))}[/]: {escape(', '.join(names))}", soft_wrap=True)


def samples(evaluation: Results) -> Sequence[dict[str, Any]]:
    """The first sampled answer to each question."""
    return [each for each in evaluation.rollouts if each["draw"] == "sampled" and each["rollout"] == 0]


def _accuracy(scores: Scores) -> str:
    if scores.accuracy is None:
        return f"reward {_with_error(scores.reward, scores.reward_se)}"
    return f"accuracy {_with_error(scores.accuracy, scores.accuracy_se)}"


def _with_error(value: float | None, error: float | None) -> str:
    return f"{value or 0.0:.2f} ± {error or 0.0:.2f}"


def _shown(text: str) -> str:
    """`text` as rich shows it to the letter, and without control characters, which a terminal would obey."""
    return escape(without_controls(text))


def _print_sample(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    question = (before["question"].strip().splitlines() or [""])[-1]
    console.print(f"[bold]{_shown(before['task'])}[/]: {_shown(question)}  (answer: {_shown(before['answer'])})")
    for name, rollout in (("before", before), ("after", after)):
        mark = {True: "[green]right[/]", False: "[red]wrong[/]"}.get(
            rollout["correct"], f"reward {rollout['reward']:.2f}"
        )
        console.print(f"  {name}, {mark}:")
        for line in rollout["completion"].strip().splitlines() or ["(nothing)"]:
            console.print(f"    {_shown(line)}", soft_wrap=True)
    console.print()
