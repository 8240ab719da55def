"""Content of a report on a training run or an evaluation, as plain records.

    page = run_page(Path("outputs/RUN"), 10_000)          # from a run's files (see `RunFolder`)
    page = results_page(Path("outputs/eval"), 10_000)     # from results files and `rollouts.jsonl`

Rollouts are shown as they were recorded (see `evaluation.questions`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal

from rg_env.core.data.splits import question_hash
from rg_env.core.files import read_bytes
from rg_env.core.rewards import RolloutRecord
from rg_env.core.run_folder import RunFolder, damaged, json_lines
from rg_env.core.statistics import mean_of, p_shown, with_interval
from rg_env.core.text import counted, is_number
from rg_env.errors import InputError
from rg_env.evaluation import results as schema
from rg_env.evaluation.questions import ROLLOUTS, Answer
from rg_env.evaluation.results import PART_SUFFIXES, Paired, Results, Scores, TaskPart, TaskResults
from rg_env.evaluation.scores import compared, scores_from, together
from rg_env.evaluation.tables import NOTES, Table, cell, columns_of, figures_of

POINTS = 1_000
"""Maximum number of values per metric in a report. If any metric has more, only every n-th value of each metric is
kept."""
MAX_CHARACTERS = 50_000_000
"""Maximum number of characters in a report's rollouts. More characters would make browsers slow."""
_LABELS_DRAWN = 5
_REWARD_MEAN = re.compile("rewards/(.+)/mean")
_LENGTHS = {"completions/mean_length": "mean", "completions/max_length": "longest"}
_ABOUT_MEANS = "Means with 95% intervals, clustered by question."
ModelKind = Literal["model", "step"]
"""Whether the models of a table are models, or steps of a training run."""
_COMPARED = 5
"""Maximum number of models that the verdict compares with the first one."""
_SIGNIFICANT = 0.05
_DIFFERENCE = "difference"
_NOTES = {
    "accuracy": "Means with 95% intervals, clustered by question.",
    "macro average": "Macro average: the unweighted mean over the tasks.",
    _DIFFERENCE: "Difference: on the same questions, with a 95% interval (Newcombe) and the p-value of a two-sided "
    "permutation test.",
    **NOTES,
}
"""Notes by the row or column that they explain."""
IntervalEstimate = tuple[float, float | None, float | None]
"""A value and the two ends of its 95% interval (both None if the interval is unknown)."""


@dataclass(frozen=True)
class Verdict:
    """An overall result."""

    headline: str
    """Result in a few words: "0.33 → 0.94, p < 0.001, n = 200"."""
    about: str
    """What was measured, and the difference with its interval."""
    outcome: str = ""
    """"better" or "worse" if the second model significantly is (p < 0.05), otherwise "no clear difference". Empty
    without a test."""


@dataclass(frozen=True)
class Chart:
    """A line chart with steps on the x-axis."""

    title: str
    lines: dict[str, list[tuple[float, IntervalEstimate]]]
    """Steps and values, by line name."""
    note: str = ""
    share: bool = False
    """Whether the values are between 0 and 1, so that the y-axis does not extend beyond these numbers."""


@dataclass(frozen=True)
class Task:
    """Scores on a task. The page plots the accuracies."""

    name: str
    scores: list[tuple[str, Scores]]
    """Scores by model, or by step of a training run."""
    note: str = ""
    floor: float | None = None
    """Accuracy of the best constant answer, drawn as a marker."""


@dataclass
class RolloutList:
    """Content of the rollout browser. Shared texts (questions, system prompts) are stored once, in `texts`."""

    records: list[RolloutRecord] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    """Models, or steps of a run, in display order. The page can compare answers to the same question from several
    models or steps."""
    found: int = 0
    """Total number of rollouts, including omitted ones."""


