"""Content of a report on a training run or an evaluation, as plain records.

page = run_page(Path("outputs/RUN"), 10_000)          # from the files of a run (see `RunFolder`)
page = results_page(Path("outputs/eval"), 10_000)     # from results files and `rollouts.jsonl`
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import counted, is_number
from rg_env.errors import InputError
from rg_env.evaluation.report.rollouts import Answers, Record, Rollouts, file_source, gather, step_source
from rg_env.evaluation.results import (
    RESULTS,
    Accuracy,
    Results,
    Scores,
    TaskResults,
    merged,
    newest_results,
    read_evaluations,
    read_results,
)
from rg_env.evaluation.runner import ROLLOUTS
from rg_env.evaluation.scores import scores_from, together
from rg_env.evaluation.tables import Table, columns_of, figures_of, tables_of

POINTS = 1_000
"""Maximum number of values per metric in a report; if there are more, evenly spaced ones are kept."""
_LABELS_DRAWN = 5
_CHARTS = {
    "Training batches": {"reward": "reward", "accuracy": "accuracy"},
    "Completion length, tokens": {"completions/mean_length": "mean", "completions/max_length": "longest"},
}
"""Metrics and their labels by title of the chart; the second metric is dotted."""
_PARTS = {"held_out": "held out", "labelled": "label"}


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; the ends are None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, found: Accuracy | None, name: str = "accuracy") -> "Estimate | None":
        """A mean with its interval; None if it was not measured."""
        value = getattr(found, name, None)
        return cls(value, *found.intervals[name]) if found and value is not None else None


@dataclass(frozen=True)
class Series:
    """A line in a chart, as (x, estimate) points."""

    name: str
    points: list[tuple[float, Estimate]]
    dotted: bool = False


@dataclass(frozen=True)
class Chart:
    """A line chart with steps on the x-axis."""

    title: str
    series: list[Series]
    note: str = ""
    share: bool = False
    """Whether the y-axis goes from 0 to 1."""


@dataclass(frozen=True)
class Bar:
    """A model's accuracy on a task."""

    name: str
    """Model or step, which determines the color."""
    estimate: Estimate


@dataclass(frozen=True)
class BarGroup:
    """A task's bars."""

    name: str
    bars: list[Bar]
    note: str = ""
    floor: float | None = None
    """Accuracy of the best constant answer, drawn as a marker."""


@dataclass(frozen=True)
class Text:
    """A long text, collapsed by default."""

    title: str
    text: str


@dataclass
class Metrics:
    """All metrics logged by a run, with steps and values."""

    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    note: str = ""


@dataclass
class Page:
    """Content of a report."""

    title: str
    kind: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes about missing or omitted content."""
    charts: list[Chart] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    bars: list[BarGroup] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    rollouts: Rollouts = field(default_factory=Rollouts)

    def add_facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Add the facts whose values are known."""
        self.facts += [(name, str(value)) for name, value in facts if value not in (None, "")]

    def add_scores(self, tasks: Iterable[tuple[BarGroup, Mapping[str, Scores]]], kind: str, note: str) -> None:
        """Add each task's bars, and a table of the scores by task and model.

        Args:
            kind: "model", or "step" if the models are steps of a training run.
        """
        rows = []
        for task, scores in tasks:
            self.bars.append(task)
            task.bars.extend(Bar(name, found) for name, each in scores.items() if (found := Estimate.of(each)))
            own = {name: {"rollouts": str(each.answers), **figures_of(each)} for name, each in scores.items()}
            rows += [{"task": task.name, kind: name, **figures} for name, figures in own.items()]
        if rows:
            self.tables.append(Table("Tasks", *columns_of(rows), [note]))

    def add_results(self, results: Results, kind: str = "model") -> None:
        """Add the summary tables, each task's bars, and a table of the scores by task and model."""
        self.tables += [replace(table, title=table.title or "Summary") for table in tables_of(results)]
        tasks = []
        for name, task in results.tasks.items():
            title = f"{name} ({_PARTS[task.part]})" if task.part in _PARTS else name
            group = BarGroup(title, [], counted(task.questions.n, "question"), task.floor)
            tasks.append((group, {model: each.scores for model, each in task.models.items()}))
        note = (
            "Means with 95% intervals, clustered by question. "
            "Questions that a model was trained on are left out of its scores."
        )
        self.add_scores(tasks, kind, note)


