"""From answers to results, and the files that hold them.

    results = results_of(works, {"base": Source("tiny", "tiny", "embedded")})
    together({"before": first, "after": last})          # evaluations of a training run, as models on the same questions

results_<task>_<time>.json        one task, all models
results_all_tasks_<time>.json     all tasks, with macro averages
summary.md                        the same as tables
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from rg_env.core.run_folder import write_aside
from rg_env.core.statistics import difference_of, mean_of, paired_difference, wilson_interval
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import file_part
from rg_env.errors import InputError
from rg_env.evaluation import results as schema
from rg_env.evaluation.config import EvalConfig, PublishedTable
from rg_env.evaluation.models import kind_of
from rg_env.evaluation.questions import Questions
from rg_env.evaluation.results import (
    ExternalResult,
    ModelResult,
    ModelSummary,
    Paired,
    PublishedFigure,
    Results,
    TaskResults,
    Usage,
    Verdict,
)
from rg_env.evaluation.runner import TaskWork
from rg_env.evaluation.scores import Answer, scores_of, usage_of
from rg_env.evaluation.tables import markdown

_PACKAGES = ("rg-env", "reasoning-gym")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and what answers for it."""

    source: str
    kind: Any
    engine: Any
    prices: tuple[float, float] | None = None
    """Of a million tokens of prompts and of completions."""

    @classmethod
    def of(cls, config: EvalConfig, name: str, local_engine: str) -> "Source":
        """A model of a config; `local_engine` serves those without a URL."""
        model = config.models[name]
        source = f"{model.model}@{model.url}" if model.url else model.model
        return cls(source, kind_of(model), "endpoint" if model.url else local_engine, model.prices)


Rows = Sequence[tuple[Questions, int]]
"""Questions whose figures are reported together."""


class _Answers:
    """The answers of all models, by question."""

    def __init__(self, works: Sequence[TaskWork]):
        self.works = {(work.model, work.questions, work.draw): work for work in works}
        self.environments = list(dict.fromkeys(work.questions for work in works))
        self.groups: dict[str, list[tuple[Questions, int]]] = {}
        for questions in self.environments:
            for name, numbers in questions.by_name().items():
                self.groups.setdefault(name, []).extend((questions, number) for number in numbers)

    def sampled(self, model: str, rows: Rows) -> list[list[Answer]]:
        """By question, without those left out."""
        found = (self.works[model, questions, "sampled"].tally.answers(number) for questions, number in rows)
        return [answers for answers in found if answers]

    def greedy(self, model: str, rows: Rows) -> list[Answer]:
        works = [(self.works.get((model, questions, "greedy")), number) for questions, number in rows]
        return [answer for work, number in works if work for answer in work.tally.answers(number)]

    def scores(self, model: str, rows: Rows, floor: float | None = None) -> schema.Scores:
        answers = self.sampled(model, rows)
        return scores_of(answers, self.greedy(model, rows), floor=floor, left_out=len(rows) - len(answers))

    def usage(self, model: str, rows: Rows, prices: tuple[float, float] | None) -> Usage:
        answers = [each for answers in self.sampled(model, rows) for each in answers] + self.greedy(model, rows)
        return usage_of((each._asdict() for each in answers), prices)

    def correct(self, model: str, rows: Rows) -> dict[str, list[bool]]:
        """By question's hash; a question that is there twice has a number behind it."""
        found: dict[str, list[bool]] = {}
        for questions, number in rows:
            answers = self.works[model, questions, "sampled"].tally.answers(number)
            key = questions.hashes[number]
            key = key if key not in found else f"{key}#{len(found)}"
            if answers and all(each.correct is not None for each in answers):
                found[key] = [bool(each.correct) for each in answers]
        return found