@dataclass
class Page:
    """Content of a report."""

    title: str
    kind: str
    verdicts: list[Verdict] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes, for example about missing or omitted content."""
    charts: list[Chart] = field(default_factory=list)
    metrics: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    """Steps and values of each metric logged by a run."""
    thinned: str = ""
    """Note about omitted metric values."""
    tasks: list[Task] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    """Relative URLs by the first cell of a table's row."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """Titles and contents of long texts, which are initially collapsed."""
    rollouts: RolloutList = field(default_factory=RolloutList)
    is_unfinished: bool = False
    """Whether the run or evaluation may still be writing to its folder."""

    def add_facts(self, facts: Mapping[str, object]) -> None:
        """Add the facts that have a value."""
        self.facts += [(name, str(value)) for name, value in facts.items() if value not in (None, "")]

    def add_results(
        self, results: Results, kind: ModelKind = "model", steps: Mapping[str, Results] = MappingProxyType({})
    ) -> None:
        """Add the verdict, the table of all scores, and each task's scores. `steps` are all evaluations of a run."""
        self.verdicts = verdicts(results)
        self.tables.append(results_table(results, kind, steps))
        self.notes += results.notes
        self.tasks = [
            Task(
                f"{name}{PART_SUFFIXES.get(task.part or '', '')}",
                [(model, each.scores) for model, each in task.models.items()],
                counted(task.questions.n, "question"),
                task.floor,
            )
            for name, task in results.tasks.items()
        ]

    def add_rollouts(
        self,
        records: Sequence[RolloutRecord],
        limit: int,
        variants: Iterable[str] = (),
        characters: int = MAX_CHARACTERS,
    ) -> None:
        """Add at most `limit` rollouts with a total of at most `characters` characters. Include either all or none
        of the answers to each question.

        Questions are chosen in hash order so that their content does not bias the choice.

        Args:
            records: rollouts with the additional fields "source" ("training" or "evaluation"), "variant" (the model or
                step, if its answers can be compared with others) and "system" (the system prompt, if any).
            variants: models in display order.
        """
        by_question: dict[str, list[RolloutRecord]] = {}
        for record in records:
            by_question.setdefault(record["question"], []).append(record)
        chosen: set[str] = set()
        left, space = limit, characters
        for question in sorted(by_question, key=question_hash):
            left -= len(by_question[question])
            texts = (text for record in by_question[question] for text in record.values() if isinstance(text, str))
            space -= sum(map(len, texts))
            if left < 0 or space < 0:
                break
            chosen.add(question)
        shown = [record for record in records if record["question"] in chosen]
        self.rollouts = _with_shared_texts(shown, variants, len(records))
        if len(shown) < len(records):
            self.notes.append(
                f"{len(shown):,} of {len(records):,} rollouts are on this page: all answers to {len(chosen):,} of "
                f"{len(by_question):,} questions (limits: --max-rollouts and {characters / 1e6:.0f} million "
                "characters)"
            )


def _with_shared_texts(records: Sequence[RolloutRecord], variants: Iterable[str], found: int) -> RolloutList:
    """Return the records without fields that are None, and with shared texts and variants replaced by their indices."""
    texts, known = dict[str, int](), {name: place for place, name in enumerate(variants)}
    shown = []
    for each in records:
        record = {name: value for name, value in each.items() if value is not None}
        if not isinstance(record.get("answer", ""), str):  # gold answers in custom rows may be numbers or lists
            record["answer"] = json.dumps(record["answer"], ensure_ascii=False)
        for name, places in (("question", texts), ("system", texts), ("variant", known)):
            if name in record:
                record[name] = places.setdefault(record[name], len(places))
        shown.append(record)
    return RolloutList(shown, list(texts), list(known), found)


def _read_rollouts(file: Path) -> Iterator[RolloutRecord]:
    for record in json_lines(file):
        if not isinstance(record.get("question"), str):
            raise damaged(file, "a rollout has no question")
        yield record


def _date(created: str | None) -> str:
    """Format an ISO 8601 time for display. Return "" for None."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if created else ""


def _sampling(results: Results) -> str:
    """Describe the first task's sampling settings."""
    answers = counted(results.sampling.rollouts_per_example, "answer")
    return f"{answers} per question, {results.sampling.described}"


# The verdict and the table


