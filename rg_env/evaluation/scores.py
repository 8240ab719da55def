"""Compute an evaluation's results from the answers, and write them to files.

    results = results_of(answer_sets, {"base": ModelSource("tiny", "tiny", "embedded")})
    together({"before": first, "after": last})      # compares a training run's evaluations as if they were models

results_<task>_<time>.json        one task, all models
results_all_tasks_<time>.json     all tasks, with macro averages
summary.md                        the same results as tables
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from rg_env.core import statistics
from rg_env.core.files import write_aside
from rg_env.core.grading.scoring import Status
from rg_env.core.run_folder import installed_commit
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import file_part
from rg_env.errors import InputError
from rg_env.evaluation import results as schema
from rg_env.evaluation.config import EvalConfig, Price
from rg_env.evaluation.local_models import local_engine
from rg_env.evaluation.questions import FAILED, Answer, TaskAnswers
from rg_env.evaluation.results import Paired, Results, Scores, TaskResults, Usage, summary_of
from rg_env.evaluation.tables import markdown
from rg_env.tiny import TINY

STATUSES: tuple[str, ...] = (*get_args(Status), FAILED)


@dataclass(frozen=True)
class ModelSource:
    """The location of a model, and the engine that generates its answers."""

    source: str
    kind: Any
    engine: Any
    price: Price | None = None

    @classmethod
    def of(cls, config: EvalConfig, name: str) -> "ModelSource":
        """Return the source of the model called `name` in the config."""
        model = config.models[name]
        if model.url:
            return cls(f"{model.model}@{model.url}", "endpoint", "endpoint", model.price)
        kind = "folder" if Path(model.model).exists() else "hub"
        if model.model == TINY:
            kind = "tiny"
        elif (Path(model.model) / "adapter_config.json").is_file():
            kind = "adapter"
        return cls(model.model, kind, local_engine(config), model.price)


def results_of(answer_sets: Sequence[TaskAnswers], models: Mapping[str, ModelSource], **fields: Any) -> Results:
    """Compute the results once all answers are available. `fields` contains other fields of `Results`.

    Raises:
        InputError: a model was trained on all of a task's evaluation questions.
    """
    by_task: dict[str, list[TaskAnswers]] = {}
    for each in answer_sets:
        by_task.setdefault(each.task, []).append(each)
    tasks = {name: _task(name, each, models) for name, each in by_task.items()}
    environments = {(id(each.env), each.part, each.label): each for each in (each.questions for each in answer_sets)}
    versions = {name: version(name) for name in ("rg-env", "reasoning-gym")}
    versions |= {"commit": commit[:12]} if (commit := installed_commit()) else {}
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
        environments=[each.described() for each in environments.values()],
        tasks=tasks,
        models={name: summary_of(name, tasks.values(), _parts(name, answer_sets)) for name in models},
        comparisons=compared(list(models), [task for task in tasks.values() if task.in_overall]),
        **fields,
    )


def _task(name: str, answer_sets: Sequence[TaskAnswers], models: Mapping[str, ModelSource]) -> TaskResults:
    first, questions, env = answer_sets[0], answer_sets[0].questions, answer_sets[0].questions.env
    described, options = questions.described(), getattr(env, "prompt_options", None)
    task = env.eval_rows[questions.numbers[0]]["info"].get("rg_task")
    spec = next((each.model_dump() for each in env.mixture.tasks if each.name == task), None) if env.mixture else None
    results = {}
    for model, source in models.items():
        of_model = [each for each in answer_sets if each.model == model]
        scores = scores_of(of_model, questions.floor)
        if not scores.n:
            raise InputError(
                f"{model} was trained on all evaluation questions for {name}: use another eval_seed, or split the "
                "questions as in the model's training run (split_by)"
            )
        results[model] = schema.ModelResult(
            source=source.source,
            kind=source.kind,
            engine=source.engine,
            system_prompt=of_model[0].system_prompt,
            scores=scores,
            usage=usage_of((answer for each in of_model for answer in each.by_key.values()), source.price),
            correct=_correct(of_model),
        )
    found = TaskResults(
        task=name,
        part=questions.part,
        spec=spec,
        category=load_table()[task]["category"] if spec and task in load_table() else None,
        questions=schema.QuestionSet(
            n=sum(len(each.questions.numbers) for each in answer_sets if each.model == first.model),
            seed=None if env.manifest is None else env.manifest["splits"]["eval"]["seed"],
            manifest_sha256=described.manifest_sha256,
            prompts_sha256=described.prompts_sha256,
        ),
        sampling=schema.EvaluationSampling(
            **vars(first.sampling), rollouts_per_example=first.times, greedy=first.greedy
        ),
        system_prompt=options.system_prompt if options else None,
        grading=options.grading if options else "hardened",
        floor=questions.floor,
        models=results,
        comparisons=[],
    )
    return found.model_copy(update={"comparisons": compared(list(models), [found])})


def scores_of(answer_sets: Sequence[TaskAnswers], floor: float | None = None) -> Scores:
    """Compute the scores of a model's answers, both sampled and greedy."""
    sampled, greedy = (
        [answers for each in answer_sets for number in each.numbers if (answers := each.of(number, draw))]
        for draw in ("sampled", "greedy")
    )
    return scores_from(sampled, greedy, floor, sum(each.left_out for each in answer_sets))


