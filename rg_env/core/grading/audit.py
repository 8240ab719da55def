"""What was measured of each task's grader, as shipped in `task_audit.json`: `kept`, and a line a task to print.

    rg-env tasks --audit

The measurement needs a checkout of the repository: `tools/grader_audit.py` makes it, and writes the file.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rg_env.core.grading.graders import GRADERS

PATH = Path(__file__).with_name("task_audit.json")
GUESSABLE = 0.3
"""Tasks in which one fixed answer is right more often are marked in the table."""


@dataclass
class Audit:
    """What was measured on one task."""

    task: str
    items: int = 0
    """Questions drawn."""
    distinct: int = 0
    """Different ones among them."""
    problem_keys: int = 0
    """Different problems among them, with wording, names and order taken out where they do not matter."""
    left_out: int = 0
    """Draws that gave no question, such as one with two answers; `library_fixes.LEFT_OUT` has the reasons."""
    corrected: int = 0
    """Questions that the library stores a wrong answer to: the right one is paid instead (`graders.gold.corrected`)."""
    without_gold: int = 0
    """Questions that the library stores no answer to, or none that follows."""
    gold_wrong: int = 0
    """Gold answers that do not score 1.0."""
    answers: int = 0
    """Honest answers graded by both, ours and the library's."""
    disagreements: int = 0
    """Those that our grader and the library's do not both call right, or both wrong."""
    unexplained: int = 0
    """Those among them that are of no known kind."""
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The others by kind: `count`, `why` the library is wrong, and the first one as `example`."""
    dress: float = 0.0
    """Share of the harmless forms of gold answers that are accepted, such as a box or bold type around one."""
    dress_refused: list[str] = field(default_factory=list)
    """Those that are refused for some answer, because they change its meaning or are for single values only."""
    rows: int = 0
    """Evaluation rows that the shares below were measured on. All were chosen on training rows."""
    constant: float = 0.0
    """Share of the rows that the best constant answer is right on."""
    constant_reply: str = ""
    """The best constant answer."""
    exploit: float = 0.0
    """Share of the rows that the best reply is right on which is made from the question's text without solving it."""
    exploit_reply: str = ""
    """How that reply is made."""
    partial: float = 0.0
    """Mean value of the best such reply with partial credit."""
    partial_reply: str = ""
    """How that one is made."""
    solution: float = 0.0
    """Share of the rows that the best copy or calculation is right on which is what the question asks for."""
    solution_reply: str = ""
    """How it is made, and why that solves the task; empty where none was found."""
    draw_ms: float = 0.0
    """Mean time to draw a question."""
    grade_us: float = 0.0
    """Mean time to grade an honest answer."""
    examples: list[str] = field(default_factory=list)
    """Some that are unexplained, for people."""

    @property
    def agreement(self) -> float:
        """Share of honest answers on which both graders agree."""
        return 1 - self.disagreements / max(1, self.answers)

    @property
    def fine(self) -> bool:
        """All gold answers are right, and every disagreement is explained."""
        return not self.gold_wrong and not self.unexplained


def kept(path: Path = PATH) -> dict[str, Audit]:
    """The audits as shipped with the package."""
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {task: Audit(task, **row) for task, row in rows.items()}


HEADER = (
    f"{'task':24} {'grader':34} {'gold':>9} {'agrees':>7} {'dress':>6} {'constant':>9} {'exploit':>8} {'partial':>8} "
    f"{'keys':>9} {'left out':>8} {'corrected':>9} {'draw ms':>8} {'grade us':>8}"
)


def grader_name(task: str) -> str:
    """Module and function of a task's grader."""
    grader = GRADERS[task]
    return f"{grader.__module__.rpartition('.')[2]}.{grader.__name__}"


def line(result: Audit) -> str:
    """One line of the table, under `HEADER`; below it the best cheap replies, and what the library grades otherwise.

    A constant that is right on more than `GUESSABLE` of the rows is marked with `*`.
    """
    golds = result.items - result.without_gold
    right = f"{golds - result.gold_wrong}/{golds}"
    mark = "*" if result.constant > GUESSABLE else " "
    keys = f"{result.problem_keys}/{result.items}"
    lines = [
        f"{result.task:24} {grader_name(result.task):34} {right:>9} {result.agreement:7.3f} {result.dress:6.2f} "
        f"{result.constant:8.2f}{mark} {result.exploit:8.2f} {result.partial:8.2f} {keys:>9} {result.left_out:8} "
        f"{result.corrected:9} {result.draw_ms:8.2f} {result.grade_us:8.1f}"
    ]
    notes = {
        "dress refused": ", ".join(result.dress_refused),
        "constant": result.constant_reply,
        "exploit": result.exploit_reply,
        "partial": result.partial_reply if result.partial_reply != result.exploit_reply else "",
        f"solved by ({result.solution:.2f})": result.solution_reply,
    }
    lines += [f"         {name}: {text}" for name, text in notes.items() if text]
    for kind in result.kinds.values():
        lines += [f"    {kind['count']:4} of {result.answers}: {kind['why']}", f"         so {kind['example']}"]
    return "\n".join(lines)