def verdicts(results: Results) -> list[Verdict]:
    """Return the overall results: the first model compared with each other model, over all tasks that count and, for a
    training run, over the held-out tasks."""
    tasks = list(results.tasks.values())
    found = list(_verdicts(results, [task for task in tasks if task.in_overall], "the questions", results.comparisons))
    if held_out := [task for task in tasks if task.part == "held_out"]:
        pairs = compared(list(results.models), held_out)
        found += _verdicts(results, held_out, "the questions from held-out tasks", pairs)
    return found


def _verdicts(
    results: Results, tasks: Sequence[TaskResults], questions: str, pairs: Sequence[Paired]
) -> Iterator[Verdict]:
    figure = next((name for name in ("accuracy", "reward") if _means(tasks, results, name)), "")
    means = _means(tasks, results, figure)
    first, *others = means or [""]
    over = f", mean over {len(tasks)} tasks" if len(tasks) > 1 else ""
    n = sum(task.questions.n for task in tasks)
    if means and not others:
        values = [(getattr(each, figure), each.intervals.get(figure)) for each in _scores(tasks, first)]
        interval = mean_of(*zip(*values, strict=True))[1] if all(ends for _, ends in values) else None
        yield Verdict(
            f"{with_interval(means[first], interval, 2)}, n = {n:,}",
            f"{figure.capitalize()} of {first} on {questions}{over}",
        )
    for name in others[:_COMPARED]:
        headline, about, outcome = f"{means[first]:.2f} → {means[name]:.2f}", "", ""
        for pair in pairs if figure == "accuracy" else ():
            if (pair.b, pair.a) == (first, name):
                p_value = p_shown(pair.p_value)
                headline += f", p {p_value}" if p_value.startswith("<") else f", p = {p_value}"
                about = f"; difference {with_interval(pair.difference, pair.interval, 2, sign=True)}"
                outcome = "better" if pair.difference > 0 else "worse"
                outcome, n = outcome if pair.p_value < _SIGNIFICANT else "no clear difference", pair.n
        yield Verdict(
            f"{headline}, n = {n:,}", f"{figure.capitalize()} on {questions}{over}, {first} → {name}{about}", outcome
        )


def _scores(tasks: Sequence[TaskResults], model: str) -> list[Scores]:
    return [task.models[model].scores for task in tasks if model in task.models]


def _means(tasks: Sequence[TaskResults], results: Results, figure: str) -> dict[str, float]:
    """Return the mean of a figure over all tasks, for the models that have it on all of them."""
    values = {name: [getattr(each, figure) for each in _scores(tasks, name)] for name in results.models if figure}
    return {name: fmean(v) for name, v in values.items() if len(v) == len(tasks) > 0 and None not in v}


def results_table(results: Results, kind: ModelKind, steps: Mapping[str, Results] = MappingProxyType({})) -> Table:
    """Return a table with a row for each model on each task, after rows for all tasks together.

    Args:
        steps: all evaluations of a training run. Those between the first and the last have rows only for all tasks
            together, or for the only task.
    """
    first = next(iter(results.models))
    rows: list[dict[str, str]] = []

    def add(name: str, models: Mapping[str, Mapping[str, str]], pairs: Sequence[Paired]) -> None:
        differences = {pair.a: pair for pair in pairs if pair.b == first}
        for model, cells in models.items():
            pair, compares = differences.get(model), {_DIFFERENCE: cell(None), "p-value": cell(None)}
            if pair:
                difference = with_interval(pair.difference, pair.interval, sign=True)
                compares = {_DIFFERENCE: difference, "p-value": p_shown(pair.p_value)}
            # the first columns are those that a phone shows
            rows.append({"task": name, kind: model, "accuracy": cell(None), **compares, **cells})

    tasks = results.tasks
    titles: dict[TaskPart, str] = {"training": "training tasks", "held_out": "held-out tasks"}
    of_part = {part: [name for name, task in tasks.items() if task.part == part] for part in titles}
    for part, title in titles.items():
        if len(of_part[part]) > 1:
            found = {step: scores for step, each in steps.items() if (scores := each.overall(part))}
            pairs = compared(list(results.models), [tasks[name] for name in of_part[part]])
            add(title, {step: _cells(scores) for step, scores in found.items()}, pairs)
    if not steps and len(tasks) > 1:
        add("macro average", {name: _macro(results, name) for name in results.models}, results.comparisons)
        for category in sorted({category for each in results.models.values() for category in each.categories}):
            means = {name: each.categories.get(category) for name, each in results.models.items()}
            add(f"category {category}", {name: {"accuracy": cell(value)} for name, value in means.items()}, ())
    for name, task in tasks.items():
        models = {model: (each.scores, each.usage.cost) for model, each in task.models.items()}
        if task.part in of_part and len(of_part[task.part]) == 1:
            known = {step: each.tasks[name] for step, each in steps.items() if name in each.tasks}
            models = {step: (each.scores, None) for step, each in known.items()}
        title = f"{name}{PART_SUFFIXES.get(task.part or '', '')}"
        add(
            title,
            {model: _cells(scores, task.floor, cost) for model, (scores, cost) in models.items()},
            task.comparisons,
        )
    heads, cells = columns_of(rows)
    explained = {*heads, rows[0]["task"]} - (set() if results.overlap_is_known else {"left out"})
    notes = [note for about, note in _NOTES.items() if about in explained]
    return Table("Results", [head.replace(_DIFFERENCE, f"{_DIFFERENCE} to {first}") for head in heads], cells, notes)


