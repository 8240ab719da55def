"""Options and output of `rg-env tasks`: a list of tasks, one task with examples, or the grader audit."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rg_env.core.text import counted
from rg_env.errors import InputError, unknown_name

if TYPE_CHECKING:
    from rg_env.core.grading.audit import Audit

_LEGEND = """
levels:   highest difficulty level, from 0 (`level: 2` in a task's mapping)
draw:     milliseconds to generate a question
distinct: unique questions / questions drawn
gold:     share of questions with a stored answer
constant: accuracy of the best constant answer
`rg-env tasks NAME --show 2` shows one task; `rg-env tasks --audit`: all graders"""

GUESSABLE = 0.3
"""Threshold for the accuracy of the best constant answer, above which the audit's table marks a task."""
_AUDIT = {
    "task": (24, ""),
    "grader": (34, ""),
    "gold": (9, "gold answers that score 1.0"),
    "agrees": (7, "share of honest answers that the library scores alike"),
    "wrapping": (8, "share of harmless variants of gold answers accepted"),
    "constant": (9, f"accuracy of the best constant answer (*: above {GUESSABLE:g})"),
    "exploit": (8, "accuracy of the best reply without solving the question"),
    "partial": (8, "mean score of the best such reply, with partial credit"),
    "keys": (9, "distinct problems / questions drawn"),
    "left out": (8, "questions excluded"),
    "corrected": (9, "stored answers replaced"),
    "draw ms": (8, "milliseconds to draw a question"),
    "grade us": (8, "microseconds to grade an answer"),
}
"""Columns of the audit's table, each with its width and meaning."""


def _aligned(cells: Iterable[str]) -> str:
    """Join the cells of a row of the audit's table. The first two columns are aligned left."""
    padded = zip(cells, (width for width, _ in _AUDIT.values()), strict=True)
    return " ".join(cell.ljust(width) if width > 20 else cell.rjust(width) for cell, width in padded)


AUDIT_HEADER = _aligned(_AUDIT)


def add(commands: Any) -> None:
    """Add `rg-env tasks` to the subcommands."""
    tasks = commands.add_parser(
        "tasks",
        help="list the tasks, show one task, or show the grader audit",
        usage="rg-env tasks [NAME [--level N] [--show N]] [--category C] [--sort BY] [--audit] [--json]",
        examples=[
            "rg-env tasks --category logic --sort constant",
            "rg-env tasks leg_counting --level 3 --show 2",
            "rg-env tasks --json | jq '.[] | select(.levels > 5) | .name'",
        ],
    )
    option = tasks.add_argument
    option("name", nargs="*", metavar="NAME", help="task to show (or several tasks with --audit)")
    option("--category", metavar="C", help="list only tasks in this category")
    columns = ["category", "name", "levels", "draw", "constant"]
    text = f"column to sort the list by, in ascending order: {', '.join(columns)}"
    option("--sort", metavar="BY", choices=columns, default="category", help=text)
    tasks.flag("--json", help="print JSON instead of a table")
    option("--level", type=int, metavar="N", help="difficulty level of the task")
    tasks.number("--show", default=0, help="print N example rows of the task")
    tasks.flag("--audit", help="show the grader audit: gold answers, agreement, exploits")
    tasks.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `rg-env tasks` and return the exit code, which is 1 if the audit found problems."""
    if options.json and (options.audit or options.name):
        raise InputError("--json is for the list of all tasks, without NAME and --audit")
    if options.audit:
        return 0 if show_audit(options.name) else 1
    if len(options.name) > 1:
        raise InputError(f"expected one task, got {len(options.name)} (several are allowed only with --audit)")
    if options.name:
        print(one_task(options.name[0], options.level, options.show))
        return 0
    if options.level is not None or options.show:
        raise InputError("--level and --show require a task name")
    found = records(options.category, options.sort)
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


def records(category: str | None = None, sort: str = "category") -> list[dict[str, Any]]:
    """Return one record for each task in `category` (default: all categories), sorted by the field `sort`.

    Raises:
        UnknownNameError: `category` does not exist.
    """
    from rg_env.core.grading import audit
    from rg_env.core.tasks.task_table import shipped_table

    table, audits = shipped_table(), audit.kept()
    categories = {entry["category"] for entry in table.values()}
    if category not in {None, *categories}:
        raise unknown_name("category", category, categories)
    found = []
    for task, entry in sorted(table.items()):
        measured, levels = audits[task], [len(steps) - 1 for steps in entry["levels"].values()]
        record = {
            "name": task,
            "category": entry["category"],
            "levels": max(levels, default=None),
            "draw_ms": round(measured.draw_ms, 2),
            "distinct": measured.distinct,
            "questions": measured.items,
            "gold": round(1 - measured.without_gold / measured.items, 2),
            "constant": round(measured.constant, 2),
            "grader": _grader_name(task),
            "options": entry["options"],
        }
        if category in (None, record["category"]):
            found.append(record)
    key = "draw_ms" if sort == "draw" else sort
    return sorted(found, key=lambda record: -1 if record[key] is None else record[key])


def table(found: Sequence[dict[str, Any]]) -> str:
    """Format `records` as a table with one line per task."""
    lines = [
        f"{'task':25} {'category':12} {'levels':>6} {'draw':>7} {'distinct':>9} {'gold':>5} {'constant':>8}",
        *(
            f"{each['name']:25} {each['category']:12} {'-' if each['levels'] is None else each['levels']:>6} "
            f"{each['draw_ms']:7.2f} {each['distinct']:>5}/{each['questions']:<3} {each['gold']:5.2f} "
            f"{each['constant']:8.2f}"
            for each in found
        ),
    ]
    return "\n".join([*lines, _LEGEND])


def one_task(name: str, level: int | None = None, show: int = 0, seed: int = 0) -> str:
    """Describe one task: options, levels, audit results and `show` example rows (at `level`, if given).

    Raises:
        UnknownNameError: the task does not exist.
        InputError: the task does not have this level.
    """
    from rg_env.core.data import problem_keys
    from rg_env.core.data.dataset import build_rows
    from rg_env.core.grading import audit
    from rg_env.core.tasks.mixture import Mixture
    from rg_env.core.tasks.task_table import load_table

    gym = {"name": name} if level is None else {"name": name, "level": level}
    (spec,) = Mixture.parse(gym).tasks
    entry, measured = load_table()[spec.name], audit.kept()[spec.name]
    at_level = f" at level {level}" if level is not None else ""
    lines = [f"{spec.name} ({entry['category']}), options and defaults{at_level}:"]
    lines += [f"  {option}: {json.dumps(spec.config.get(option, value))}" for option, value in entry["options"].items()]
    if entry["levels"]:
        lines.append("levels (attribute: highest level):")
        lines += [f"  {attribute}: {len(steps) - 1}" for attribute, steps in entry["levels"].items()]
    lines += [f"  level {broken} does not work: {reason}" for broken, reason in entry["broken_levels"].items()]
    lines += _distinct_lines(spec.name, level)
    lines.append(f"problem key (determines the split): {problem_keys.described(spec.name)}")
    lines.append("measured with the default options:")
    for (column, (_, meaning)), value in [*zip(_AUDIT.items(), _cells(measured), strict=True)][1:]:
        lines += [f"  {column:10} {value:10} {meaning}".rstrip()]
    lines += audit_line(measured).splitlines()[1:]
    for number, row in enumerate(build_rows(gym, "train", show, seed, on_few="cap") if show else [], start=1):
        gold = row["answer"] or "(not stored by the library)"
        lines += ["", f"example {number}:", row["question"].rstrip(), f"answer: {gold}"]
    return "\n".join(lines)


def _distinct_lines(name: str, level: int | None) -> list[str]:
    """Return how many distinct questions a task has, with the default options or at `level`, and at all levels."""
    from rg_env.core.data.dataset import measured
    from rg_env.core.tasks.mixture import Mixture
    from rg_env.core.tasks.task_table import working_levels

    choices: dict[str, dict[str, int]] = {"default options": {}}
    choices |= {f"level {each}": {"level": each} for each in working_levels(name)}
    shown = choices if level is None else {f"level {level}": {"level": level}}
    lines = []
    for what, options in shown.items():
        if found := measured(Mixture.parse({"name": name, **options}).tasks[0]):
            lines.append(f"  {what}: {found.described('train')} to train on, {found.described('eval')} to evaluate on")
    if not lines:
        return []
    rule = "  a larger training split repeats questions, a larger evaluation split is cut"
    return ["distinct questions (splits.on_few):", *lines, rule]


def show_audit(tasks: Sequence[str] = ()) -> bool:
    """Print the shipped audit of `tasks` (default: all) as a table. Return whether all tasks pass.

    Raises:
        UnknownNameError: a task does not exist.
    """
    from rg_env.core.grading import audit
    from rg_env.core.tasks.mixture import Mixture
    from rg_env.core.tasks.task_table import shipped_table

    names, kept = Mixture.parse(list(tasks)).names if tasks else sorted(shipped_table()), audit.kept()
    audits = [kept[name] for name in names]
    legend = [f"  {column}: {meaning}" for column, (_, meaning) in _AUDIT.items() if meaning]
    print(AUDIT_HEADER, *map(audit_line, audits), *legend, sep="\n")

    def total(name: str) -> int:
        return sum(getattr(result, name) for result in audits)

    golds, faulty = total("items") - total("without_gold"), sum(not result.fine for result in audits)
    print(
        f"{len(audits)} tasks: {golds - total('gold_wrong')} of {golds} gold answers score 1.0; on {total('answers')} "
        f"honest answers, the library's graders disagree with ours {total('disagreements')} times in "
        f"{sum(result.disagreements > 0 for result in audits)} tasks ({total('unexplained')} unexplained); "
        f"problems in {counted(faulty, 'task')}"
    )
    guessable = [f"{result.task} {result.constant:.2f}" for result in audits if result.constant > GUESSABLE]
    if guessable:
        print(
            f"* tasks in which a constant answer is correct for more than {GUESSABLE:.0%} of rows: "
            f"{', '.join(guessable)}"
        )
    return all(result.fine for result in audits)


def _grader_name(task: str) -> str:
    """Return a task's grader as "module.function"."""
    from rg_env.core.grading.graders import GRADERS

    grader = GRADERS[task]
    return f"{grader.__module__.rpartition('.')[2]}.{grader.__name__}"


def _cells(result: "Audit") -> list[str]:
    """Return a task's cells in the audit's table. A constant answer with an accuracy above `GUESSABLE` has a `*`."""
    golds = result.items - result.without_gold
    return [
        result.task,
        _grader_name(result.task),
        f"{golds - result.gold_wrong}/{golds}",
        f"{result.agreement:.3f}",
        f"{result.wrapping:.2f}",
        f"{result.constant:.2f}{'*' if result.constant > GUESSABLE else ' '}",
        f"{result.exploit:.2f}",
        f"{result.partial:.2f}",
        f"{result.problem_keys}/{result.items}",
        str(result.left_out),
        str(result.corrected),
        f"{result.draw_ms:.2f}",
        f"{result.grade_us:.1f}",
    ]


def audit_line(result: "Audit") -> str:
    """Return a task's line in the table under `AUDIT_HEADER`, followed by the rejected variants, the best replies and
    the kinds of disagreement."""
    lines = [_aligned(_cells(result))]
    notes = {
        "wrapping refused": ", ".join(result.wrapping_refused),
        "constant": result.constant_reply,
        "exploit": result.exploit_reply,
        "partial": result.partial_reply if result.partial_reply != result.exploit_reply else "",
        f"solved by ({result.solution:.2f})": result.solution_reply,
    }
    lines += [f"         {name}: {text}" for name, text in notes.items() if text]
    for kind in result.kinds.values():
        lines += [f"    {kind['count']:4} of {result.answers}: {kind['why']}", f"         example: {kind['example']}"]
    return "\n".join(lines)
