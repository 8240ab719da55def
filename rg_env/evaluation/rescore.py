"""Grade existing replies to Reasoning Gym's questions.

    score = grade("gcd", entry, "so it is <answer>4</answer>")
    results, folder = score_replies(Path("replies.jsonl"))

The results have the format of an evaluation (`evaluation.results`), so that the commands for evaluations work on them.
Questions that rg_env leaves out of its rows (`core.tasks.library_fixes.left_out`) are graded too, but as a separate
task that overall figures do not include.

A question without its entry is looked up among those that the library generates for the config with its `seed`. If it
is not among them, because it was made by another release, the reply is graded by the gold answer in the file where that
is enough for the grader, and is otherwise `ungradable`.
"""

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from rg_env.core.data.library_entries import entries_for
from rg_env.core.data.splits import question_hash
from rg_env.core.files import opened_to_append
from rg_env.core.grading.extraction import extract, is_completion
from rg_env.core.grading.scoring import Grading, Rollout, Score, lenient_correct, score_extraction
from rg_env.core.run_folder import free_folder, locked, removed_on_error
from rg_env.core.tasks.library_fixes import left_out
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.text import plain, shortened
from rg_env.errors import InputError, unknown_name
from rg_env.evaluation import results as schema
from rg_env.evaluation.questions import ROLLOUTS, Answer
from rg_env.evaluation.replies import GivenReply, read_replies
from rg_env.evaluation.results import Results, TaskResults, Usage, summary_of
from rg_env.evaluation.scores import compared, scores_from, write_results

LEFT_OUT = " left out"
"""Suffix of the names of tasks whose questions rg_env leaves out."""
_NOTES = 30
_logger = logging.getLogger("rg_env.core.grading.scoring")
_Key = tuple[str, str]
"""Task and config as JSON."""


def grade(
    task: str,
    entry_or_question: Mapping[str, Any] | str,
    reply: Any,
    config: Mapping[str, Any] | None = None,
    *,
    grading: Grading = "hardened",
) -> Score:
    """Grade one reply to a question of a Reasoning Gym task.

    Args:
        entry_or_question: the library's entry (with `question`, `answer` and `metadata`), or the text of a question
            that the library generates for `config`, which must then contain the library's `seed`.
        reply: the reply's text, with the answer in `<answer>` tags, or messages that end with it.
        config: the task's options, for the graders that depend on them.

    Raises:
        InputError: the task or the question is unknown, or the entry is not a library entry.
    """
    if task not in load_table():
        raise unknown_name("task", task, load_table())
    if not isinstance(config, Mapping | None):
        raise InputError(f"config must be a mapping of the task's options, not {shortened(config)}")
    if not is_completion(reply):
        raise InputError(f"a reply must be text, or messages with one of the assistant, not {shortened(reply)}")
    config = plain(dict(config or {}))
    if isinstance(entry_or_question, str):
        if type(config.get("seed")) is not int:
            raise InputError("a question without its entry needs the library's seed, such as config={'seed': 42}")
        entry = entries_for(task, config, [entry_or_question]).get(entry_or_question.strip())
        if entry is None:
            raise InputError(
                f"reasoning-gym {version('reasoning-gym')} does not generate this question of {task} with {config}: "
                "pass its entry"
            )
    else:
        entry = _checked(entry_or_question, "the entry")
    return score_extraction(extract(reply), _info(task, json.dumps(config), entry, grading))


def _checked(entry: object, where: str) -> dict[str, Any]:
    if isinstance(entry, Mapping) and "answer" in entry and isinstance(entry.get("metadata"), Mapping):
        return dict(entry)
    own = isinstance(entry, Mapping) and "info" in entry
    advice = ": for a row of an environment, use env.score([env.rollout(row, reply)])" if own else ""
    raise InputError(
        f"{where} must be an item of the library with question, answer and metadata, not {shortened(entry)}{advice}"
    )


def _info(task: str, config: str, entry: Mapping[str, Any], grading: Grading) -> dict[str, Any]:
    from rg_env.core.tasks.library import to_plain

    text = json.dumps(entry, default=to_plain)
    return {"rg_task": task, "config": config, "entry": text, "grading": grading}


@dataclass
class _Question:
    """A question with its entry, and the replies to it."""

    number: int
    hash: str
    entry: Mapping[str, Any]
    info: dict[str, Any]
    left_out: str
    problem: str = ""
    """Why replies cannot be graded, if the question has no complete entry and its task's grader needs one."""
    replies: Counter[str] = field(default_factory=Counter)
    """Number of replies so far, by model."""


_COMPLETED: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "polynomial_multiplication": lambda answer: {"variables": sorted(set(re.findall("[A-Za-z]", answer)))},
    "spiral_matrix": lambda answer: {"solution": list(map(int, re.findall(r"-?\d+", answer))), "matrix": []},
}
"""The metadata that a task's grader needs, from the gold answer of another release's question."""


