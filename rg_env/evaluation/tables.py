"""The results of an evaluation as tables: on the console, and as `summary.md`.

A training run prints its evaluations by the same table, before and after as two models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rg_env.evaluation.probe import Advice
from rg_env.evaluation.results import Part, Results, Sampling, Scores

_ABOUT_ACCURACIES = (
    "Accuracies with 95 % intervals, clustered by question. Constant: accuracy of the best constant answer. Below the "
    "tasks: means over them, and sums of tokens, costs, failed calls and questions left out. Adjusted for guessing: "
    "(accuracy - constant) / (1 - constant). Left out: questions that the model was trained on."
)
_ABOUT_PARTS = "Accuracies with 95 % intervals, clustered by question; training and held-out tasks: over all questions."
_ABOUT_DIFFERENCES = "Differences of accuracy with 95 % intervals (Newcombe); p-values by permutation, two-sided."
_ABOUT_ADVICE = (
    "Groups that teach: questions with some, but not all answers right; rollouts for one: generated for each of them. "
    "Cut off: by the token limit; answered: in the required form. Constant: accuracy of the best constant answer."
)
_VERDICTS = {"within_tolerance": "within tolerance", "within_chance": "within chance", "beyond": "beyond"}
_ABOUT_VERDICTS = (
    "Within tolerance: the accuracies differ by no more than that. Within chance: by more, but 0 is in the 95 % "
    "interval of the difference (Newcombe): chance explains it. Beyond: neither."
)

EXTERNAL_NOTE = "Examples: worked ones before each question. 95 % intervals: ± 1.96 of lm-eval's standard errors."
_TASKS_SHOWN = 30
"""On the console."""


class TableConsole(Console):
    """Raises `BrokenPipeError` like `print`."""

    def on_broken_pipe(self) -> None:
        raise  # the error that is handled: rich would end the program here, where commands have an exit code for it


@dataclass(frozen=True)
class _Part:
    """A table with what explains it."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


def tables_of(results: Results, limit: int | None = None) -> list[_Part]:
    """Accuracies by task, differences between models, published figures, and external benchmarks."""
    parts = []
    if results.tasks:
        about = _ABOUT_PARTS if _parts(results) else _ABOUT_ACCURACIES
        parts.append(_Part("", *_accuracies(results, limit), [about, *(() if limit else results.notes)]))
    if any(task.comparisons for task in results.tasks.values()):
        title = "Two models on the same questions"
        parts.append(_Part(title, *_differences(results, limit), [_ABOUT_DIFFERENCES]))
    if results.published:
        sources = dict.fromkeys(f"{each.table}: {each.source}" for each in results.published)
        parts.append(_Part("Published figures", *_published(results), [*sources, _ABOUT_VERDICTS]))
    if results.external:
        note = f"{EXTERNAL_NOTE} By lm-evaluation-harness {results.versions.get('lm-eval', '')}."
        parts.append(_Part("External benchmarks", *external_table(results), [note]))
    return parts


def print_results(results: Results, console: Console | None = None) -> None:
    """Print the tables of an evaluation."""
    console = console or TableConsole(highlight=False)
    for part in tables_of(results, _TASKS_SHOWN):
        print_table(console, part.heads, part.rows)
        for note in part.notes:
            console.print(note, markup=False)


def print_advice(advice: Mapping[str, Advice], console: Console | None = None) -> None:
    """Print the figures of each task and level; a level to start with is marked."""
    rows = []
    for name, each in advice.items():
        for found in each.levels:
            start = found.verdict == "trainable" and found.level == each.level
            rows.append(
                [
                    name,
                    "–" if found.level is None else str(found.level),
                    _share(found.solved),
                    _share(found.informative),
                    _share(found.truncated),
                    _share(found.answered),
                    _share(found.floor),
                    "–" if found.rollouts is None else f"{found.rollouts:.0f}",
                    f"{found.verdict}{' <- start' if start else ''}",
                ]
            )
    heads = ["task", "level", "solved", "groups that teach", "cut off", "answered", "constant", "rollouts for one"]
    console = console or TableConsole(highlight=False)
    print_table(console, [*heads, "verdict"], rows)
    console.print(_ABOUT_ADVICE, markup=False)


