"""The page of an evaluation: its results files (`evaluation.results`), and the `rollouts.jsonl` next to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rg_env.errors import InputError
from rg_env.evaluation.report.page import Bar, BarGroup, Estimate, Page, Table, Text, figure
from rg_env.evaluation.report.rollouts import Gathered, Record, file_source, gather
from rg_env.evaluation.results import Accuracy, Paired, Results, Scores, TaskResults, read_results
from rg_env.evaluation.runner import ROLLOUTS
from rg_env.evaluation.tables import EXTERNAL_NOTE, external_table

_PATTERN, _ALL = "results_*.json", "results_all_tasks_"


def is_evaluation(folder: Path) -> bool:
    """Whether an evaluation has written results or rollouts to `folder`."""
    return (folder / ROLLOUTS).is_file() or any(folder.glob(_PATTERN))


def results_page(source: Path, limit: int) -> Page:
    """The report of the evaluation in a folder, of a results file, or of a file of rollouts.

    Without results, as during the evaluation, accuracies are computed from the rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    folder = source if source.is_dir() else source.parent
    page = Page(source.resolve().name if source.is_dir() else source.stem, "evaluation")
    results = None if source.name == ROLLOUTS else _results(source, page.notes)
    tasks = results.tasks if results else {}
    models = list(dict.fromkeys(name for task in tasks.values() for name in task.models))

    def system_prompt(record: Record) -> str | None:
        if (task := tasks.get(record["task"])) is None:
            return None
        model = task.models.get(record["model"])
        return task.system_prompt if model is None or model.system_prompt is None else model.system_prompt

    rollouts = folder / ROLLOUTS
    asked = tasks if tasks and source.is_file() else None  # a file of one task does not show the others in the folder
    sources = [file_source(rollouts, "evaluation", asked)] if rollouts.is_file() else []
    gathered = gather(sources, limit, variants=models, system_prompt=system_prompt)
    page.rollouts = gathered.rollouts
    page.notes += gathered.notes
    if results is None:
        if not gathered.rollouts.found:
            raise InputError(f"{rollouts} holds no rollouts")
        page.notes.append(f"no results file: figures are those of the rollouts in {ROLLOUTS} so far")
        _add_answers(page, gathered)
        return page
    if results.external:
        page.tables.append(Table("External benchmarks", *external_table(results), EXTERNAL_NOTE))
    _add_facts(page, results)
    _add_summary(page, results)
    if tasks:
        add_tasks(page, results)
        page.notes += _differences(tasks, gathered) if sources else [f"no {ROLLOUTS}: there are no rollouts to show"]
    return page


def _results(source: Path, notes: list[str]) -> Results | None:
    """Results of all tasks, or else those of single tasks together; the newest of several."""
    if source.is_file():
        return read_results(source)
    found = {file.name: read_results(file) for file in sorted(source.glob(_PATTERN))}
    if not found:
        return None
    names = sorted(found, key=lambda name: (name.startswith(_ALL), found[name].created, name))
    newest = found[names[-1]]
    if names[-1].startswith(_ALL):
        shown = {names[-1]}
        several = sum(name.startswith(_ALL) for name in names) > 1
    else:  # an evaluation that ended before its summary
        latest = {task: name for name in names for task in found[name].tasks}
        shown, several = set(latest.values()), len(latest) < len(found)
        if len(latest) > 1:
            tasks = {task: found[name].tasks[task] for task, name in sorted(latest.items())}
            newest = newest.model_copy(update={"tasks": tasks, "models": {}, "comparisons": []})
    if several:
        notes.append(f"several results: {', '.join(sorted(shown))} shown, the newest")
    return newest


def _add_facts(page: Page, results: Results) -> None:
    tasks = results.tasks
    page.facts = [("created", results.created)]
    if first := next(iter(tasks.values()), None):
        sampling = first.sampling
        models = {name: model for task in tasks.values() for name, model in task.models.items()}
        page.facts += [
            ("models", ", ".join(models)),
            ("tasks", str(len(tasks))),
            ("questions", f"{sum(task.questions.n for task in tasks.values()):,}"),
            ("answers a question", str(sampling.rollouts_per_example)),
            ("temperature", f"{sampling.temperature:g}"),
            ("top_p", f"{sampling.top_p:g}"),
            ("max. tokens", str(sampling.max_tokens)),
            ("grading", first.grading),
        ]
        if any((task.sampling, task.grading) != (sampling, first.grading) for task in tasks.values()):
            page.notes.append("tasks differ in sampling or grading: the facts on top are those of the first one")
        rows = [[name, model.source, model.kind, model.engine] for name, model in models.items()]
        page.tables.append(Table("Models", ["model", "source", "kind", "engine"], rows))
        prompts = {task.system_prompt: f"System prompt, {name}" for name, task in reversed(list(tasks.items()))}
        if len(prompts) == 1:
            prompts = {first.system_prompt: "System prompt"}
        prompts |= {m.system_prompt: f"System prompt of {n}" for n, m in models.items() if m.system_prompt is not None}
        page.texts += [Text(title, prompt) for prompt, title in prompts.items() if prompt is not None]
    page.facts.append(("versions", ", ".join(f"{name} {version}" for name, version in results.versions.items())))