def _cells(scores: Scores, floor: float | None = None, cost: float | None = None) -> dict[str, str]:
    return figures_of(scores) | {
        "rollouts": f"{scores.answers:,}",
        "constant": cell(floor),
        "cost": cell(None) if cost is None else f"{cost:.4g}",
    }


def _macro(results: Results, model: str) -> dict[str, str]:
    summary, usage = results.models[model], results.models[model].usage
    scores = [task.models[model].scores for task in results.tasks.values() if model in task.models]
    return {
        "questions": str(sum(each.n for each in scores)),
        "rollouts": f"{sum(each.answers for each in scores):,}",
        "accuracy": cell(summary.accuracy, summary.intervals.get("accuracy")),
        "adjusted for guessing": cell(summary.guess_adjusted),
        "failed calls": str(summary.failed or cell(None)),
        "left out": str(sum(each.left_out for each in scores) or cell(None)),
        "cost": cell(None) if usage.cost is None else f"{usage.cost:.4g}",
    }


# Evaluations


def results_page(source: Path, limit: int) -> Page:
    """Return the content of the report on an evaluation, given its folder, a results file, or a file of rollouts.

    If `source` is a file of rollouts, or there is no results file yet (as during an evaluation), accuracies are
    computed from the rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    folder = source if source.is_dir() else source.parent
    page, file = Page(folder.resolve().name, "evaluation"), folder / ROLLOUTS
    files = [source] if source.is_file() else schema.results_files(folder)
    results = schema.read_results(files[0]) if files and files[0].name != ROLLOUTS else None
    if len(files) > 1:
        page.notes.append(f"the folder has several results files, and this page shows the newest, {files[0].name}")
    tasks = results.tasks if results else {}
    records = _evaluated(file, page.notes) if file.is_file() else []
    if tasks and source.is_file():  # the file may contain only one task's results
        records = [record for record in records if record.get("task") in tasks]
    for record in records:
        if task := tasks.get(record.get("task", "")):
            own = task.models[record["model"]].system_prompt if record["model"] in task.models else None
            record["system"] = (task.system_prompt if own is None else own) or None
    page.add_rollouts(records, limit, dict.fromkeys(name for task in tasks.values() for name in task.models))
    if results:
        _add_evaluation(page, results)
        page.add_results(results)
        page.notes += [] if records else [f"{ROLLOUTS} is missing, so there are no rollouts to show"]
    elif records:
        page.notes.append(f"figures are computed from the rollouts in {ROLLOUTS}; no results file is used")
        sampled = [record for record in records if record.get("draw") != "greedy"]
        page.tasks, page.is_unfinished = _tasks_so_far(sampled), True
        rows = [
            {"task": task.name, "model": name, **figures_of(each), "rollouts": f"{each.answers:,}"}
            for task in page.tasks
            for name, each in task.scores
        ]
        page.tables += [Table("Results", *columns_of(rows), [_ABOUT_MEANS])] if rows else []
    else:
        raise InputError(f"{file} has no rollouts")
    return page


def _evaluated(file: Path, notes: list[str]) -> list[RolloutRecord]:
    """Return the last record for each answer. Earlier records are from failed calls."""
    found: dict[tuple[Any, ...], RolloutRecord] = {}
    number = -1
    for number, record in enumerate(_read_rollouts(file)):
        question = record.get("row") or question_hash(record["question"])
        key = (record.get("model"), record.get("task"), question, record.get("rollout", number), record.get("draw"))
        found[key] = {**record, "source": "evaluation", "variant": record.get("model")}
    if repeated := number + 1 - len(found):
        notes.append(f"{counted(repeated, 'repeated rollout')}; only the last record of each rollout is used")
    return list(found.values())


def _add_evaluation(page: Page, results: Results) -> None:
    """Add the title, facts and system prompts."""
    folder, page.title, tasks = page.title, results.title, results.tasks
    page.add_facts({"folder": folder, "date": _date(results.created)})
    first = next(iter(tasks.values()))
    sources = {name: model.source for task in tasks.values() for name, model in task.models.items()}
    models = (name if name == source else f"{name}: {source}" for name, source in sources.items())
    questions = f"{sum(task.questions.n for task in tasks.values()):,}"
    page.add_facts({"models": ", ".join(models), "questions": questions})
    page.add_facts({"sampling": _sampling(results), "grading": first.grading})
    if any((task.sampling, task.grading) != (first.sampling, first.grading) for task in tasks.values()):
        page.notes.append("tasks differ in sampling or grading, so the facts above describe only the first task")
    page.add_facts({"versions": ", ".join(f"{name} {version}" for name, version in results.versions.items())})
    prompts = {task.system_prompt: f"System prompt, {name}" for name, task in reversed(tasks.items())}
    if len(prompts) == 1:
        prompts = dict.fromkeys(prompts, "System prompt")
    for task in tasks.values():
        prompts |= {each.system_prompt: f"System prompt of {name}" for name, each in task.models.items()}
    page.texts = [(title, prompt) for prompt, title in prompts.items() if prompt]


def _tasks_so_far(records: Iterable[RolloutRecord]) -> list[Task]:
    """Compute the scores of each model on each task from rollouts."""
    answers: dict[str, dict[str, dict[str, list[Answer]]]] = {}
    for record in records:
        if model := record.get("model"):
            questions = answers.setdefault(record["task"], {}).setdefault(model, {})
            answer = Answer.of(record)
            questions.setdefault(record["question"], []).append(answer)
    return [
        Task(task, [(model, scores_from(list(questions.values()))) for model, questions in sorted(models.items())])
        for task, models in sorted(answers.items())
    ]


# Training runs


def run_page(folder: Path, limit: int) -> Page:
    """Return the content of the report on the run in `folder`, with at most `limit` rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    run, page = RunFolder(folder), Page(folder.resolve().name, "training run")
    evaluations = schema.read_evaluations(run)
    _add_run(page, run, evaluations)
    _add_metrics(page, run)
    _add_charts(page, evaluations)
    if evaluations:
        page.title = evaluations[-1].title
        _add_evaluations(page, evaluations)
    files = [file for file in (run.config_file, run.arguments_file) if file.is_file()]
    page.texts = [(file.name, read_bytes(file).decode(errors="replace")) for file in files]
    environment = (run.arguments() if files else {}).get("environment") or {}
    system = environment.get("system_prompt") or None
    records = [
        {**record, "source": "evaluation", "variant": f"step {each.step}", "step": each.step, "model": None}
        for each in evaluations
        for record in each.rollouts
    ]
    if run.rollouts_file.is_file():
        origin = {"source": "training", "part": "training", "draw": "sampled"}
        records += [{**record, **origin} for record in _read_rollouts(run.rollouts_file)]
    page.add_rollouts([{**record, "system": system} for record in records], limit)
    if not (evaluations or page.metrics or records):
        raise InputError(f"{folder} contains a training run without metrics, evaluations or rollouts")
    return page


