"""Report on an evaluation, from its results files (`evaluation.results`) and `rollouts.jsonl`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rg_env.core.text import counted
from rg_env.errors import InputError
from rg_env.evaluation.report.page import Bar, BarGroup, Estimate, Page, Text, date
from rg_env.evaluation.report.rollouts import Gathered, Record, file_source, gather
from rg_env.evaluation.results import RESULTS, Accuracy, Results, TaskResults, merged, newest_results, read_results
from rg_env.evaluation.runner import ROLLOUTS
from rg_env.evaluation.scores import scores_from
from rg_env.evaluation.tables import Table, columns_of, figures_of, tables_of


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
    shown = tasks if tasks and source.is_file() else None  # a file of one task excludes the others in the folder
    sources = [file_source(rollouts, "evaluation", shown)] if rollouts.is_file() else []
    gathered = gather(sources, limit, variants=models, system_prompt=system_prompt)
    page.rollouts = gathered.rollouts
    page.notes += gathered.notes
    if results is None:
        if not gathered.rollouts.found:
            raise InputError(f"{rollouts} has no rollouts")
        page.notes.append(f"no results file: figures are computed from the rollouts in {ROLLOUTS} so far")
        _add_answers(page, gathered)
        return page
    page.facts = [("folder", page.title), *_facts(results, page.notes)]
    page.title = results.title
    add_tasks(page, results)
    page.texts = _system_prompts(tasks)
    if tasks:
        page.notes += _differences(tasks, gathered) if sources else [f"no {ROLLOUTS}: there are no rollouts to show"]
    return page


def _results(source: Path, notes: list[str]) -> Results | None:
    """Results of all tasks, otherwise merged results of single tasks; the newest if there are several."""
    if source.is_file():
        return read_results(source)
    shown, several = newest_results(source)
    if several:
        notes.append(f"several results files: shows the newest, {', '.join(sorted(file.name for file in shown))}")
    if len(shown) < 2:
        return next(iter(shown.values()), None)
    return merged({file.name: each for file, each in shown.items()}).model_copy(update={"comparisons": []})


def _facts(results: Results, notes: list[str]) -> list[tuple[str, str]]:
    facts = [("date", date(results.created))]
    if first := next(iter(results.tasks.values()), None):
        sampling = first.sampling
        sources = {name: model.source for task in results.tasks.values() for name, model in task.models.items()}
        facts += [
            ("models", ", ".join(name if name == where else f"{name}: {where}" for name, where in sources.items())),
            ("questions", f"{sum(task.questions.n for task in results.tasks.values()):,}"),
            ("answers per question", str(sampling.rollouts_per_example)),
            ("temperature", f"{sampling.temperature:g}"),
            ("top_p", f"{sampling.top_p:g}"),
            ("max. tokens", str(sampling.max_tokens)),
            ("grading", first.grading),
        ]
        if any((task.sampling, task.grading) != (sampling, first.grading) for task in results.tasks.values()):
            notes.append("tasks differ in sampling or grading: the facts above are about the first task")
    return [*facts, ("versions", ", ".join(f"{name} {version}" for name, version in results.versions.items()))]


def _system_prompts(tasks: Mapping[str, TaskResults]) -> list[Text]:
    prompts = {task.system_prompt: f"System prompt, {name}" for name, task in reversed(list(tasks.items()))}
    if len(prompts) == 1:
        prompts = dict.fromkeys(prompts, "System prompt")
    for task in tasks.values():
        prompts |= {m.system_prompt: f"System prompt of {n}" for n, m in task.models.items() if m.system_prompt}
    return [Text(title, prompt) for prompt, title in prompts.items() if prompt]


def add_tasks(page: Page, results: Results, titles: Mapping[str, str] | None = None, kind: str = "model") -> None:
    """Add bars for each task, the summary's tables, and all figures by task.

    Args:
        titles: titles of tasks; default: their names.
        kind: "model", or "step" if the models are steps of a training run.
    """
    rows = []
    for name, task in results.tasks.items():
        title = (titles or {}).get(name, name)
        found = {model: accuracy_of(each.scores) for model, each in task.models.items()}
        bars = [Bar(model, estimate) for model, estimate in found.items() if estimate]
        page.bars.append(BarGroup(title, bars, counted(task.questions.n, "question"), task.floor))
        rows += [{"task": title, kind: model, **figures_of(each.scores)} for model, each in task.models.items()]
    page.tables += [replace(table, title=table.title or "Summary") for table in tables_of(results)]
    if rows:
        note = "Means with 95% intervals, clustered by question. Left out: questions that the model was trained on."
        page.tables.append(Table("Tasks", *columns_of(rows), [note]))


def accuracy_of(found: Accuracy | None, name: str = "accuracy") -> Estimate | None:
    """Accuracy with its interval; None if it was not measured."""
    value = getattr(found, name, None)
    return Estimate(value, *found.intervals[name]) if found and value is not None else None


def _differences(tasks: Mapping[str, TaskResults], gathered: Gathered) -> list[str]:
    """Notes about rollouts that do not match the results, because they are incomplete or from another evaluation."""
    notes = []
    models = ((name, model, each) for name, task in tasks.items() for model, each in task.models.items())
    counted = {(model, name): each.scores.answers for name, model, each in models}
    for (model, name), answers in counted.items():
        found = sum(map(len, gathered.answers.get((model, name), {}).values()))
        if found != answers:
            notes.append(f"{name}, {model}: {ROLLOUTS} has {found:,} rollouts, but the results count {answers:,}")
    if others := sorted(f"{model} on {task}" for model, task in gathered.answers.keys() - counted.keys()):
        notes.append(f"{ROLLOUTS} also has rollouts that the results do not count: {', '.join(others)}")
    return notes


def _add_answers(page: Page, gathered: Gathered) -> None:
    """Add accuracy and reward of each model on each task, computed from rollouts."""
    groups: dict[str, list[Bar]] = {}
    rows = []
    for (model, task), questions in sorted(gathered.answers.items(), key=lambda item: (item[0][1], item[0][0])):
        scores = scores_from(list(questions.values()))
        if accuracy := accuracy_of(scores):
            groups.setdefault(task, []).append(Bar(model, accuracy))
        rows.append({"task": task, "model": model, "rollouts": str(scores.answers), **figures_of(scores)})
    page.bars = [BarGroup(task, bars) for task, bars in groups.items()]
    note = "Means over the rollouts so far; accuracies with 95% intervals, clustered by question."
    page.tables.append(Table("Tasks", *columns_of(rows), [note]))