def print_table(console: Console, heads: list[str], rows: list[list[str]]) -> None:
    """Print a table without cutting any cell: the console is made as wide as necessary."""
    table = Table(box=box.SIMPLE)
    for number, head in enumerate(heads):
        table.add_column(escape(head), justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)


def markdown(results: Results) -> str:
    """`summary.md`."""
    what = f"{results.created}; {', '.join(f'{name} {each}' for name, each in results.versions.items())}"
    if first := next(iter(results.tasks.values()), None):
        times = first.sampling.rollouts_per_example
        answers = "one answer" if times == 1 else f"{times} answers"
        what = f"{what}; {answers} a question, {_sampled(results)}; grading {first.grading}"
    lines = ["# Evaluation", "", f"{what}."]
    for part in tables_of(results):
        lines += ["", f"## {part.title}"] if part.title else []
        lines += ["", *markdown_table(part.heads, part.rows)]
        for note in part.notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def external_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: the figures of external benchmarks, a column a model."""
    models = list(dict.fromkeys(each.model for each in results.external))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for each in results.external:
        for score in each.scores:
            shots = "–" if score.num_fewshot is None else str(score.num_fewshot)
            task = score.task if score.task == each.benchmark else f"{each.benchmark}: {score.task}"
            row = (task, score.metric, score.filter, str(score.n), shots)
            cell = _share(score.value) if score.interval is None else _with_interval(score.value, score.interval)
            cells.setdefault(row, {})[each.model] = cell
        if each.failed:
            cells.setdefault((each.benchmark, "failed calls", "", "", ""), {})[each.model] = str(each.failed)
    rows = [[*row, *(of_model.get(model, "–") for model in models)] for row, of_model in cells.items()]
    return ["benchmark", "metric", "filter", "n", "examples", *models], rows


def _parts(results: Results) -> dict[str, list[Scores]]:
    """Of a training run: the scores of all models over the training tasks, and over the held-out ones."""
    titles: dict[Part, str] = {"training": "training tasks", "held_out": "held-out tasks"}
    parts = {title: [each.parts.get(part) for each in results.models.values()] for part, title in titles.items()}
    return {title: [each for each in found if each] for title, found in parts.items() if None not in found}


def _accuracies(results: Results, limit: int | None = None) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            f"{name} (held out)" if task.part == "held_out" else name,
            str(task.questions.n),
            _share(task.floor),
            *(_accuracy(each.scores) for each in task.models.values()),
        ]
        for name, task in results.tasks.items()
    ]
    rows = _shortened(rows, limit)
    if parts := _parts(results):
        for title, scores in parts.items():
            rows += [[f"{title}, {name}", "", "", *cells] for name, cells in _figures(scores).items()]
    else:
        rows += [[name, "", "", *cells] for name, cells in _over_tasks(results).items()]
    return ["task", "n", "constant", *results.models], rows


def _figures(models: Sequence[Scores]) -> dict[str, list[str]]:
    """Figures over all questions of a part, by name; those that no model has are left out."""
    figures: dict[str, Callable[[Scores], str]] = {
        "accuracy": _accuracy,
        "greedy accuracy": lambda each: _share(each.greedy_accuracy),
        "reward": lambda each: _share(each.reward),
        "tokens of an answer": lambda each: _tokens(each.mean_completion_tokens),
        "cut off": lambda each: _share(each.truncated),
    }
    cells = {"questions": [str(each.n) for each in models]}
    cells |= {name: [figure(each) for each in models] for name, figure in figures.items()}
    cells |= {k: [_share(each.pass_at_k.get(k)) for each in models] for k in list(models[0].pass_at_k)[1:]}
    return {name: row for name, row in cells.items() if set(row) != {_NOTHING}}


def _over_tasks(results: Results) -> dict[str, list[str]]:
    """Means and sums over the tasks, by name."""
    models = results.models.values()
    rows: dict[str, list[str]] = {}
    if len(results.tasks) > 1:
        rows["macro average"] = [
            _NOTHING
            if each.accuracy is None or each.accuracy_interval is None
            else _with_interval(each.accuracy, each.accuracy_interval)
            for each in models
        ]
        categories = next(iter(models)).categories
        rows |= {f"category {name}": [_share(m.categories[name]) for m in models] for name in categories}
    rows["adjusted for guessing"] = [_share(each.guess_adjusted) for each in models]
    scores = [[task.models[name].scores for task in results.tasks.values()] for name in results.models]
    rows["reward"] = [_share(fmean(each.reward or 0.0 for each in of_model)) for of_model in scores]
    for k in list(scores[0][0].pass_at_k)[1:]:  # pass@1 is the accuracy
        rows[k] = [_share(fmean(each.pass_at_k[k] for each in of_model)) for of_model in scores]
    left_out = [sum(each.left_out for each in of_model) for of_model in scores]
    if any(left_out):
        rows["left out"] = [str(each) for each in left_out]
    if any(each.failed for each in models):
        rows["failed calls"] = [str(each.failed) for each in models]
    rows["tokens of answers"] = [_tokens(each.usage.completion_tokens) for each in models]
    if any(each.usage.cost is not None for each in models):
        rows["cost"] = [_NOTHING if each.usage.cost is None else f"{each.usage.cost:.4g}" for each in models]
    return rows


def _differences(results: Results, limit: int | None = None) -> tuple[list[str], list[list[str]]]:
    overall = "training tasks" if _parts(results) else "macro average"
    pairs = [(overall, each) for each in results.comparisons] if len(results.tasks) > 1 else []
    pairs += [(name, each) for name, task in results.tasks.items() for each in task.comparisons]
    rows = []
    for task, each in pairs:
        p_value = "< 0.001" if each.p_value < 0.001 else f"{each.p_value:.3f}"
        rows.append([task, f"{each.a} - {each.b}", str(each.n), _signed(each.difference, each.interval), p_value])
    return ["task", "models", "n", "difference", "p-value"], _shortened(rows, limit)


def _shortened(rows: list[list[str]], limit: int | None) -> list[list[str]]:
    if limit is None or len(rows) <= limit:
        return rows
    return [*rows[:limit], [f"and {len(rows) - limit} more", *[""] * (len(rows[0]) - 1)]]


def _sampled(results: Results) -> str:
    """How answers were drawn; where tasks differ, of which."""
    tasks: dict[Sampling, list[str]] = {}
    for name, task in results.tasks.items():
        tasks.setdefault(task.sampling, []).append(name)
    return "; ".join(
        f"temperature {each.temperature:g}, top_p {each.top_p:g}, at most {each.max_tokens} tokens"
        + (f" ({', '.join(names)})" if len(tasks) > 1 else "")
        for each, names in tasks.items()
    )


def _published(results: Results) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            f"{each.table}: {each.row}",
            each.model,
            str(each.n),
            _with_interval(each.ours, each.interval),
            _share(each.published),
            _signed(each.difference, each.difference_interval),
            _share(each.tolerance),
            _VERDICTS[each.verdict],
        ]
        for each in results.published
    ]
    return ["published", "model", "n", "ours", "theirs", "difference", "tolerance", ""], rows


def markdown_table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table in Markdown."""

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(heads), "|---" * len(heads) + "|", *map(line, rows)]


_NOTHING = "–"


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def _accuracy(scores: Scores) -> str:
    """With its interval; where none is measured, the mean reward."""
    if scores.accuracy is None or scores.accuracy_interval is None:
        return f"reward {_share(scores.reward)}"
    return _with_interval(scores.accuracy, scores.accuracy_interval)


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _signed(value: float, interval: tuple[float, float]) -> str:
    return f"{value:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]"