def _date(created: str | None) -> str:
    """Format an ISO 8601 time for display; empty if it is None."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if created else ""


# Evaluations


def is_evaluation(folder: Path) -> bool:
    """Whether `folder` has results or rollouts of an evaluation."""
    return (folder / ROLLOUTS).is_file() or any(folder.glob(RESULTS))


def results_page(source: Path, limit: int) -> Page:
    """Make the report on an evaluation from its folder, a results file, or a file of rollouts.

    Without a results file, as during an evaluation, accuracies are computed from the rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    folder = source if source.is_dir() else source.parent
    page = Page(folder.resolve().name, "evaluation")
    results = None if source.name == ROLLOUTS else _results(source, page.notes)
    tasks = results.tasks if results else {}
    models = list(dict.fromkeys(name for task in tasks.values() for name in task.models))

    def system_prompt(record: Record) -> str | None:
        if (task := tasks.get(record["task"])) is None:
            return None
        model = task.models.get(record["model"])
        return task.system_prompt if model is None or model.system_prompt is None else model.system_prompt

    rollouts = folder / ROLLOUTS
    shown = tasks if tasks and source.is_file() else None  # for a single task's results, only its rollouts
    sources = [file_source(rollouts, "evaluation", shown)] if rollouts.is_file() else []
    page.rollouts, answers, notes = gather(sources, limit, variants=models, system_prompt=system_prompt)
    page.notes += notes
    if results is None:
        if not page.rollouts.found:
            raise InputError(f"{rollouts} has no rollouts")
        page.notes.append(f"no results file: figures are computed from the rollouts in {ROLLOUTS} so far")
        _add_answers(page, answers)
        return page
    _add_evaluation(page, results)
    page.add_results(results)
    if tasks:
        page.notes += _differences(tasks, answers) if sources else [f"no {ROLLOUTS}: there are no rollouts to show"]
    return page


def _results(source: Path, notes: list[str]) -> Results | None:
    """Results in the file `source`. For a folder: the newest file with the results of all tasks or, without such a
    file, the newest results of each task, merged."""
    if source.is_file():
        return read_results(source)
    shown, several = newest_results(source)
    if several:
        notes.append(
            f"several results files: this page shows the newest, {', '.join(sorted(file.name for file in shown))}"
        )
    if len(shown) < 2:
        return next(iter(shown.values()), None)
    return merged({file.name: each for file, each in shown.items()}).model_copy(update={"comparisons": []})


def _add_evaluation(page: Page, results: Results) -> None:
    """Add the title, facts and system prompts."""
    page.add_facts([("folder", page.title), ("date", _date(results.created))])
    page.title, tasks = results.title, results.tasks
    if first := next(iter(tasks.values()), None):
        sampling = first.sampling
        sources = {name: model.source for task in tasks.values() for name, model in task.models.items()}
        facts = {
            "models": ", ".join(name if name == where else f"{name}: {where}" for name, where in sources.items()),
            "questions": f"{sum(task.questions.n for task in tasks.values()):,}",
            "answers per question": sampling.rollouts_per_example,
            "temperature": f"{sampling.temperature:g}",
            "top_p": f"{sampling.top_p:g}",
            "max. tokens": sampling.max_tokens,
            "grading": first.grading,
        }
        page.add_facts(facts.items())
        if any((task.sampling, task.grading) != (sampling, first.grading) for task in tasks.values()):
            page.notes.append("tasks differ in sampling or grading: the facts above are about the first task")
    page.add_facts([("versions", ", ".join(f"{name} {version}" for name, version in results.versions.items()))])
    prompts = {task.system_prompt: f"System prompt, {name}" for name, task in reversed(tasks.items())}
    if len(prompts) == 1:
        prompts = dict.fromkeys(prompts, "System prompt")
    for task in tasks.values():
        prompts |= {each.system_prompt: f"System prompt of {name}" for name, each in task.models.items()}
    page.texts = [Text(title, prompt) for prompt, title in prompts.items() if prompt]


def _differences(tasks: Mapping[str, TaskResults], answers: Answers) -> list[str]:
    """Notes about rollouts that do not match the results, because they are incomplete or from another evaluation."""
    notes = []
    counts = {(model, name): each.scores.answers for name, task in tasks.items() for model, each in task.models.items()}
    for (model, name), count in counts.items():
        found = sum(map(len, answers.get((model, name), {}).values()))
        if found != count:
            notes.append(f"{name}, {model}: {ROLLOUTS} has {found:,} rollouts, but the results count {count:,}")
    if others := sorted(f"{model} on {task}" for model, task in answers.keys() - counts.keys()):
        notes.append(f"{ROLLOUTS} also has rollouts not counted in the results: {', '.join(others)}")
    return notes


def _add_answers(page: Page, answers: Answers) -> None:
    """Add the accuracy and reward of each model on each task, computed from rollouts."""
    tasks: dict[str, dict[str, Scores]] = {}
    for (model, task), questions in sorted(answers.items()):
        tasks.setdefault(task, {})[model] = scores_from(list(questions.values()))
    note = "Means over the rollouts so far; accuracies with 95% intervals, clustered by question."
    page.add_scores([(BarGroup(task, []), scores) for task, scores in sorted(tasks.items())], "model", note)


# Training runs


