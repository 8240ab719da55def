"""The results of an evaluation as tables: on the console, and as `summary.md`."""

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rg_env.evaluation.probe import Advice
from rg_env.evaluation.results import AllResults, Paired


def print_results(results: AllResults, console: Console | None = None) -> None:
    """Print accuracies by task, and what two models differ by."""
    console = console or Console(highlight=False)
    heads, rows = _accuracies(results)
    _print(console, heads, rows)
    if results.comparisons:
        _print(console, *_differences(results))


def print_advice(advice: Mapping[str, Advice], console: Console | None = None) -> None:
    """Print what was found of each task and level; a level to start with is marked."""
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
    heads = ["task", "level", "solved", "groups that teach", "cut off", "answered", "constant", "rollouts a group"]
    _print(console or Console(highlight=False), [*heads, "verdict"], rows)


def _print(console: Console, heads: list[str], rows: list[list[str]]) -> None:
    table = Table(box=box.SIMPLE)
    for number, head in enumerate(heads):
        table.add_column(escape(head), justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)


def markdown(results: AllResults) -> str:
    """`summary.md`."""
    first = next(iter(results.tasks.values()))
    sampling = first.sampling
    answers = "one answer" if sampling.rollouts_per_example == 1 else f"{sampling.rollouts_per_example} answers"
    lines = [
        "# Evaluation",
        "",
        f"{results.created}; {', '.join(f'{name} {each}' for name, each in results.versions.items())}; {answers} a "
        f"question, temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, at most {sampling.max_tokens} "
        f"tokens; grading {first.grading}. Accuracies with their 95 % intervals, clustered by question.",
        "",
        *_markdown(*_accuracies(results)),
    ]
    if results.comparisons:
        lines += ["", "## Two models on the same questions", "", *_markdown(*_differences(results))]
        lines += ["", "Differences of accuracy with 95 % intervals (Newcombe); p-values by permutation, two-sided."]
    return "\n".join(lines) + "\n"


def _accuracies(results: AllResults) -> tuple[list[str], list[list[str]]]:
    models = results.models.values()
    rows = [
        [
            name,
            str(task.questions.n),
            _share(task.floor),
            *(_with_interval(each.scores.accuracy, each.scores.accuracy_interval) for each in task.models.values()),
        ]
        for name, task in results.tasks.items()
    ]
    further: dict[str, list[str]] = {}
    if len(results.tasks) > 1:
        further["macro average"] = [_with_interval(each.accuracy, each.accuracy_interval) for each in models]
        categories = next(iter(models)).categories
        further |= {f"category {name}": [_share(m.categories[name]) for m in models] for name in categories}
    further["adjusted for guessing"] = [_share(each.guess_adjusted) for each in models]
    if any(each.failed for each in models):
        further["failed calls"] = [str(each.failed) for each in models]
    further["tokens of answers"] = [_count(each.usage.completion_tokens) for each in models]
    if any(each.usage.cost is not None for each in models):
        further["cost"] = ["–" if each.usage.cost is None else f"{each.usage.cost:.4g}" for each in models]
    rows += [[name, "", "", *cells] for name, cells in further.items()]
    return ["task", "n", "constant", *results.models], rows


def _differences(results: AllResults) -> tuple[list[str], list[list[str]]]:
    pairs = [("macro average", each) for each in results.comparisons] if len(results.tasks) > 1 else []
    pairs += [(name, each) for name, task in results.tasks.items() for each in task.comparisons]
    rows = [[task, f"{each.a} - {each.b}", str(each.n), _signed(each), _p_value(each.p_value)] for task, each in pairs]
    return ["task", "models", "n", "difference", "p-value"], rows


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(heads), "|---" * len(heads) + "|", *map(line, rows)]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _signed(paired: Paired) -> str:
    return f"{paired.difference:+.3f} [{paired.interval[0]:+.3f}, {paired.interval[1]:+.3f}]"