def _add_run(page: Page, run: RunFolder, evaluations: Sequence[Results]) -> None:
    manifest, results = run.manifest(), run.results()
    commit = (manifest.get("commit") or "")[:12]
    page.add_facts({"folder": page.title, "date": _date(manifest.get("created")), "commit": commit})
    if results is not None:
        state = "interrupted" if results.get("interrupted") else "finished"
        if rule := results.get("stopped_by"):
            state = f"stopped by monitor {rule}"
        page.add_facts({name: results.get(name) for name in ("model", "engine", "steps")})
        page.add_facts({"time": f"{results['seconds']:,.0f} s", "state": state, "error": results.get("error")})
        if findings := results.get("monitors"):
            page.tables.append(Table("Monitor findings", ["finding"], [[line] for line in findings]))
    elif run.metrics_file.is_file():
        page.add_facts({"state": "not finished"})
    page.is_unfinished = not run.is_complete
    if evaluations:
        count = sum(each.n for each in evaluations[-1].environments)
        page.add_facts({"evaluations": f"{len(evaluations)}, on {count} frozen questions"})
        page.add_facts({"sampling": _sampling(evaluations[-1])})


def _add_metrics(page: Page, run: RunFolder) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for record in run.metrics():
        for name, value in record.items():
            if name != "step" and is_number(value):
                steps, values = found.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(value)
    every = max((-(-len(steps) // POINTS) for steps, _ in found.values()), default=1)
    page.metrics = {name: (steps[::every], values[::every]) for name, (steps, values) in sorted(found.items())}
    page.thinned = f"1 of {every} values" if every > 1 else ""


def _add_charts(page: Page, evaluations: Sequence[Results]) -> None:
    """Add charts of accuracy on the frozen questions, and of each reward, accuracy and completion length in
    training."""
    lines: dict[str, list[tuple[float, IntervalEstimate]]] = {}
    for each in evaluations:
        found = {name: (value, *interval) for name, (_, value, interval) in each.accuracies().items()}
        for name, scores in list(each.scores("labelled").items())[:_LABELS_DRAWN]:
            if scores.accuracy is not None:
                found[f"{name}{PART_SUFFIXES['labelled']}"] = (scores.accuracy, *scores.intervals["accuracy"])
        for name, estimate in found.items():
            lines.setdefault(name, []).append((each.step or 0, estimate))
    note = "Mean and 95% interval, clustered by question"
    charts = [Chart("Accuracy on the frozen questions", lines, note, share=True)]
    rewards = {name: f"{match[1]} (reward)" for name in page.metrics if (match := _REWARD_MEAN.fullmatch(name))}
    titles: dict[str, list[str]] = {}  # by metric, without metrics that are the same as an earlier one
    for name, title in {"reward": "reward", "accuracy": "accuracy", **rewards}.items():
        if name in page.metrics:
            same = next((other for other in titles if page.metrics[other] == page.metrics[name]), name)
            titles.setdefault(same, []).append(title)
    shown = {f"Training batches: {' = '.join(names)}": {name: "mean"} for name, names in titles.items()}
    shown["Training batches: completion length, tokens"] = _LENGTHS
    for title, names in shown.items():
        known = {label: zip(*page.metrics[name], strict=True) for name, label in names.items() if name in page.metrics}
        lines = {label: [(step, (value, None, None)) for step, value in points] for label, points in known.items()}
        charts.append(Chart(title, lines, page.thinned, share=title.startswith("Training batches: accuracy")))
    page.charts = [chart for chart in charts if chart.lines]


def _add_evaluations(page: Page, evaluations: Sequence[Results]) -> None:
    """Add the last evaluation's results, compared with the first evaluation's results if both have the same
    questions, and those of the evaluations in between."""
    first, last = evaluations[0], evaluations[-1]
    steps = {f"step {each.step}": each for each in evaluations}
    shown = {f"step {each.step}": each for each in (first, last)}
    if first.environments != last.environments:
        del shown[f"step {first.step}"]
        page.notes.append("the first and last evaluations are not compared, because their questions differ")
    page.add_results(together(shown), "step", steps)
