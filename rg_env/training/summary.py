"""What a run prints when it ends: before and after, sample rollouts, and where the files are."""

import re
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rg_env.training.fixed_eval import Evaluation, Scores

SAMPLES = 3


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
    console.print(
        f"\n{ended} after {results['steps']} steps in {results['seconds']:.0f} s "
        f"({escape(str(results['model']))}, {results['engine']} engine)"
    )
    if before and after:
        console.print(_table(before, after))
        _print_samples(console, before, after)
    # Files that a person opens first, then the others; an early interrupt leaves fewer.
    order = ("reward_curve.png", "train_results.json", "metrics.jsonl", "rollouts.jsonl", "eval_results")
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (*order, name).index(name))
    console.print(f"Files in [bold]{escape(str(folder))}[/]: {escape(', '.join(names))}", soft_wrap=True)


def _table(before: Evaluation, after: Evaluation) -> Table:
    table = Table(
        box=box.SIMPLE, title=f"{before.overall.n} frozen problems, mean ± standard error", title_justify="left"
    )
    for column in ("", "before", f"after {after.step} steps"):
        table.add_column(column, justify="left" if not column else "right")
    pairs = [("", before.overall, after.overall)]
    if len(before.tasks) > 1:
        pairs += [(f" {task}", scores, after.tasks[task]) for task, scores in before.tasks.items()]
    for label, old, new in pairs:
        for name, field in (
            ("accuracy", "accuracy"),
            ("greedy accuracy", "greedy_accuracy"),
            ("reward", "reward"),
            ("tokens", "mean_completion_tokens"),
        ):
            if getattr(old, field) is not None and getattr(new, field) is not None:
                table.add_row(f"{name}{label}", _with_error(old, field), _with_error(new, field))
    return table


def _with_error(scores: Scores, field: str) -> str:
    digits = 1 if field.endswith("tokens") else 2
    return f"{getattr(scores, field):.{digits}f} ± {getattr(scores, f'{field}_se'):.{digits}f}"


def _shown(text: str) -> str:
    """`text` as rich shows it to the letter, and without control characters, which a terminal would obey."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text))


def _print_samples(console: Console, before: Evaluation, after: Evaluation) -> None:
    for old, new in list(zip(before.rollouts, after.rollouts, strict=True))[:SAMPLES]:
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