def _add_summary(page: Page, results: Results) -> None:
    categories = list(dict.fromkeys(name for model in results.models.values() for name in model.categories))
    rows = [
        [
            name,
            figure(accuracy_of(model)),
            figure(model.guess_adjusted),
            *(figure(model.categories.get(category)) for category in categories),
            *(f"{n:,}" if n is not None else "–" for n in (model.usage.prompt_tokens, model.usage.completion_tokens)),
            figure(model.usage.cost),
            str(model.failed),
        ]
        for name, model in results.models.items()
    ]
    columns = ["model", "accuracy", "above guessing", *categories, "prompt tokens", "completion tokens", "cost"]
    columns.append("failed")
    if rows:
        note = "Macro average over tasks, with 95 % interval; by category without."
        page.tables.append(Table("All tasks", columns, rows, note))
    if results.comparisons and len(results.tasks) > 1:
        page.tables.append(_comparisons("Models compared, all tasks", {"": results.comparisons}))


def add_tasks(page: Page, results: Results, titles: Mapping[str, str] | None = None, kind: str = "model") -> None:
    """Bars and tables of each task, and comparisons of the models on it.

    Args:
        titles: of tasks; default: their names.
        kind: what the models are: "model", or "step" in a training run.
    """
    rows, pairs = [], {}
    for name, task in results.tasks.items():
        title = (titles or {}).get(name, name)
        found = {model: accuracy_of(each.scores) for model, each in task.models.items()}
        bars = [Bar(model, estimate) for model, estimate in found.items() if estimate]
        page.bars.append(
            BarGroup(title, bars, f"{task.questions.n} question{'s' * (task.questions.n != 1)}", task.floor)
        )
        rows += [[title, model, *_scores(each.scores)] for model, each in task.models.items()]
        pairs[title] = task.comparisons
    columns = ["task", kind, "n", "accuracy", "above guessing", "reward", "pass@k", "tokens", "cut off", "failed",
               "left out"]  # fmt: skip
    note = "Means with 95 % intervals, clustered by question. Left out: questions that the model was trained on."
    page.tables.append(Table("Tasks", columns, rows, note))
    if any(pairs.values()):
        page.tables.append(_comparisons(f"{kind.capitalize()}s compared, by task", pairs, kind))


def _comparisons(title: str, pairs: Mapping[str, Sequence[Paired]], kind: str = "model") -> Table:
    """Pairs of models, by task if there are tasks."""
    rows = [
        [task, f"{p.a} − {p.b}", figure(Estimate(p.difference, *p.interval), sign=True), f"{p.p_value:.4f}", str(p.n)]
        for task, of_task in pairs.items()
        for p in of_task
    ]
    columns = ["task", f"{kind}s", "difference in accuracy", "p", "questions"]
    if list(pairs) == [""]:
        columns, rows = columns[1:], [row[1:] for row in rows]
    note = (
        "On the same questions (paired), with 95 % interval; p by permutation, not corrected for several comparisons."
    )
    return Table(title, columns, rows, note)


def _scores(scores: Scores) -> list[str]:
    k, best = next(reversed(scores.pass_at_k.items()), ("", None))
    return [
        str(scores.n),
        figure(accuracy_of(scores)),
        figure(scores.guess_adjusted),
        figure(Estimate.of(scores.reward, scores.reward_interval)),
        f"{k} {best:.2f}" if best is not None else "–",
        figure(scores.mean_completion_tokens, 1),
        figure(scores.truncated),
        str(scores.failed),
        str(scores.left_out),
    ]


def accuracy_of(found: Accuracy | None) -> Estimate | None:
    """The accuracy with its interval; None if it was not measured."""
    return None if found is None else Estimate.of(found.accuracy, found.accuracy_interval)


def _differences(tasks: Mapping[str, TaskResults], gathered: Gathered) -> list[str]:
    """Differences between results and rollouts, which are then of another evaluation, or incomplete."""
    notes = []
    models = ((name, model, each) for name, task in tasks.items() for model, each in task.models.items())
    counted = {(model, name): each.scores.answers for name, model, each in models}
    for (model, name), answers in counted.items():
        found = sum(map(len, gathered.answers.get((model, name), {}).values()))
        if found != answers:
            notes.append(f"{name}, {model}: {ROLLOUTS} has {found:,} rollouts, the results count {answers:,}")
    if others := sorted(f"{model} on {task}" for model, task in gathered.answers.keys() - counted.keys()):
        notes.append(f"{ROLLOUTS} also has rollouts that the results do not count: {', '.join(others)}")
    return notes


def _add_answers(page: Page, gathered: Gathered) -> None:
    """Accuracy and reward of each model on each task, from its rollouts."""
    groups: dict[str, list[Bar]] = {}
    rows = []
    for (model, task), questions in sorted(gathered.answers.items(), key=lambda item: (item[0][1], item[0][0])):
        accuracy, reward = (
            Estimate.of_values(
                [[float(each[name]) for each in answers if each[name] is not None] for answers in questions.values()],
                share=name == "correct",
            )
            for name in ("correct", "reward")
        )
        counts = [str(len(questions)), str(sum(map(len, questions.values())))]
        rows.append([task, model, *counts, figure(accuracy), figure(reward)])
        if accuracy:
            groups.setdefault(task, []).append(Bar(model, accuracy))
    page.bars = [BarGroup(task, bars) for task, bars in groups.items()]
    note = "Of the rollouts so far: mean and 95 % interval, clustered by question."
    page.tables.append(Table("Tasks", ["task", "model", "questions", "rollouts", "accuracy", "reward"], rows, note))
