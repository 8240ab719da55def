"""From tallies to results: every figure that an evaluation reports is made here, and the files that hold them.

results_<task>_<time>.json        one task, all models
results_all_tasks_<time>.json     all of them, with macro averages
summary.md                        the same as a table
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from statistics import fmean

from rg_env.core.run_folder import write_aside
from rg_env.core.statistics import Difference, mean_of, paired_difference
from rg_env.core.text import file_part
from rg_env.errors import InputError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.models import kind_of
from rg_env.evaluation.published import compare
from rg_env.evaluation.questions import TaskQuestions
from rg_env.evaluation.results import (
    AllResults,
    ExternalResult,
    ModelResult,
    ModelSummary,
    Paired,
    Questions,
    Sampling,
    TaskResults,
    Usage,
)
from rg_env.evaluation.runner import Outcome, Pair
from rg_env.evaluation.summary_table import markdown

_PACKAGES = ("rg-env", "reasoning-gym")


def results_of(
    config: EvalConfig,
    outcome: Outcome,
    engines: dict[str, str],
    external: Sequence[ExternalResult] = (),
    lm_eval: str = "",
) -> AllResults:
    """The results of an evaluation that is complete.

    Args:
        engines: what answered for each model.
        external: results of external benchmarks, by the version `lm_eval` of lm-evaluation-harness.

    Raises:
        InputError: a model was trained on all questions of a task.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    versions = {name: version(name) for name in _PACKAGES}
    tasks = {}
    for name in config.tasks:
        pairs = {pair.model: pair for pair in outcome.pairs if pair.task.name == name}
        task = next(iter(pairs.values())).task
        tasks[name] = TaskResults(
            created=created,
            versions=versions,
            task=name,
            spec=task.spec,
            category=task.category,
            questions=_questions(task),
            sampling=Sampling(
                rollouts_per_example=config.rollouts_per_example, **config.sampling_of(name).model_dump()
            ),
            system_prompt=config.prompt.system_prompt,
            grading=config.grading,
            floor=task.floor,
            models={model: _model(config, model, pair, engines[model]) for model, pair in pairs.items()},
            comparisons=[_paired(a, b, [(a, b)]) for a, b in combinations(pairs.values(), 2)],
        )
    return AllResults(
        created=created,
        versions=versions | ({"lm-eval": lm_eval} if external else {}),
        tasks=tasks,
        models={name: _summary(name, list(tasks.values())) for name in config.models if tasks},
        external=list(external),
        comparisons=[]
        if not tasks
        else [
            _paired(a[0], b[0], list(zip(a, b, strict=True)))
            for a, b in combinations(([outcome.of(model, task) for task in tasks] for model in config.models), 2)
        ],
        published=compare(config.published, tasks),
    )


def _questions(task: TaskQuestions) -> Questions:
    return Questions(
        n=len(task.rows), seed=task.seed, manifest_sha256=task.manifest_sha256, prompts_sha256=task.prompts_sha256
    )


def _model(config: EvalConfig, name: str, pair: Pair, engine: str) -> ModelResult:
    model = config.models[name]
    try:
        scores = pair.tally.scores(pair.task.floor)
    except InputError as error:
        raise InputError(f"{name}, {pair.task.name}: {error}") from error
    return ModelResult.model_validate(
        {
            "source": f"{model.model}@{model.url}" if model.url else model.model,
            "kind": kind_of(model),
            "engine": engine,
            "system_prompt": model.system_prompt,
            "scores": scores,
            "usage": pair.tally.usage(model.prices),
            "correct": pair.tally.correct(),
        }
    )


def _paired(a: Pair, b: Pair, tasks: Sequence[tuple[Pair, Pair]]) -> Paired:
    """Of two models, over the tasks whose pairs are given."""

    def shares(pair: Pair) -> dict[str, list[float]]:
        return {row: [float(each) for each in right] for row, right in pair.tally.correct().items()}

    found: Difference = paired_difference([(shares(one), shares(other)) for one, other in tasks])
    return Paired(
        a=a.model, b=b.model, n=found.n, difference=found.value, interval=found.interval, p_value=found.p_value
    )


def _summary(name: str, tasks: list[TaskResults]) -> ModelSummary:
    results = [task.models[name] for task in tasks]
    accuracy, interval = mean_of(
        [result.scores.accuracy for result in results], [result.scores.accuracy_interval for result in results]
    )
    adjusted = [each for result in results if (each := result.scores.guess_adjusted) is not None]
    categories = sorted({task.category for task in tasks})
    return ModelSummary(
        accuracy=accuracy,
        accuracy_interval=interval,
        guess_adjusted=fmean(adjusted) if adjusted else None,
        categories={
            category: fmean(task.models[name].scores.accuracy for task in tasks if task.category == category)
            for category in categories
        },
        usage=_total(result.usage for result in results),
        failed=sum(result.scores.failed for result in results),
    )


def _total(usages: Iterable[Usage]) -> Usage:
    """The sum; None where a part is not known."""
    each = [usage.model_dump() for usage in usages]
    columns = {name: [usage[name] for usage in each] for name in Usage.model_fields}
    return Usage(**{name: None if None in values else sum(values) for name, values in columns.items()})


def write_results(results: AllResults, folder: Path) -> dict[str, Path]:
    """Write the results files; returns them by task, that of all tasks under "". Each is written aside and renamed."""
    time = datetime.fromisoformat(results.created).strftime("%Y%m%d-%H%M%S")
    files = {}
    for name, task in results.tasks.items():
        files[name] = folder / f"results_{file_part(name)}_{time}.json"
        write_aside(files[name], task.model_dump_json(indent=1) + "\n")
    files[""] = folder / f"results_all_tasks_{time}.json"
    write_aside(files[""], results.model_dump_json(indent=1) + "\n")
    write_aside(folder / "summary.md", markdown(results))
    return files
