"""Tables of evaluation results, for the console and `summary.md`.

A training run prints its evaluations in the same tables, in which "before" and "after" appear as two models.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rg_env.core.statistics import Interval, p_shown, with_interval
from rg_env.core.text import counted, without_controls
from rg_env.evaluation.results import PART_SUFFIXES, Accuracy, EvaluationSampling, Results, Scores, TaskPart

_ABOUT_ACCURACIES = "Accuracies with 95% intervals, clustered by question."
NOTES = {
    "constant": "Constant: accuracy of the best constant answer.",
    "adjusted for guessing": "Adjusted for guessing: (accuracy - constant) / (1 - constant).",
    "left out": "Questions that a model was trained on are left out of that model's scores.",
}
"""Notes by the row or column that they explain."""
_TOTALS = ("left out", "failed calls", "answer tokens", "cost")
_ABOUT_PARTS = (
    "Accuracies with 95% intervals, clustered by question. Rows for training or held-out tasks cover all "
    "questions from those tasks."
)
_ABOUT_DIFFERENCES = "Differences in accuracy with 95% intervals (Newcombe); p-values from two-sided permutation tests."
_TASKS_SHOWN = 30
"""Maximum number of tasks or differences per table on the console."""
_NOTHING = "–"
_FEW_ANSWERS = 0.2
"""Fraction of answers in the required form below which the form is the obstacle."""
TableRows = list[list[str]]


class TableConsole(Console):
    """A console that raises `BrokenPipeError` if its output is closed, as `print` does."""

    def on_broken_pipe(self) -> None:
        raise  # rich would exit here, but commands have their own exit code for a broken pipe


@dataclass(frozen=True)
class Table:
    """A table with its title and notes."""

    title: str
    columns: list[str]
    rows: TableRows
    notes: Sequence[str] = ()


def tables_of(results: Results, limit: int | None = None) -> list[Table]:
    """Return tables of accuracies by task, and of differences between models."""
    table = [["task", "n", "constant", *results.models], *_accuracies(results, limit)]
    if all(task.floor is None for task in results.tasks.values()):  # training runs do not measure floors
        table = [[*row[:2], *row[3:]] for row in table]
    about = _ABOUT_PARTS if _parts(results) else _about_rows(results, {*table[0], *(row[0] for row in table)})
    notes = [about, *_form_problems(results), *([] if limit else results.notes)]
    tables = [Table("", table[0], table[1:], notes)]
    if differences := _differences(results):
        heads = ["task", "models", "n", "difference", "p-value"]
        rows = _shortened(differences, limit)
        tables.append(Table("Two models on the same questions", heads, rows, [_ABOUT_DIFFERENCES]))
    return tables


def form_obstacle(answered: float, truncated: float | None) -> Literal["form", "length"] | None:
    """Return why few of the replies have an answer in the required form, or None if more of them do. Arguments are the
    same as for `form_problem`."""
    cut_off = truncated or 0.0
    if answered >= _FEW_ANSWERS:
        return None
    is_long = cut_off > 0.5 and answered >= _FEW_ANSWERS * (1 - cut_off)  # complete replies do have the form
    return "length" if is_long else "form"


def form_problem(name: str, answered: float, truncated: float | None) -> str | None:
    """Return why few of the replies have an answer in the required form, and a remedy, or None if more of them do.

    Args:
        name: what the replies belong to, such as a model.
        answered: fraction of replies with an answer in the required form.
        truncated: fraction of replies cut off by the token limit.
    """
    if not (obstacle := form_obstacle(answered, truncated)):
        return None
    if obstacle == "length":
        return f"{name}: {truncated:.0%} of the replies are cut off: raise max_tokens"
    share = "no reply has" if answered == 0.0 else f"only {answered:.0%} of the replies have"
    return (
        f"{name}: {share} a complete <answer>...</answer>: show the form in examples (prompt.few_shot in a config), or "
        "use a model that follows instructions"
    )


def _form_problems(results: Results) -> list[str]:
    """Return one line for each model (of a training run: the last) whose replies rarely have the required form, which
    may be the only reason for a low accuracy."""
    found = []
    for name in list(results.models)[-1 if _parts(results) else 0 :]:
        scores = [task.models[name].scores for task in results.tasks.values() if name in task.models]
        if scores and all(each.status for each in scores) and not any("failed" in each.status for each in scores):
            answered = 1 - fmean(each.status.get("no_answer", 0.0) for each in scores)
            found.append(form_problem(name, answered, fmean(each.truncated or 0.0 for each in scores)))
    return [line for line in found if line]


def _about_rows(results: Results, shown: set[str]) -> str:
    """Explain the rows and columns with these names."""
    notes = [_ABOUT_ACCURACIES]
    if len(results.tasks) > 1:
        totals = ", ".join(name for name in _TOTALS if name in shown)
        notes.append(f"The rows below the tasks contain means over the tasks{totals and f', or totals ({totals})'}.")
    shown = shown if results.overlap_is_known else shown - {"left out"}
    return " ".join([*notes, *(note for name, note in NOTES.items() if name in shown)])


def print_results(results: Results, console: Console | None = None) -> None:
    """Print an evaluation's tables."""
    console = console or TableConsole(highlight=False)
    for table in tables_of(results, _TASKS_SHOWN):
        print_table(console, table.columns, table.rows)
        for note in table.notes:
            console.print(without_controls(note), markup=False)