def scores_from(
    questions: Sequence[Sequence[Answer]],
    greedy: Sequence[Sequence[Answer]] = (),
    floor: float | None = None,
    left_out: int = 0,
) -> Scores:
    """Compute scores from the sampled and the greedy answers, both grouped by question."""
    statuses = Counter(answer.status for answers in questions for answer in answers)
    count, right = sum(map(len, questions)), _values(questions, "correct")
    means: dict[str, Any] = dict.fromkeys(schema.MEANS)
    errors, intervals, passes = dict[str, float](), dict[str, Any](), dict[str, float]()
    for name, field in schema.MEANS.items():
        values = _values(greedy if name.startswith("greedy") else questions, field)
        if any(values):
            means[name], errors[name] = statistics.mean_and_error(values)
            is_share = field in ("correct", "truncated")
            ends = statistics.share_interval(values) if is_share else statistics.mean_interval(values)
            intervals |= {name: ends} if ends else {}
    times = min(map(len, right), default=0)
    for k in (2**power for power in range(times.bit_length()) if times > 1):
        each_passes = [[statistics.pass_at_k(len(each), int(sum(each)), k)] for each in right]
        passes[f"pass@{k}"], errors[f"pass@{k}"] = statistics.mean_and_error(each_passes)
    accuracy = means["accuracy"]
    return Scores(
        n=len(questions),
        answers=count,
        **means,
        guess_adjusted=None if floor is None or accuracy is None else statistics.guess_adjusted(accuracy, floor),
        pass_at_k=passes,
        errors=errors,
        intervals=intervals,
        status={name: statuses[name] / count for name in STATUSES if statuses[name]},
        failed=statuses[FAILED],
        left_out=left_out,
    )


def _values(questions: Sequence[Sequence[Answer]], name: str) -> list[list[float]]:
    """Return the values of the attribute `name`, grouped by question, without None."""
    found = [[getattr(answer, name) for answer in question] for question in questions]
    return [[float(value) for value in values if value is not None] for values in found]


def usage_of(answers: Iterable[Answer], price: Price | None) -> Usage:
    """Return the numbers of prompt and completion tokens recorded in `answers`, and the cost of these tokens."""
    answers, cost = list(answers), None
    prompts = _total([each.prompt_tokens for each in answers])
    completions = _total([each.completion_tokens for each in answers])
    if price is not None and prompts is not None and completions is not None:
        cost = (price.input * prompts + price.output * completions) / 1e6
    return Usage(prompt_tokens=prompts, completion_tokens=completions, cost=cost)


def _total(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the known counts, or None if no count is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _correct(answer_sets: Sequence[TaskAnswers]) -> dict[str, list[bool]]:
    """Return whether each sampled answer is correct, by question hash. A suffix distinguishes the keys of repeated
    questions."""
    found: dict[str, list[bool]] = {}
    for each in answer_sets:
        for number in each.numbers:
            answers, key = each.of(number), each.questions.hashes[number]
            key = key if key not in found else f"{key}#{len(found)}"
            if answers and all(each.correct is not None for each in answers):
                found[key] = [bool(each.correct) for each in answers]
    return found


def _parts(model: str, answer_sets: Sequence[TaskAnswers]) -> dict[schema.TaskPart, Scores]:
    found: dict[schema.TaskPart, Scores] = {}
    for part in ("training", "held_out"):
        if of_part := [each for each in answer_sets if each.model == model and each.questions.part == part]:
            found[part] = scores_of(of_part)
    return found


def compared(models: Sequence[str], tasks: Sequence[TaskResults]) -> list[Paired]:
    """Compare each pair of models that have questions in common on every task. Each difference is the accuracy of
    the model listed later minus that of the model listed earlier."""
    pairs = []
    for earlier, later in combinations(models, 2):
        answers = [(task.models[later].correct, task.models[earlier].correct) for task in tasks]
        if answers and all(set(one) & set(other) for one, other in answers):
            pairs.append(Paired(a=later, b=earlier, **vars(statistics.paired_difference(answers))))
    return pairs


def together(evaluations: Mapping[str, Results]) -> Results:
    """Merge evaluations of one model on the same questions, treating each evaluation as a model with the given name,
    and compare them."""
    last, names = list(evaluations.values())[-1], list(evaluations)
    tasks = {}
    for name, task in last.tasks.items():
        models = {key: next(iter(each.tasks[name].models.values())) for key, each in evaluations.items()}
        task = task.model_copy(update={"models": models})
        tasks[name] = task.model_copy(update={"comparisons": compared(names, [task])})
    return last.model_copy(
        update={
            "tasks": tasks,
            "models": {key: next(iter(each.models.values())) for key, each in evaluations.items()},
            "comparisons": compared(names, [task for task in tasks.values() if task.in_overall]),
        }
    )


def write_results(results: Results, folder: Path) -> dict[str, Path]:
    """Write the results files, and return their paths by task. The key "" refers to the file with all tasks."""
    time = datetime.fromisoformat(results.created).strftime("%Y%m%d-%H%M%S")
    files = {name: folder / f"results_{file_part(name)}_{time}.json" for name in results.tasks}
    for name, file in files.items():
        write_aside(file, results.of_task(name).model_dump_json(indent=1) + "\n")
    files[""] = folder / f"results_all_tasks_{time}.json"
    write_aside(files[""], results.model_dump_json(indent=1) + "\n")
    write_aside(folder / "summary.md", markdown(results))
    return files