def results_of(
    works: Sequence[TaskWork],
    models: Mapping[str, Source],
    *,
    published: Mapping[str, PublishedTable] | None = None,
    external: Sequence[ExternalResult] = (),
    lm_eval: str = "",
    step: int | None = None,
    rollouts: Sequence[dict[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Results:
    """The results of answers that are complete.

    Args:
        external: results of external benchmarks, by the version `lm_eval` of lm-evaluation-harness.
        step, rollouts: of an evaluation in a training run.

    Raises:
        InputError: a model was trained on all questions of a task.
    """
    answers = _Answers(works)
    tasks = {name: _task(name, rows, answers, models) for name, rows in answers.groups.items()}
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in _PACKAGES} | ({"lm-eval": lm_eval} if external else {}),
        step=step,
        environments=[questions.described() for questions in answers.environments],
        tasks=tasks,
        models={name: _summary(name, list(tasks.values()), answers) for name in models if tasks},
        comparisons=_comparisons(list(models), list(_overall(tasks.values()))),
        published=compare(published or {}, tasks),
        external=list(external),
        rollouts=list(rollouts),
        notes=list(notes),
    )


def _task(name: str, rows: Rows, answers: _Answers, models: Mapping[str, Source]) -> TaskResults:
    questions, first = rows[0]
    env = questions.env
    task = env.eval_rows[first]["info"].get("rg_task")
    spec = next((each.model_dump() for each in env.mixture.tasks if each.name == task), None) if env.mixture else None
    sampled = next(work for work in answers.works.values() if work.questions is questions and work.draw == "sampled")
    options = getattr(env, "prompt_options", None)
    results = {}
    for model, source in models.items():
        scores = answers.scores(model, rows, questions.floor)
        if not scores.n:
            raise InputError(
                f"{model}, {name}: no question is left that the model was not trained on: use another eval_seed, or "
                "split questions as its training did (split_by)"
            )
        results[model] = ModelResult(
            source=source.source,
            kind=source.kind,
            engine=source.engine,
            system_prompt=answers.works[model, questions, "sampled"].system_prompt,
            scores=scores,
            usage=answers.usage(model, rows, source.prices),
            correct=answers.correct(model, rows),
        )
    found = TaskResults(
        task=name,
        part=questions.part,
        spec=spec,
        category=load_table()[task]["category"] if spec and task in load_table() else None,
        questions=schema.Questions(
            n=len(rows),
            seed=None if env.manifest is None else env.manifest["splits"]["eval"]["seed"],
            manifest_sha256=questions.manifest_sha256,
            prompts_sha256=questions.described().prompts_sha256,
        ),
        sampling=schema.Sampling(
            rollouts_per_example=sampled.tally.times,
            greedy=any(work.draw == "greedy" for work in answers.works.values()),
            **vars(sampled.sampling),
        ),
        system_prompt=options.system_prompt if options else None,
        grading=options.grading if options else "hardened",
        floor=questions.floor,
        models=results,
        comparisons=[],
    )
    return found.model_copy(update={"comparisons": _comparisons(list(models), [found])})


def _overall(tasks: Sequence[TaskResults] | Any) -> list[TaskResults]:
    """The tasks that macro averages are of."""
    return [task for task in tasks if task.part in (None, "training")]


def _summary(model: str, tasks: Sequence[TaskResults], answers: _Answers) -> ModelSummary:
    overall = {task.task: task.models[model].scores for task in _overall(tasks)}
    measured = {
        task: (scores.accuracy, scores.accuracy_interval)
        for task, scores in overall.items()
        if scores.accuracy is not None and scores.accuracy_interval is not None
    }
    accuracy, interval = mean_of(*zip(*measured.values(), strict=True)) if measured else (None, None)
    adjusted = [each.guess_adjusted for each in overall.values() if each.guess_adjusted is not None]
    categories: dict[str, list[float]] = {}
    for task in tasks:
        if task.category and task.task in measured:
            categories.setdefault(task.category, []).append(measured[task.task][0])
    parts: dict[schema.Part, list[tuple[Questions, int]]] = {}
    for rows in answers.groups.values():
        for questions, number in rows:
            if questions.part in ("training", "held_out"):
                parts.setdefault(questions.part, []).append((questions, number))
    return ModelSummary(
        accuracy=accuracy,
        accuracy_interval=interval,
        guess_adjusted=fmean(adjusted) if adjusted else None,
        categories={category: fmean(values) for category, values in sorted(categories.items())},
        usage=_total([task.models[model].usage for task in tasks]),
        failed=sum(task.models[model].scores.failed for task in tasks),
        parts={part: answers.scores(model, rows) for part, rows in parts.items()},
    )


def _total(usages: Sequence[Usage]) -> Usage:
    """The sum; None if a part is not known."""
    columns = {name: [getattr(usage, name) for usage in usages] for name in Usage.model_fields}
    return Usage(**{name: None if None in values else sum(values) for name, values in columns.items()})


def _comparisons(models: Sequence[str], tasks: Sequence[TaskResults]) -> list[Paired]:
    """Every pair of models, over the tasks that both have answered."""
    pairs = []
    for a, b in combinations(models, 2):
        answers = [(task.models[a].correct, task.models[b].correct) for task in tasks]
        if not answers or not all(set(one) & set(other) for one, other in answers):
            continue
        found = paired_difference([(_shares(one), _shares(other)) for one, other in answers])
        pairs.append(
            Paired(a=a, b=b, n=found.n, difference=found.value, interval=found.interval, p_value=found.p_value)
        )
    return pairs


def _shares(correct: Mapping[str, Sequence[bool]]) -> dict[str, list[float]]:
    return {question: [float(each) for each in verdicts] for question, verdicts in correct.items()}


def together(evaluations: Mapping[str, Results]) -> Results:
    """Evaluations of one model on the same questions as one, the model of each under the name given, and compared."""
    last = list(evaluations.values())[-1]
    names = list(evaluations)[::-1]  # differences are later minus earlier
    tasks = {}
    for name, task in last.tasks.items():
        models = {key: next(iter(each.tasks[name].models.values())) for key, each in evaluations.items()}
        tasks[name] = task.model_copy(update={"models": models})
        tasks[name] = tasks[name].model_copy(update={"comparisons": _comparisons(names, [tasks[name]])})
    return last.model_copy(
        update={
            "tasks": tasks,
            "models": {key: next(iter(each.models.values())) for key, each in evaluations.items()},
            "comparisons": _comparisons(names, _overall(tasks.values())),
        }
    )


def compare(published: Mapping[str, PublishedTable], tasks: Mapping[str, TaskResults]) -> list[PublishedFigure]:
    """Each published figure with ours. Their questions are others, so the two count as independent.

    Two figures count as the same within the tolerance, whatever the intervals. A larger difference is not held against
    either if its interval, of both samples, contains 0. Of a published figure only the number of questions is known;
    several answers to a question may all be alike, so they do not make its interval narrower.
    """
    found = []
    for table, each in published.items():
        for row, figures in each.rows.items():
            names = figures.names(row)
            n = None if each.num_examples is None else each.num_examples * len(names)
            for model, theirs in figures.accuracy.items():
                scores = [tasks[name].models[model].scores for name in names]
                ours, interval = mean_of(
                    [score.accuracy or 0.0 for score in scores], [score.accuracy_interval or (0, 1) for score in scores]
                )
                known = (theirs, theirs) if n is None else wilson_interval(theirs, n)
                difference, around = difference_of(ours, interval, theirs, known)
                found.append(
                    PublishedFigure(
                        table=table,
                        source=each.source,
                        row=row,
                        tasks=names,
                        model=model,
                        published=theirs,
                        published_n=n,
                        ours=min(max(ours, 0.0), 1.0),
                        interval=interval,
                        n=sum(score.n for score in scores),
                        difference=difference,
                        difference_interval=around,
                        tolerance=each.tolerance,
                        verdict=_verdict(difference, around, each.tolerance),
                    )
                )
    return found


def _verdict(difference: float, interval: tuple[float, float], tolerance: float) -> Verdict:
    if abs(difference) <= tolerance + _ROUNDING:
        return "within_tolerance"
    return "within_chance" if interval[0] <= 0 <= interval[1] else "beyond"


def write_results(results: Results, folder: Path) -> dict[str, Path]:
    """Write the results files; returns them by task, and that of all tasks under ""."""
    time = datetime.fromisoformat(results.created).strftime("%Y%m%d-%H%M%S")
    files = {}
    for name in results.tasks:
        files[name] = folder / f"results_{file_part(name)}_{time}.json"
        write_aside(files[name], results.of_task(name).model_dump_json(indent=1) + "\n")
    files[""] = folder / f"results_all_tasks_{time}.json"
    write_aside(files[""], results.model_dump_json(indent=1) + "\n")
    write_aside(folder / "summary.md", markdown(results))
    return files
