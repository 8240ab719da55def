"""What a run prints: an evaluation in one line, and in the end before and after, sample rollouts, and the files."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rg_env.core.text import without_controls
from rg_env.training.evaluation.scores import Evaluation, Scores

SAMPLES = 3
TASKS_SHOWN = 30
LABELS_IN_LINE = 3


def headline(evaluation: Evaluation) -> str:
    """An evaluation in one line."""
    scores, parts = evaluation.overall, []
    for name, field in (("accuracy", "accuracy"), ("greedy", "greedy_accuracy")):
        if getattr(scores, field) is not None:
            parts.append(f"{name} {_with_error(scores, field)}")
    if scores.pass_at_k:
        name, value = list(scores.pass_at_k.items())[-1]
        parts.append(f"{name} {value:.2f}")
    if scores.reward is not None:
        parts.append(f"reward {scores.reward:.2f}")
    if scores.mean_completion_tokens is not None:
        parts.append(f"length {scores.mean_completion_tokens:.0f} tokens")
    if scores.n:
        parts.append(f"on {scores.n} problems")
    others = {"held out": evaluation.held_out} if evaluation.held_out else {}
    others |= dict(list(evaluation.labelled.items())[:LABELS_IN_LINE])
    for name, other in others.items():
        field = "reward" if other.accuracy is None else "accuracy"
        parts.append(f"{name}: {field} {_with_error(other, field)}  on {other.n} problems")
    if (more := len(evaluation.labelled) - LABELS_IN_LINE) > 0:
        parts.append(f"and {more} more")
    return "  ".join(parts)


def print_summary(
    folder: Path,
    results: dict[str, Any],
    before: Evaluation | None,
    after: Evaluation | None,
    console: Console | None = None,
) -> None:
    """Print the end of a run. Model text is shown as it is: never as markup."""
    console = console or Console(highlight=False)
    ended = "Interrupted" if results["interrupted"] else "Trained"
    if rule := results.get("stopped_by"):
        ended = f"Stopped by monitor {rule}"
    console.print(
        f"\n{ended} after {results['steps']} steps in {results['seconds']:.0f} s "
        f"({escape(str(results['model']))}, {results['engine']} engine)"
    )
    columns = {"before": before, f"after {after.step} steps" if after else "": after}
    if there := {head: evaluation for head, evaluation in columns.items() if evaluation}:
        console.print(_table(there))
    if before and after:
        _print_samples(console, before, after)
    # Files that a person opens first, then the others; an early interrupt leaves fewer.
    order = ("reward_curve.png", "train_results.json", "metrics.jsonl", "rollouts.jsonl", "eval_results")
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (*order, name).index(name))
    console.print(f"Files in [bold]{escape(str(folder))}[/]: {escape(', '.join(names))}", soft_wrap=True)


def print_evaluation(file: Path, evaluation: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation that was made alone, and where it is."""
    console = console or Console(highlight=False)
    console.print(_table({f"step {evaluation.step}": evaluation}))
    console.print(f"Scores and rollouts in [bold]{escape(str(file))}[/]", soft_wrap=True)


_FIGURES = {
    "accuracy": "accuracy",
    "greedy accuracy": "greedy_accuracy",
    "reward": "reward",
    "tokens": "mean_completion_tokens",
    "cut off": "truncated",
}


def _table(columns: dict[str, Evaluation]) -> Table:
    """A column an evaluation: all figures over the training tasks and over held-out ones, each task's accuracy, and
    that under each label."""
    evaluations = list(columns.values())
    last = evaluations[-1]
    counts = [f"{last.overall.n}"] if last.overall.n else []
    counts += [f"{last.held_out.n} held-out"] if last.held_out else []
    counts += [f"{sum(scores.n for scores in last.labelled.values())} labelled"] if last.labelled else []
    title = f"{' + '.join(counts)} frozen problems, mean ± standard error"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    table.add_column("")
    for head in columns:
        table.add_column(head, justify="right")

    def add(label: str, each: list[Scores], field: str) -> None:
        if all(_value(scores, field) is not None for scores in each):
            table.add_row(label, *(_with_error(scores, field) for scores in each))

    def add_each(each: list[dict[str, Scores]], kind: str, indent: str) -> None:
        for name in list(each[0])[:TASKS_SHOWN]:
            field = "reward" if each[0][name].accuracy is None else "accuracy"
            add(f"{indent}{escape(name)}, {field}", [scores[name] for scores in each], field)
        if (more := len(each[0]) - TASKS_SHOWN) > 0:
            table.add_row(f"{indent}and {more} more {kind}", *([""] * len(evaluations)))

    parts = [("", [e.overall for e in evaluations], [e.tasks for e in evaluations])]
    if last.held_out:
        unseen = [e.held_out for e in evaluations if e.held_out]
        parts.append(("held-out ", unseen, [e.held_out_tasks for e in evaluations]))
    for kind, overall, tasks in parts:
        if kind:
            table.add_section()
        for name, field in _FIGURES.items():
            add(f"{kind}{name}", overall, field)
        for name in list(overall[0].pass_at_k)[1:]:  # pass@1 is the accuracy
            add(f"{kind}{name}", overall, name)
        if len(tasks[0]) > 1 or kind:
            add_each(tasks, "tasks", "  ")
    if last.labelled:
        table.add_section()
        add_each([e.labelled for e in evaluations], "labels", "")
    return table


def _value(scores: Scores, field: str) -> float | None:
    value: float | None = scores.pass_at_k.get(field) if "@" in field else getattr(scores, field)
    return value


def _with_error(scores: Scores, field: str) -> str:
    digits = 1 if field.endswith("tokens") else 2
    error = scores.pass_at_k_se[field] if "@" in field else getattr(scores, f"{field}_se")
    return f"{_value(scores, field):.{digits}f} ± {error:.{digits}f}"


def _shown(text: str) -> str:
    """`text` as data: rich shows it to the letter."""
    return escape(without_controls(text))


def _print_samples(console: Console, before: Evaluation, after: Evaluation) -> None:
    for old, new in list(zip(before.samples(), after.samples(), strict=True))[:SAMPLES]:
        question = (old["question"].strip().splitlines() or [""])[-1]
        console.print(f"[bold]{_shown(old['task'])}[/]: {_shown(question)}  (answer: {_shown(old['answer'])})")
        for name, rollout in (("before", old), ("after", new)):
            mark = {True: "[green]right[/]", False: "[red]wrong[/]"}.get(
                rollout["correct"], f"reward {rollout['reward']:.2f}"
            )
            console.print(f"  {name}, {mark}:")
            for line in rollout["completion"].strip().splitlines() or ["(nothing)"]:
                console.print(f"    {_shown(line)}", soft_wrap=True)
        console.print()