class _Lookup:
    """The entries of all questions in the files that do not come with their entries."""

    def __init__(self, path: Path, task: str | None) -> None:
        wanted: dict[_Key, dict[str, None]] = {}
        self.total = 0
        for given in read_replies(path, task):
            self.total += 1
            if given.entry is None and "seed" in given.config:
                wanted.setdefault(_key(given), {})[given.question or ""] = None
        self._wanted = wanted
        self.found: dict[_Key, dict[str, dict[str, Any]]] = {}
        self.failed: dict[_Key, str] = {}

    def run(self, progress: Progress) -> None:
        if not self._wanted:  # "entries 0 of 0" would be confusing
            return
        bar = progress.add_task("entries", total=len(self._wanted))
        with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
            futures = {pool.submit(entries_for, task, json.loads(config), questions): (task, config)
                       for (task, config), questions in self._wanted.items()}  # fmt: skip
            for future, key in futures.items():
                try:
                    self.found[key] = future.result()
                except InputError as error:
                    self.found[key], self.failed[key] = {}, str(error)
                progress.advance(bar)

    def entry(self, given: GivenReply) -> tuple[Mapping[str, Any], str]:
        """Return a question's entry, and why it is incomplete or ""."""
        if given.entry is not None:
            return _checked(given.entry, f"{given.where}: entry"), ""
        found = self.found.get(_key(given), {})
        if given.index is not None and given.question is None:
            entry = next((each for each in found.values() if each["metadata"].get("source_index") == given.index), None)
        else:
            entry = found.get((given.question or "").strip())
        if entry is not None:
            return entry, ""
        why = self.failed.get(_key(given)) or (
            f"reasoning-gym {version('reasoning-gym')} does not generate this question with this config"
            if "seed" in given.config
            else "the row has neither the question's entry nor the library's seed"
        )
        metadata = _COMPLETED.get(given.task, lambda answer: {})(given.answer or "")
        return {"question": given.question or "", "answer": given.answer, "metadata": metadata}, why


def _key(given: GivenReply) -> _Key:
    return given.task, json.dumps(given.config, sort_keys=True)


_Tallies = dict[str, dict[str, dict[str, list[Answer]]]]
"""Answers by task, model and question hash."""


def score_replies(
    path: Path,
    *,
    task: str | None = None,
    grading: Grading = "hardened",
    lenient: bool = False,
    output_dir: str | None = None,
    console: Console | None = None,
) -> tuple[Results, Path]:
    """Grade the replies in a file or folder, and write `rollouts.jsonl` and the results files.

    Args:
        task: task of rows that do not name one.
        lenient: whether answers without tags are also graded (`extraction.extract_lenient`), in separate figures.
        output_dir: output folder. The default is a new folder under outputs/.

    Raises:
        InputError: a file cannot be read, or a row lacks a necessary column.
        OutputFolderError: the folder already contains files, or is not writable.
    """
    if task is not None and task not in load_table():
        raise unknown_name("task", task, load_table())
    folder = free_folder(output_dir, f"score-{path.stem}", remedy="choose another --output-dir", resume="", create=True)
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description} {task.completed:,.0f}"),
        TextColumn("of {task.total:,.0f}"),
        TimeElapsedColumn(),
    )
    tallies: _Tallies = {}
    questions: dict[tuple[str, str, str], _Question] = {}
    ungraded = Counter[str]()
    with ExitStack() as stack, removed_on_error(folder), _quiet():
        lookup = _Lookup(path, task)
        if not lookup.total:
            raise InputError(f"{path} contains no replies")
        progress = stack.enter_context(Progress(*columns, console=console))
        lookup.run(progress)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, empty=True))
        bar = progress.add_task("replies", total=lookup.total)
        with _removed_if_partial(folder / ROLLOUTS), opened_to_append(folder / ROLLOUTS) as file:
            for given in read_replies(path, task):
                record = _record(given, questions, lookup, grading, lenient)
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
                if record["status"] == "ungradable":
                    ungraded[f"{given.task}: {record['detail']}"] += 1
                else:
                    of_model = tallies.setdefault(record["task"], {}).setdefault(given.model, {})
                    of_model.setdefault(record["row"], []).append(Answer.of(record))
                progress.advance(bar)
        notes = [f"not graded, and not counted: {n:,} of {why}" for why, n in ungraded.most_common(_NOTES)]
        if not tallies:
            raise InputError(f"no reply could be graded; {'; '.join(notes)}")
        results = _results(tallies, path, grading, notes)
        from rg_env.evaluation.plots.results import plot_results

        files = write_results(results, folder)
        plot_results(results, files[""].with_name(f"summary_{files[''].stem.removeprefix('results_')}.png"))
    return results, folder


