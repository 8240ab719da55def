"""A comparison as a table: on the console, and as `comparison.md`."""

import errno
import json
import os
import re
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rg_env.core.run_folder import write_aside
from rg_env.core.text import short_keys, shown
from rg_env.jobs.sweep.comparison import Comparison, Figure
from rg_env.jobs.sweep.outcome import FINISHED

_HEADS = {
    "accuracy_before": ("accuracy before", 2),
    "accuracy_after": ("accuracy after", 2),
    "greedy_after": ("greedy after", 2),
    "reward_after": ("reward after", 2),
    "held_out_after": ("held-out after", 2),
    "tokens_after": ("tokens after", 1),
    "seconds": ("seconds", 1),
}
"""Head and decimals of each figure."""
_MOST_VALUE = 40
"""Characters of a value; comparison.json has it whole."""
LEGEND = "Means over finished runs ± half of the 95 % t-interval: over seeds, or of a single run over its questions."


class _Console(Console):
    """Leaves it to the command what becomes of an output that nobody reads; rich ends the program with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the table, and which runs are not in it."""
    console = console or _Console(highlight=False)
    heads, rows = _cells(comparison)
    table = _table(heads, rows, names=len(comparison.keys))
    if _width(table, console) > console.width:  # rather a column a group
        table = _table([], [list(column) for column in zip(heads, *rows, strict=True)], names=1)
    console.print(f"Sweep [bold]{escape(str(comparison.folder))}[/]", soft_wrap=True)
    console.width = max(console.width, _width(table, console))  # no figure is cut
    console.print(table)
    for line in [LEGEND, *comparison.notes, *_missing(comparison)]:
        console.print(escape(line), soft_wrap=True)


def _width(table: Table, console: Console) -> int:
    """Columns that the table takes where there is room."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(heads: list[str], rows: list[list[str]], names: int) -> Table:
    """The first `names` columns tell what a row is about."""
    table = Table(box=box.SIMPLE, show_header=bool(heads))
    for number in range(len(rows[0])):
        head = escape(heads[number]) if heads else ""
        table.add_column(head, justify="left" if number < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def markdown(comparison: Comparison) -> str:
    """The same as Markdown."""
    heads, rows = _cells(comparison)
    lines = [f"# Sweep {_cell(comparison.folder.name)}", ""]
    lines += [_line(heads, _cell), "|" + "---|" * len(comparison.keys) + "---:|" * (len(heads) - len(comparison.keys))]
    lines += [_line(row, _cell) for row in rows]
    lines += ["", LEGEND, *comparison.notes]
    if missing := _missing(comparison):
        lines += ["", *(f"- {_cell(line)}" for line in missing)]
    return "\n".join(lines) + "\n"


def write_table(comparison: Comparison) -> None:
    """Write `comparison.json` and `comparison.md` into the folder of the sweep."""
    text = json.dumps(comparison.as_json(), indent=1, ensure_ascii=False) + "\n"
    for name, content in (("comparison.json", text), ("comparison.md", markdown(comparison))):
        write_aside(comparison.folder / name, content)


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows. A figure that no group has is left out."""
    names = [name for name in _HEADS if any(name in group.figures for group in comparison.groups)]
    labels = short_keys(comparison.keys)
    columns = {key: _told_apart([group.values[key] for group in comparison.groups]) for key in labels}
    heads = [*labels.values(), *(_HEADS[name][0] for name in names), "finished", "± over"]
    rows = [
        [
            *(columns[key][row] for key in labels),
            *(_figure(group.figures.get(name), _HEADS[name][1]) for name in names),
            f"{len(group.finished)} of {len(group.runs)}",
            group.over,
        ]
        for row, group in enumerate(comparison.groups)
    ]
    return heads, rows


def _told_apart(values: list[object]) -> list[str]:
    """Each value in a few characters; where different ones look the same, such as long prompts, with a number before
    it, by the order of the values."""
    texts, known = [shown(value) for value in values], [json.dumps(value, sort_keys=True) for value in values]
    half = _MOST_VALUE // 2
    cut = [text if len(text) <= _MOST_VALUE else f"{text[: half - 3]} ... {text[-half + 2 :]}" for text in texts]
    if len(set(cut)) == len(set(known)):
        return cut
    numbers = {each: number for number, each in enumerate(dict.fromkeys(known), 1)}
    return [f"{numbers[each]}: {text}" for each, text in zip(known, cut, strict=True)]


def _figure(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "–"
    half = "" if figure.half_width is None else f" ± {figure.half_width:.{digits}f}"
    return f"{figure.mean:.{digits}f}{half}"


def _missing(comparison: Comparison) -> list[str]:
    """A line for each run that has not finished, with its number."""
    return [
        f"not in the table: {run.number} {run.name}: {run.status}{f' ({run.reason})' if run.reason else ''}"
        for run in comparison.runs
        if run.status != FINISHED
    ]


def _line(cells: list[str], form: Callable[[str], str]) -> str:
    return f"| {' | '.join(map(form, cells))} |"


def _cell(text: str) -> str:
    """Text that Markdown shows to the letter, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
