"""The page of an evaluation: its results files (`evaluation.results`), and the `rollouts.jsonl` beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rg_env.errors import InputError
from rg_env.evaluation.report.parts import Bar, BarGroup, Estimate, Page, Table, Text, figure
from rg_env.evaluation.report.rollouts import Gathered, Record, gather, line_source
from rg_env.evaluation.results import Paired, Results, Scores, TaskResults, read_results
from rg_env.evaluation.tables import EXTERNAL_NOTE, external_table

ROLLOUTS = "rollouts.jsonl"
_PATTERN, _ALL = "results_*.json", "results_all_tasks_"


def is_evaluation(folder: Path) -> bool:
    """Whether an evaluation has left results or rollouts there."""
    return (folder / ROLLOUTS).is_file() or any(folder.glob(_PATTERN))


def results_page(source: Path, limit: int) -> Page:
    """The report of the evaluation in a folder, of a results file, or of a file of rollouts.

    Without results, as in mid-evaluation, accuracies are those of the rollouts.

    Raises:
        InputError: nothing there can be read.
    """
    folder = source if source.is_dir() else source.parent
    page = Page(source.resolve().name if source.is_dir() else source.stem, "evaluation")
    results = None if source.name == ROLLOUTS else _results(source, page.notes)
    tasks = results.tasks if results else {}
    models = list(dict.fromkeys(name for task in tasks.values() for name in task.models))

    def system_prompt(record: Record) -> str | None:
        task = tasks.get(record.get("task", ""))
        model = task.models.get(record.get("model", "")) if task else None
        own = model.system_prompt if model else None
        return own if own is not None or task is None else task.system_prompt

    rollouts = folder / ROLLOUTS
    asked = tasks if tasks and source.is_file() else None  # a file of one task: the others beside it are not asked for
    sources = [line_source(rollouts, training=False, tasks=asked)] if rollouts.is_file() else []
    gathered = gather(sources, limit, models=models, system_prompt=system_prompt)
    page.rollouts = gathered.rollouts
    page.notes += gathered.notes
    if results and results.external:
        page.tables.append(Table("External benchmarks", *external_table(results), EXTERNAL_NOTE))
    if results and not tasks:
        page.facts = [("created", results.created), ("versions", _versions(results.versions))]
    elif results:
        _add_facts(page, results)
        _add_summary(page, results)
        _add_tasks(page, tasks)
        if sources:
            page.notes += _differences(tasks, gathered)
        else:
            page.notes.append(f"there is no {ROLLOUTS} beside the results: no rollouts to show")
    else:
        if not gathered.rollouts.found:
            damaged = f" ({'; '.join(page.notes)})" if page.notes else ""
            raise InputError(f"{rollouts} holds no rollouts{damaged}")
        page.notes.append(f"no results file: figures are those of the rollouts in {ROLLOUTS}, as far as they go")
        _add_answers(page, gathered)
    return page


def _results(source: Path, notes: list[str]) -> Results | None:
    """Those of all tasks, or else those of single tasks together; of several the newest."""
    if source.is_file():
        return read_results(source)
    found: dict[str, Results] = {}
    errors: list[InputError] = []
    for file in sorted(source.glob(_PATTERN)):
        try:
            found[file.name] = read_results(file)
        except InputError as error:
            errors.append(error)
    if not found:
        if errors:
            raise errors[0]
        return None
    notes += [f"left out: {error}" for error in errors]
    every = {name: each for name, each in found.items() if name.startswith(_ALL)}
    newest = max(every or found, key=lambda name: (found[name].created, name))
    chosen = found[newest]
    if not every:  # an evaluation that ended before its summary
        latest = {task: each for _, each in sorted(found.items(), key=lambda item: (item[1].created, item[0]))
                  for task in each.tasks}  # fmt: skip
        if len(latest) > 1:
            tasks = {task: each.tasks[task] for task, each in latest.items()}
            chosen = chosen.model_copy(update={"tasks": tasks, "models": {}, "comparisons": []})
        if 1 < len(latest) < len(found):
            notes.append("several results of one task: the newest is shown")
        if len(latest) > 1:
            return chosen
    if len(every or found) > 1:
        notes.append(f"several results: {newest} is shown, the newest")
    return chosen


def _add_facts(page: Page, results: Results) -> None:
    tasks = results.tasks
    first = next(iter(tasks.values()))
    sampling, versions = first.sampling, results.versions
    models = {name: model for task in tasks.values() for name, model in task.models.items()}
    page.facts = [
        ("created", results.created),
        ("models", ", ".join(models)),
        ("tasks", str(len(tasks))),
        ("questions", f"{sum(task.questions.n for task in tasks.values()):,}"),
        ("answers a question", str(sampling.rollouts_per_example)),
        ("sampling", f"temperature {sampling.temperature}, top_p {sampling.top_p}, max. tokens {sampling.max_tokens}"),
        ("grading", first.grading),
        ("versions", _versions(versions)),
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


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _add_summary(page: Page, results: Results) -> None:
    categories = list(dict.fromkeys(name for model in results.models.values() for name in model.categories))
    rows = []
    for name, model in results.models.items():
        usage = model.usage
        means = [model.categories.get(category) for category in categories]
        rows.append(
            [
                name,
                figure(_estimate(model.accuracy, model.accuracy_interval)),
                _cell(model.guess_adjusted),
                *map(_cell, means),
                *(f"{each:,}" if each is not None else "–" for each in (usage.prompt_tokens, usage.completion_tokens)),
                _cell(usage.cost),
                str(model.failed),
            ]
        )
    if rows:
        columns = [
            "model",
            "accuracy",
            "above guessing",
            *categories,
            "prompt tokens",
            "completion tokens",
            "cost",
            "failed",
        ]
        note = "Macro average over tasks, with 95 % interval; by category without."
        page.tables.append(Table("All tasks", columns, rows, note))
    if results.comparisons:
        page.tables.append(_comparisons("Models compared, all tasks", results.comparisons))


def _comparisons(title: str, pairs: Sequence[Paired]) -> Table:
    rows = [
        [f"{p.a} − {p.b}", figure(Estimate(p.difference, *p.interval), sign=True), f"{p.p_value:.4f}", str(p.n)]
        for p in pairs
    ]
    note = (
        "On the same questions (paired), with 95 % interval; p by permutation, not corrected for several comparisons."
    )
    return Table(title, ["models", "difference in accuracy", "p", "questions"], rows, note)


def _add_tasks(page: Page, tasks: Mapping[str, TaskResults]) -> None:
    rows, pairs = [], []
    for name, task in tasks.items():
        bars = [
            Bar(model, estimate)
            for model, each in task.models.items()
            if (estimate := _estimate(each.scores.accuracy, each.scores.accuracy_interval))
        ]
        page.bars.append(BarGroup(name, bars, f"{task.questions.n} questions", task.floor))
        rows += [[name, model, *_scores(each.scores)] for model, each in task.models.items()]
        pairs += [[name, *row] for row in _comparisons("", task.comparisons).rows]
    page.bars_title = "Accuracy by task"
    columns = [
        "task",
        "model",
        "n",
        "accuracy",
        "above guessing",
        "reward",
        "pass@k",
        "tokens",
        "cut off",
        "failed",
        "left out",
    ]
    note = "Means with 95 % intervals, clustered by question. Left out: questions that the model was trained on."
    page.tables.append(Table("Tasks", columns, rows, note))
    if pairs and len(tasks) > 1:
        head = _comparisons("", [])
        page.tables.append(Table("Models compared, by task", ["task", *head.columns], pairs, head.note))
    elif pairs:
        page.tables.append(_comparisons("Models compared", next(iter(tasks.values())).comparisons))


def _scores(scores: Scores) -> list[str]:
    k, best = next(reversed(scores.pass_at_k.items()), ("", None))
    return [
        str(scores.n),
        figure(_estimate(scores.accuracy, scores.accuracy_interval)),
        _cell(scores.guess_adjusted),
        figure(_estimate(scores.reward, scores.reward_interval)),
        f"{k} {best:.2f}" if best is not None else "–",
        _cell(scores.mean_completion_tokens, 1),
        _cell(scores.truncated),
        str(scores.failed),
        str(scores.left_out),
    ]


def _estimate(value: float | None, interval: tuple[float, float] | None) -> Estimate | None:
    return None if value is None or interval is None else Estimate(value, *interval)


def _cell(value: float | None, digits: int = 2) -> str:
    return figure(None if value is None else Estimate(value), digits)


def _differences(tasks: Mapping[str, TaskResults], gathered: Gathered) -> list[str]:
    """Where results and rollouts do not tell the same: of another evaluation, or not all there."""
    notes = []
    for name, task in tasks.items():
        for model, result in task.models.items():
            answers = gathered.answers.get((model, name), {})
            found = sum(map(len, answers.values()))
            if found != result.scores.answers:
                notes.append(
                    f"{name}, {model}: {ROLLOUTS} has {found:,} rollouts, the results count {result.scores.answers:,}"
                )
    others = sorted({f"{model} on {task}" for model, task in gathered.answers if model not in _models(tasks, task)})
    if others:
        notes.append(f"{ROLLOUTS} also has rollouts that the results do not count: {', '.join(others)}")
    return notes


def _models(tasks: Mapping[str, TaskResults], task: str) -> Mapping[str, object]:
    return tasks[task].models if task in tasks else {}


def _add_answers(page: Page, gathered: Gathered) -> None:
    """Accuracy and reward of each model on each task, from its rollouts."""
    groups: dict[str, list[Bar]] = {}
    rows = []
    for (model, task), questions in sorted(gathered.answers.items(), key=lambda item: (item[0][1], item[0][0])):
        row = [task, model, str(len(questions)), str(sum(map(len, questions.values())))]
        for name in ("correct", "reward"):
            values = [[float(each[name]) for each in answers if name in each] for answers in questions.values()]
            estimate = Estimate.of_values(values, share=name == "correct") if any(values) else None
            row.append(figure(estimate))
            if name == "correct" and estimate:
                groups.setdefault(task, []).append(Bar(model, estimate))
        rows.append(row)
    page.bars = [BarGroup(task, bars) for task, bars in groups.items()]
    page.bars_title = "Accuracy by task"
    if rows:
        note = "Of the rollouts that are there: mean and 95 % interval, clustered by question."
        columns = ["task", "model", "questions", "rollouts", "accuracy", "reward"]
        page.tables.append(Table("Tasks", columns, rows, note))