def print_table(console: Console, heads: list[str], rows: TableRows) -> None:
    """Print a table without truncating cells or breaking words. Control characters are printed as escapes.

    On a terminal that is too narrow, cells are wrapped at spaces, but not within an interval. If the terminal is too
    narrow for this as well, each row is printed as a list. If the output is not a terminal, the console is widened.
    """
    heads, rows = list(map(without_controls, heads)), [list(map(without_controls, row)) for row in rows]
    shown = _rich_table(heads, rows)
    width = console.measure(shown, options=console.options.update(max_width=10_000)).maximum
    if width <= console.width or not console.is_terminal:
        console.width = max(console.width, width)
        console.print(shown)
        return
    rows = [[re.sub(r"(\[\S+,) (\S+\])", r"\1\2", cell) for cell in row] for row in rows]
    longest = [
        max(len(word) for cell in column for word in f"{cell} -".split()) for column in zip(heads, *rows, strict=True)
    ]
    if sum(longest) + 2 * len(longest) + 2 <= console.width:
        console.print(_rich_table(heads, rows, longest))
        return
    for name, *cells in rows:
        lines = [f"  {head}: {cell}" for head, cell in zip(heads[1:], cells, strict=True) if cell not in ("", _NOTHING)]
        console.print("\n".join([f"{heads[0]}: {name}", *lines]), markup=False)
    console.print()


def _rich_table(heads: list[str], rows: TableRows, widths: Sequence[int | None] | None = None) -> RichTable:
    """Return a table whose cells wrap at spaces if the `widths` of the columns' longest words are given."""
    shown = RichTable(box=box.SIMPLE)
    for number, (head, width) in enumerate(zip(heads, widths or [None] * len(heads), strict=True)):
        justify: Literal["left", "right"] = "left" if number == 0 else "right"
        shown.add_column(escape(head), justify=justify, min_width=width, no_wrap=width is None)
    for row in rows:
        shown.add_row(*map(escape, row))
    return shown


def markdown(results: Results) -> str:
    """Return the content of `summary.md`."""
    versions = ", ".join(f"{name} {each}" for name, each in results.versions.items())
    first = next(iter(results.tasks.values()))
    answers = f"{counted(first.sampling.rollouts_per_example, 'answer')} per question, {_sampled(results)}"
    lines = ["# Evaluation", "", f"{results.created}; {versions}; {answers}; grading mode: {first.grading}."]
    for table in tables_of(results):
        lines += ["", f"## {table.title}"] if table.title else []
        lines += ["", *markdown_table(table.columns, table.rows)]
        for note in table.notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def markdown_table(heads: list[str], rows: TableRows) -> list[str]:
    """Format a table as lines of Markdown."""
    head, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in [heads, *rows]]
    return [head, "|---" * len(heads) + "|", *body]


def latex_table(heads: list[str], rows: TableRows) -> list[str]:
    """Format a table as lines of LaTeX, for the package booktabs."""
    lines = [" & ".join(map(_latex, line)) + r" \\" for line in [heads, *rows]]
    head, *body = [f"{{}}{line}" if line.startswith("[") else line for line in lines]  # not an option of the last \\
    start = rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}"
    return [start, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]