def run_page(folder: Path, limit: int) -> Page:
    """Make the report on the run in `folder`, with at most `limit` rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    run, page = RunFolder(folder), Page(folder.resolve().name, "training run")
    evaluations = read_evaluations(run)
    _add_run(page, run, evaluations)
    _add_metrics(page, run)
    _add_charts(page, evaluations)
    if evaluations:
        page.title = evaluations[-1].title
        _add_evaluations(page, evaluations)
    files = [file for file in (run.config_file, run.arguments_file) if file.is_file()]
    page.texts = [Text(file.name, file.read_text(encoding="utf-8")) for file in files]
    settings = run.arguments() if files else {}
    prompt = (settings.get("environment") or {}).get("system_prompt")
    sources = [step_source(each.rollouts, each.step or 0) for each in evaluations]
    if run.rollouts_file.is_file():
        sources.append(file_source(run.rollouts_file, "training"))
    page.rollouts, _, notes = gather(sources, limit, system_prompt=lambda _: prompt)
    page.notes += notes
    if not (evaluations or page.metrics.values or page.rollouts.found):
        raise InputError(f"{folder} contains a training run without metrics, evaluations or rollouts")
    return page


def _add_run(page: Page, run: RunFolder, evaluations: Sequence[Results]) -> None:
    manifest, results = run.manifest(), run.results()
    commit = (manifest.get("commit") or "")[:12]
    page.add_facts([("folder", page.title), ("date", _date(manifest.get("created"))), ("commit", commit)])
    if results is not None:
        state = "interrupted" if results.get("interrupted") else "finished"
        if rule := results.get("stopped_by"):
            state = f"stopped by monitor {rule}"
        page.add_facts((name, results.get(name)) for name in ("model", "engine", "steps"))
        page.add_facts([("time", f"{results['seconds']:,.0f} s"), ("state", state), ("error", results.get("error"))])
        if findings := results.get("monitors"):
            page.tables.append(Table("Monitor findings", ["finding"], [[line] for line in findings]))
    elif run.metrics_file.is_file():
        page.add_facts([("state", "not finished")])
    if evaluations:
        last = evaluations[-1]
        sampling, count = last.sampling, sum(each.n for each in last.environments)
        answers = counted(sampling.rollouts_per_example, "answer")
        how = f"{answers} per problem, temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"
        page.add_facts([("evaluations", f"{len(evaluations)}, on {count} frozen questions"), ("sampling", how)])


def _add_metrics(page: Page, run: RunFolder) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for record in run.metrics():
        for name, value in record.items():
            if name != "step" and is_number(value):
                steps, values = found.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(value)
    every = max((-(-len(steps) // POINTS) for steps, _ in found.values()), default=1)
    page.metrics = Metrics(
        {name: (steps[::every], values[::every]) for name, (steps, values) in sorted(found.items())},
        f"1 of {every} values" if every > 1 else "",
    )


def _add_charts(page: Page, evaluations: Sequence[Results]) -> None:
    """Add charts of accuracy on the frozen questions, and of reward and length in training."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for each in evaluations:
        overall, labels = each.overall(), list(each.scores("labelled").items())[:_LABELS_DRAWN]
        found = {"sampled": Estimate.of(overall), "greedy": Estimate.of(overall, "greedy_accuracy")}
        found |= {"held-out tasks": Estimate.of(each.overall("held_out"))}
        found |= {f"{name} (label)": Estimate.of(scores) for name, scores in labels}
        for name, estimate in found.items():
            if estimate:
                lines.setdefault(name, []).append((each.step or 0, estimate))
    if lines:
        drawn = [Series(name, points, name not in ("sampled", "greedy")) for name, points in lines.items()]
        note = "Mean and 95% interval, clustered by problem"
        page.charts.append(Chart("Accuracy on the frozen questions", drawn, note, share=True))
    for title, names in _CHARTS.items():
        drawn = [
            Series(label, [(x, Estimate(y)) for x, y in zip(*page.metrics.values[name], strict=True)], number > 0)
            for number, (name, label) in enumerate(names.items())
            if name in page.metrics.values
        ]
        if drawn:
            page.charts.append(Chart(title, drawn, page.metrics.note))


def _add_evaluations(page: Page, evaluations: Sequence[Results]) -> None:
    """Add a table of all evaluations, and the last one's results by task, next to those of the first if both have the
    same questions."""
    rows = []
    for each in evaluations:
        if overall := each.overall():
            held_out = each.overall("held_out")
            apart = {"held-out accuracy": figures_of(held_out)["accuracy"]} if held_out else {}
            rows.append({"step": str(each.step), **figures_of(overall), **apart})
    if rows:
        note = "Means over the training tasks' problems, with 95% intervals clustered by problem."
        page.tables.append(Table("Evaluations", *columns_of(rows), [note]))
    first, last = evaluations[0], evaluations[-1]
    shown = {f"step {last.step}": last}
    if first.step != last.step and first.environments == last.environments:
        shown = {f"step {first.step}": first, **shown}
    elif first.step != last.step:
        page.notes.append("the first and the last evaluation are not compared: their questions differ")
    page.add_results(together(shown), "step")