@contextmanager
def _removed_if_partial(file: Path) -> Iterator[None]:
    """Remove the file on an error, so that the same command can be repeated."""
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about single ungradable answers, which are counted instead."""
    level = _logger.level
    _logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _logger.setLevel(level)


def _record(
    given: GivenReply,
    questions: dict[tuple[str, str, str], _Question],
    lookup: _Lookup,
    grading: Grading,
    lenient: bool,
) -> dict[str, Any]:
    question = _question(given, questions, lookup, grading)
    rollout = Rollout("", given.text, str(question.entry["answer"] or ""), question.info)
    if question.problem:
        rollout.with_score(Score(0.0, rollout.extraction.answer, "ungradable", given.task, question.problem))
    score = rollout.score
    correct = score.status == "correct"
    k = question.replies[given.model]
    question.replies[given.model] += 1
    return {
        "model": given.model,
        "task": given.task + (LEFT_OUT if question.left_out else ""),
        "draw": "sampled",
        "row": question.hash,
        "problem": question.number,
        "rollout": k,
        "question": question.entry["question"],
        "answer": question.entry["answer"],
        "completion": given.text,
        "completion_tokens": None,
        "truncated": None,
        "extracted": score.answer,
        "score": score.value,
        "correct": correct,
        **({"lenient": lenient_correct(rollout)} if lenient else {}),
        "published": given.published,
        "reward": score.value,
        "rewards": {"correctness": score.value},
        "status": score.status,
        "detail": score.detail or question.left_out,
        "error": None,
    }


def _question(
    given: GivenReply, questions: dict[tuple[str, str, str], _Question], lookup: _Lookup, grading: Grading
) -> _Question:
    text = given.question or f"index {given.index}"
    if given.entry is not None:
        text = str(given.entry.get("question"))
    key = (*_key(given), text)
    if (known := questions.get(key)) is None:
        entry, problem = lookup.entry(given)
        options = {name: value for name, value in given.config.items() if name not in ("seed", "size")}
        excluded = ""
        if not problem and not is_user_task(given.task):
            try:
                excluded = left_out(given.task, entry)
            except (KeyError, TypeError, ValueError):
                problem = "the entry lacks metadata"
        info = _info(given.task, json.dumps(options), entry, grading)
        if problem and _is_enough(info, str(entry.get("answer") or "")):
            problem = ""
        known = questions[key] = _Question(
            len(questions),
            question_hash(str(entry.get("question"))),
            {"question": entry.get("question"), "answer": entry.get("answer")},
            info,
            excluded,
            problem,
        )
    return known


def _is_enough(info: Mapping[str, Any], gold: str) -> bool:
    """Whether an entry without metadata is enough to grade right and wrong answers alike."""
    probes = [gold, gold[::-1], f"{gold} {gold}", f"{gold}1", "0", "-17.5", "x", "[1, 2]", "1 2\n3 4"]
    statuses = [Rollout("", f"<answer>{probe}</answer>", gold, info).score.status for probe in probes]
    return statuses[0] == "correct" and "ungradable" not in statuses


def _results(tallies: _Tallies, path: Path, grading: Grading, notes: list[str]) -> Results:
    models = list(dict.fromkeys(model for answers in tallies.values() for model in answers))
    tasks: dict[str, TaskResults] = {}
    for name in sorted(tallies):
        task, answers = name.removesuffix(LEFT_OUT), tallies[name]
        hashes = sorted({row for of_model in answers.values() for row in of_model})
        found = TaskResults(
            task=name,
            part="labelled" if name.endswith(LEFT_OUT) else None,
            spec={"name": task},
            category=load_table()[task]["category"],
            questions=schema.QuestionSet(
                n=len(hashes),
                seed=None,
                manifest_sha256=None,
                prompts_sha256=hashlib.sha256("".join(hashes).encode()).hexdigest(),
            ),
            sampling=schema.EvaluationSampling(
                known=False,
                rollouts_per_example=max(len(each) for rows in answers.values() for each in rows.values()),
            ),
            system_prompt=None,
            grading=grading,
            floor=None,
            models={
                model: schema.ModelResult(
                    source=str(path),
                    kind="replies",
                    engine="replies",
                    system_prompt=None,
                    scores=scores_from(list(answers[model].values())),
                    usage=Usage(prompt_tokens=None, completion_tokens=None, cost=None),
                    correct={row: [bool(each.correct) for each in found_] for row, found_ in answers[model].items()},
                )
                for model in models
                if model in answers
            },
            comparisons=[],
        )
        tasks[name] = found.model_copy(update={"comparisons": compared(list(found.models), [found])})
    summaries = {model: [each for each in tasks.values() if model in each.models] for model in models}
    everywhere = [model for model in models if len(summaries[model]) == len(tasks)]
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in ("rg-env", "reasoning-gym")},
        notes=notes,
        tasks=tasks,
        models={model: summary_of(model, each) for model, each in summaries.items()},
        comparisons=compared(everywhere, [each for each in tasks.values() if each.in_overall]),
    )
