"""Measurements of each task's grader, shipped as `task_audit.json`. `rg-env tasks --audit` prints them.

`tools/audit`, which requires a checkout of the repository, takes the measurements and writes `task_audit.json`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AUDIT_FILE = Path(__file__).with_name("task_audit.json")


@dataclass
class Audit:
    """One task's measurements."""

    task: str
    items: int = 0
    """Number of questions drawn, not counting `left_out`."""
    distinct: int = 0
    """Number of distinct questions among `items`."""
    problem_keys: int = 0
    """Number of distinct problems among `items`. Questions that differ only in irrelevant wording, names or order count
    as one problem."""
    left_out: int = 0
    """Number of other questions drawn but excluded, for example because they have two possible answers.
    `library_fixes.LEFT_OUT` lists the reasons."""
    corrected: int = 0
    """Number of questions with a wrong stored answer, which `graders.gold.corrected` replaces."""
    without_gold: int = 0
    """Number of questions whose gold answer is unknown because the library stores no answer or an unusable one."""
    gold_wrong: int = 0
    """Number of gold answers that do not score 1.0."""
    answers: int = 0
    """Number of honest answers (gold answers, small edits to them, and gold answers to other questions) graded by both
    our grader and the library's."""
    disagreements: int = 0
    """Number of `answers` on which the two graders disagree."""
    unexplained: int = 0
    """Number of unexplained `disagreements`."""
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Explained disagreements by kind. Each kind has a `count`, the reason `why` the library is wrong, and an
    `example`."""
    wrapping: float = 0.0
    """Fraction of harmless variants of gold answers (such as boxed or bold ones) that are accepted."""
    wrapping_refused: list[str] = field(default_factory=list)
    """Variants rejected for some answers because they change the meaning or apply only to single values."""
    rows: int = 0
    """Number of evaluation rows used to score the best replies, which were selected on training rows."""
    constant: float = 0.0
    """Accuracy of the best constant answer."""
    constant_reply: str = ""
    """The best constant answer."""
    exploit: float = 0.0
    """Accuracy of the best reply that is derived from the question's text but does not solve the question."""
    exploit_reply: str = ""
    """Description of the `exploit` reply."""
    partial: float = 0.0
    """Mean score, with partial credit, of the best reply that is derived from the question's text but does not solve
    the question."""
    partial_reply: str = ""
    """Description of the `partial` reply."""
    solution: float = 0.0
    """Accuracy of the best reply that solves the task by copying from the question's text or calculating from it."""
    solution_reply: str = ""
    """Description of the `solution` reply and the reason it solves the task, or "" if no such reply was found."""
    draw_ms: float = 0.0
    """Mean time to draw a question, in milliseconds."""
    grade_us: float = 0.0
    """Mean time to grade an honest answer, in microseconds."""
    examples: list[str] = field(default_factory=list)
    """Examples of unexplained disagreements, for manual inspection."""

    @property
    def agreement(self) -> float:
        """Fraction of honest answers on which both graders agree."""
        return 1 - self.disagreements / max(1, self.answers)

    @property
    def fine(self) -> bool:
        """Whether all gold answers are right and every disagreement is explained."""
        return not self.gold_wrong and not self.unexplained


def kept(path: Path = AUDIT_FILE) -> dict[str, Audit]:
    """Return the audits shipped with the package, by task."""
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {task: Audit(task, **row) for task, row in rows.items()}