def _latex(cell: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    special |= {"→": r"$\to$", "<": "$<$", ">": "$>$", **{each: f"\\{each}" for each in "&%$#_{}"}}
    return "".join(special.get(each, each) for each in cell)


def figures_of(scores: Scores) -> dict[str, str]:
    """Format a model's scores as table cells, by column name."""
    return {
        "questions": str(scores.n),
        "accuracy": cell(scores.accuracy, scores.intervals.get("accuracy")),
        "greedy accuracy": cell(scores.greedy_accuracy, scores.intervals.get("greedy_accuracy")),
        "lenient accuracy": cell(scores.lenient_accuracy, scores.intervals.get("lenient_accuracy")),
        "adjusted for guessing": cell(scores.guess_adjusted),
        "reward": cell(scores.reward, scores.intervals.get("reward")),
        **{k: cell(share) for k, share in list(scores.pass_at_k.items())[1:]},  # skips pass@1, which is the accuracy
        "tokens per answer": _number(scores.mean_completion_tokens),
        "cut off": cell(scores.truncated),
        "failed calls": str(scores.failed or _NOTHING),
        "left out": str(scores.left_out or _NOTHING),
    }


def columns_of(rows: Sequence[Mapping[str, str]]) -> tuple[list[str], TableRows]:
    """Return a table's header and rows, without empty columns."""
    heads = [head for head in dict.fromkeys(head for row in rows for head in row)
             if {row.get(head, _NOTHING) for row in rows} != {_NOTHING}]  # fmt: skip
    return heads, [[row.get(head, _NOTHING) for head in heads] for row in rows]


def cell(value: float | None, interval: Interval | None = None) -> str:
    """Format a value with its interval, or as a dash if the value is unknown."""
    return _NOTHING if value is None else with_interval(value, interval)


def _parts(results: Results) -> dict[str, list[Scores]]:
    """Return each model's scores over the training tasks and over the held-out tasks. The mapping is empty outside
    training runs."""
    titles: dict[TaskPart, str] = {"training": "training tasks", "held_out": "held-out tasks"}
    parts = {title: [each.parts.get(part) for each in results.models.values()] for part, title in titles.items()}
    return {title: [each for each in found if each] for title, found in parts.items() if None not in found}


def _accuracies(results: Results, limit: int | None) -> TableRows:
    rows = []
    for name, task in results.tasks.items():
        answered = [task.models.get(model) for model in results.models]
        accuracies = [_accuracy(each.scores) if each else _NOTHING for each in answered]
        title = f"{name}{PART_SUFFIXES['held_out']}" if task.part == "held_out" else name
        sizes = [each.scores.n for each in task.models.values()]  # vary if training questions are skipped
        n = f"{min(sizes)} to {max(sizes)}" if len(set(sizes)) > 1 else str(sizes[0])
        rows.append([title, n, cell(task.floor), *accuracies])
    below = [[name, "", "", *cells] for name, cells in _over_tasks(results) if set(cells) != {_NOTHING}]
    return [*_shortened(rows, limit), *below]


def _over_tasks(results: Results) -> Iterator[tuple[str, list[str]]]:
    """Yield rows with means and sums over the tasks. Each row consists of a name and a cell for each model."""
    if parts := _parts(results):
        for title, of_part in parts.items():
            names, figures = columns_of(list(map(figures_of, of_part)))
            yield from ((f"{title}, {name}", cells) for name, *cells in zip(names, *figures, strict=True))
        return
    models = results.models.values()
    scores = [
        [task.models[name].scores for task in results.tasks.values() if name in task.models] for name in results.models
    ]
    if len(results.tasks) > 1:
        yield "macro average", list(map(_accuracy, models))
        for name in sorted({category for each in models for category in each.categories}):
            yield f"category {name}", [cell(each.categories.get(name)) for each in models]
    yield "adjusted for guessing", [cell(each.guess_adjusted) for each in models]
    shown = {"greedy accuracy": "greedy_accuracy", "lenient accuracy": "lenient_accuracy", "reward": "reward"}
    shown |= {name: name for name in list(scores[0][0].pass_at_k)[1:]}  # skips pass@1, which is the accuracy
    for name, figure in shown.items():
        known = [[all_of[figure] for each in of_model if figure in (all_of := each.figures())] for of_model in scores]
        yield name, [cell(fmean(values) if values else None) for values in known]
    left_out = [sum(task.left_out for task in each) for each in scores]
    counts = {"left out": left_out, "failed calls": [each.failed for each in models]}
    yield from ((name, list(map(str, values))) for name, values in counts.items() if any(values))
    yield "answer tokens", [_number(each.usage.completion_tokens) for each in models]
    yield "cost", [_NOTHING if (cost := each.usage.cost) is None else f"{cost:.4g}" for each in models]


def _differences(results: Results) -> TableRows:
    overall = "training tasks" if _parts(results) else "macro average"
    pairs = [(overall, each) for each in results.comparisons] if len(results.tasks) > 1 else []
    pairs += [(name, each) for name, task in results.tasks.items() for each in task.comparisons]
    rows = []
    for task, each in pairs:
        difference = with_interval(each.difference, each.interval, sign=True)
        rows.append([task, f"{each.a} - {each.b}", str(each.n), difference, p_shown(each.p_value)])
    return rows


def _shortened(rows: TableRows, limit: int | None) -> TableRows:
    if limit is None or len(rows) <= limit:
        return rows
    return [*rows[:limit], [f"and {len(rows) - limit} more", *[""] * (len(rows[0]) - 1)]]


def _sampled(results: Results) -> str:
    """Describe the sampling settings, with the names of the tasks if the settings differ between tasks."""
    tasks: dict[EvaluationSampling, list[str]] = {}
    for name, task in results.tasks.items():
        tasks.setdefault(task.sampling, []).append(name)
    return "; ".join(
        each.described + (f" ({', '.join(names)})" if len(tasks) > 1 else "") for each, names in tasks.items()
    )


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def _accuracy(found: Accuracy) -> str:
    """Format an accuracy with its interval, or the mean reward if accuracy was not measured."""
    if found.accuracy is None and isinstance(found, Scores):
        return f"reward {cell(found.reward)}"
    return cell(found.accuracy, found.intervals.get("accuracy"))
