"""The frozen questions of an evaluation's tasks, and which of them a model must not be asked.

questions = draw("maze", {"name": "maze", "level": 2}, n=100, seed=0, prompt=PromptConfig())
questions.messages(0, None)        # the chat that puts the first one
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rg_env.core.config.parsing import PromptConfig
from rg_env.core.data.dataset import build_rows
from rg_env.core.data.manifest import make_manifest, split_hash
from rg_env.core.data.selection import Row
from rg_env.core.data.splits import SplitBy, question_hash
from rg_env.core.grading.scoring import Grading, in_worker, score
from rg_env.core.prompts import Messages, build_messages
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import InputError

_CONSTANTS = 3
"""The most frequent gold answers that are tried as a constant one."""
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TaskQuestions:
    """What is asked of one task."""

    name: str
    """The task's, or its label."""
    spec: dict[str, Any]
    """As `Mixture.parse` takes it."""
    seed: int
    rows: list[Row]
    """Their `info` says how they are graded."""
    prompt: PromptConfig
    manifest: dict[str, Any]
    floor: float | None
    """Accuracy of the best constant answer; None where code of the user's or the library's grades."""

    @cached_property
    def hashes(self) -> list[str]:
        """Of each question."""
        return [question_hash(row["question"]) for row in self.rows]

    @property
    def problems(self) -> list[str]:
        """The key of what each question asks."""
        return [row["info"]["problem"] for row in self.rows]

    @property
    def category(self) -> str:
        return load_table()[self.spec["name"]]["category"]

    @property
    def manifest_sha256(self) -> str:
        return split_hash(self.manifest, "eval")

    @property
    def prompts_sha256(self) -> str:
        """Of questions, gold answers and messages, for models without a system prompt of their own."""
        digest = hashlib.sha256()
        for number, row in enumerate(self.rows):
            digest.update(json.dumps([row["answer"], self.messages(number, None)]).encode())
        return digest.hexdigest()

    def messages(self, number: int, system_prompt: str | None) -> Messages:
        """The chat that puts a question. `system_prompt`: a model's own; None: the one of all."""
        prompt = self.prompt
        text = prompt.system_prompt if system_prompt is None else system_prompt
        return build_messages(self.rows[number]["question"], text, prompt.placement, preamble=prompt.preamble)


@dataclass(frozen=True)
class Trained:
    """What a model was trained on, as far as the manifest of its run tells."""

    questions: frozenset[str] = frozenset()
    """Hashes of questions."""
    problems: frozenset[str] = frozenset()
    """Keys of the problems that they ask; none where the manifest is of a release that kept none."""

    def among(self, task: TaskQuestions) -> frozenset[str]:
        """Hashes of the questions of `task` that it was trained on, in these or in other words."""
        asked = zip(task.hashes, task.problems, strict=True)
        return frozenset(each for each, problem in asked if each in self.questions or problem in self.problems)


def draw(
    name: str,
    spec: dict[str, Any],
    n: int,
    seed: int,
    prompt: PromptConfig,
    grading: Grading,
    split_by: SplitBy = "problem",
) -> TaskQuestions:
    """`n` questions of the evaluation split, the same ones everywhere.

    Raises:
        InputError: options that the library refuses; the task has fewer questions.
        GenerationError: a draw takes too long.
    """
    mixture = Mixture.parse(spec)
    drawn = build_rows(mixture, "eval", n, seed, split_by=split_by)
    rows: list[Row] = [{**row, "info": {**row["info"], "grading": grading}} for row in drawn]
    manifest = make_manifest(mixture, {"eval": (rows, seed)}, split_by)
    floor = None if in_worker(mixture.names[0], grading) else _floor(rows)
    return TaskQuestions(name, spec, seed, rows, prompt, manifest, floor)


def _floor(rows: list[Row]) -> float:
    golds = Counter(row["answer"] for row in rows if row["answer"].strip())
    shares = [
        sum(score(f"<answer>{gold}</answer>", row["info"]).status == "correct" for row in rows) / len(rows)
        for gold, _ in golds.most_common(_CONSTANTS)
    ]
    return max(shares, default=0.0)


def trained_on(model: str) -> Trained:
    """What a checkpoint of ours was trained on, by the manifest of its run; empty for others.

    By construction none of it is among evaluation questions, unless they were divided otherwise (`split_by`) than those
    of the run, or somebody made rows of their own.

    Raises:
        InputError: the manifest is damaged: there is no telling.
    """
    folder = Path(model)
    for each in (folder, folder.absolute().parent):
        file = each / _MANIFEST
        if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
            try:
                text = file.read_text(encoding="utf-8")
            except OSError:  # no run of ours
                continue
            try:
                rows = json.loads(text)["rows"]
                train = {"question_hashes": []} if rows is None else rows["splits"]["train"]
                return Trained(frozenset(train["question_hashes"]), frozenset(train.get("problems", ())))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f"{file} is damaged: what {model} was trained on cannot be left out") from error
    return Trained()
