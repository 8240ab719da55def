"""Verdicts on answers of real models, whose file is not part of the project.

RG_ENV_REAL_ANSWERS=FILE .venv/bin/python tests/helpers/real_answers.py     # updates tests/data/real_answers.yaml
"""

import hashlib
import json
import lzma
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.grading.scoring import CORRECT_FROM, Rollout, Score
from rg_env.core.tasks.library_fixes import left_out

ROOT = Path(__file__).parents[2]
FILE = Path(os.environ.get("RG_ENV_REAL_ANSWERS") or ROOT.parent / "shared/real_answers/real_answers.jsonl.xz")
KINDS = ROOT / "tests/data/real_answers.yaml"
MAX_CPU_S = 0.05


@dataclass
class Verdicts:
    """Our verdicts on all answers to one task."""

    replies: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Numbers of replies that are graded differently from the published score: `refused` or `paid`, followed by
    `, left out` for questions that never become rows."""
    digest: Any = field(default_factory=hashlib.sha256)
    failed: list[str] = field(default_factory=list)
    """Answers that are ungradable or took more than `MAX_CPU_S` seconds of CPU time."""

    def add(self, answer: str, count: int, published: bool, score: Score, is_left_out: bool) -> None:
        correct = score.value >= CORRECT_FROM
        self.replies += count
        self.digest.update(f"{answer}\0{correct}\n".encode("utf-8", "surrogatepass"))
        if published != correct:
            kind = ("paid" if correct else "refused") + (", left out" if is_left_out else "")
            self.kinds[kind] = self.kinds.get(kind, 0) + count

    def recorded(self) -> dict[str, Any]:
        return {"replies": self.replies, "verdicts": self.digest.hexdigest()[:16], **dict(sorted(self.kinds.items()))}


def questions() -> Iterator[dict[str, Any]]:
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def verdicts() -> dict[str, Verdicts]:
    """Grade all answers, by task."""
    found: dict[str, Verdicts] = {}
    for question in questions():
        task, entry = question["task"], question["entry"]
        of_task = found.setdefault(task, Verdicts())
        info = {"rg_task": task, "config": json.dumps(question["config"]), "entry": json.dumps(entry)}
        outside = question["built"] != "rebuilt" and bool(left_out(task, entry))
        for answer, count, published, _ in question["answers"]:
            score, seconds = graded(answer, str(entry["answer"] or ""), info)
            for _ in range(3):  # the first answer of a task may import packages
                if seconds > MAX_CPU_S:
                    seconds = min(seconds, graded(answer, str(entry["answer"] or ""), info)[1])
            of_task.add(answer, count, max(published) >= CORRECT_FROM, score, outside)
            if seconds > MAX_CPU_S or score.status in ("ungradable", "timed_out"):
                of_task.failed.append(f"{score.status} in {seconds:.3f} s ({score.detail}): {answer[:200]!r}")
    return found


def graded(answer: str, gold: str, info: Mapping[str, Any]) -> tuple[Score, float]:
    start = time.thread_time()
    score = Rollout("", f"<answer>{answer}</answer>", gold, info).score
    return score, time.thread_time() - start


def main() -> None:
    recorded = yaml.safe_load(KINDS.read_text()) if KINDS.exists() else {"reasons": {}}
    recorded["tasks"] = {task: each.recorded() for task, each in sorted(verdicts().items())}
    head = (
        "# Our verdicts on answers of real models, compared with the published scores: tests/helpers/real_answers.py\n"
    )
    KINDS.write_text(head + yaml.safe_dump(recorded, sort_keys=False, allow_unicode=True, width=120))


if __name__ == "__main__":
    main()
