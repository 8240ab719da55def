"""Evaluation results as typed records, and the format of results files.

    results = read_results("outputs/eval/results_all_tasks_20250101-120000.json")
    results = read_results("outputs/RUN/eval_results/eval_step_25.json")
    results.tasks["maze"].models["base"].scores.accuracy
    results = merged({"a.json": read_results("a.json"), "b.json": read_results("b.json")})

`rg-env eval` writes one file for all tasks and one for each task. A training run writes one file per evaluation,
including the rollouts. All models in a file answered the same frozen questions. `correct` records whether each sampled
answer is correct, so that models can be compared question by question later, even across files. Intervals are 95%
confidence intervals.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, Strict, ValidationError

from rg_env.core.config.files import leaves
from rg_env.core.config.parsing import Section, Share, problems_in
from rg_env.core.files import read_bytes
from rg_env.core.run_folder import RunFolder, damaged
from rg_env.core.statistics import Difference, Interval, mean_of
from rg_env.core.text import listed, one_line
from rg_env.errors import InputError
from rg_env.inference.protocol import Sampling

IntervalField = Annotated[Interval, Strict(False)]
"""95% confidence interval. The type is not strict because intervals are lists in JSON."""
TaskPart = Literal["training", "held_out", "labelled"]
"""Role of a task in a training run: trained on, held out, or reported under a label and excluded from all overall
figures."""
PART_SUFFIXES = {"held_out": " (held out)", "labelled": " (label)"}
"""Suffixes of task names in plots and reports, by the task's role."""


MEANS = {"accuracy": "correct", "greedy_accuracy": "correct", "reward": "reward", "greedy_reward": "reward",
         "mean_completion_tokens": "completion_tokens", "truncated": "truncated",
         "lenient_accuracy": "lenient"}  # fmt: skip
"""Means in `Scores`, other than pass@k, each mapped to the answer field that it averages."""


OVERLAP_UNKNOWN = "its overlap with the questions is unknown"
"""TaskPart of the note about a model whose training questions are not recorded."""


class ResultsRecord(Section):
    """A part of a results file."""

    model_config = ConfigDict(allow_inf_nan=False)


class QuestionSet(ResultsRecord):
    """The questions, which are the same for all models."""

    n: int
    """Number of questions."""
    seed: int | None
    """Seed of the evaluation split, or None for rows that rg_env did not generate."""
    manifest_sha256: str | None
    """Hash of the evaluation split in the environment's manifest (`core.data.manifest.split_hash`), or None for rows
    that rg_env did not generate."""
    prompts_sha256: str
    """Hash of the prompts and gold answers. The prompts are those for models without their own system prompt."""


class EvaluatedEnvironment(ResultsRecord):
    """An environment that provided evaluation rows."""

    part: TaskPart | None
    label: str | None
    tasks: list[str]
    n: int
    manifest_sha256: str | None
    prompts_sha256: str


@dataclass(frozen=True, kw_only=True)
class EvaluationSampling(Sampling):
    """Sampling settings."""

    rollouts_per_example: int
    greedy: bool = False
    """Whether each question also has one greedy answer."""
    known: bool = True
    """False for existing replies, whose settings are unknown."""
    stop: Annotated[tuple[str, ...], Strict(False)] = ()

    @property
    def described(self) -> str:
        """Temperature, top_p and token limit, for tables and reports."""
        if not self.known:
            return "unknown sampling settings"
        return f"temperature {self.temperature:g}, top_p {self.top_p:g}, at most {self.max_tokens} tokens"


class Accuracy(ResultsRecord):
    """Mean accuracy, with confidence intervals for this mean and for other means."""

    accuracy: Share | None
    """Mean accuracy, or None if the environment does not have an accuracy metric."""
    intervals: dict[str, IntervalField]
    """Intervals of the means in `MEANS`, by name. Means that are None do not have intervals. If there is only one
    question, mean rewards and token counts do not have intervals."""

    @property
    def measured(self) -> tuple[float, Interval]:
        """The accuracy and its interval. Raises `InputError` if the accuracy was not measured."""
        if self.accuracy is None:
            raise InputError("accuracy was not measured, because the environment does not have an accuracy metric")
        return self.accuracy, self.intervals["accuracy"]


class Scores(Accuracy):
    """Means over all answers to `n` questions (the greedy answers for `greedy_...`, otherwise the sampled answers),
    with standard errors and intervals clustered by question.

    A call that ultimately failed counts as a wrong answer. A mean is None if there are no values to average, for
    example if the environment does not have an accuracy metric, there are no greedy answers, or the server does not
    report tokens.
    """

    n: int
    """Number of questions, excluding those that the model was trained on."""
    answers: int
    """Number of sampled answers, including failed calls."""
    guess_adjusted: float | None
    """(accuracy - floor) / (1 - floor), where floor is the best constant answer's accuracy. 0 means no better than
    guessing."""
    greedy_accuracy: Share | None
    reward: float | None
    greedy_reward: float | None
    pass_at_k: dict[str, float]
    """pass@1, pass@2, pass@4, ... up to the number of answers per question. If there is only one answer per question,
    the mapping is empty."""
    mean_completion_tokens: float | None
    truncated: Share | None
    """Fraction of answers cut off by `max_tokens`."""
    lenient_accuracy: Share | None = None
    """Accuracy if answers without well-formed tags are read leniently (`extraction.extract_lenient`), or None if this
    was not requested."""
    errors: dict[str, float]
    """Standard errors of the means, with the same keys as `figures` (except `status/...`). With a single question, all
    standard errors are 0."""
    status: dict[str, float]
    """Fraction of answers by status (`core.grading.scoring.Status`, or "failed"). The mapping is empty if the
    environment does not have status metrics."""
    failed: int
    """Number of calls for sampled answers that ultimately failed."""
    left_out: int
    """Number of questions skipped because this model was trained on them."""

    def figures(self) -> dict[str, float]:
        """Return all known means by name, such as `accuracy`, `pass@2` and `status/correct`."""
        known = {name: value for name in MEANS if (value := getattr(self, name)) is not None}
        return self.pass_at_k | known | {f"status/{name}": share for name, share in self.status.items()}


class Usage(ResultsRecord):
    """Token counts and their cost."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    """Cost in the currency of the configured prices, or None if prices or token counts are missing."""


class ModelResult(ResultsRecord):
    """Results of one model on one task."""

    source: str
    """Folder, name on the Hugging Face Hub, "tiny", MODEL@URL for an endpoint, or the file of existing replies."""
    kind: Literal["endpoint", "hub", "folder", "adapter", "tiny", "replies"]
    engine: Literal["endpoint", "embedded", "vllm", "replies"]
    system_prompt: str | None
    """The model's own system prompt, or None if the model uses the task's system prompt."""
    scores: Scores
    usage: Usage
    correct: dict[str, list[bool]]
    """Whether each sampled answer is correct, by hash of the question (`core.data.splits.question_hash`)."""


@dataclass(frozen=True, kw_only=True)
class Paired(Difference):
    """Paired comparison of two models on the same questions: the accuracy of `a` (the model listed later) minus the
    accuracy of `b`."""

    a: str
    b: str
    interval: IntervalField


class TaskResults(ResultsRecord):
    """Results of all models on one task."""

    task: str
    """Name or label of the task."""
    part: TaskPart | None = None
    """Role in the training run, or None outside a training run."""
    spec: dict[str, Any] | None
    """Name, config and levels, as accepted by `Mixture.parse`, or None for rows that rg_env did not generate."""
    category: str | None
    questions: QuestionSet
    sampling: EvaluationSampling
    system_prompt: str | None
    grading: Literal["hardened", "partial", "upstream"]
    floor: Share | None
    """Accuracy of the best constant answer to these questions, or None if it was not measured."""
    models: Annotated[dict[str, ModelResult], Field(min_length=1)]
    """Models by name, in config order."""
    comparisons: list[Paired]
    """Comparisons between all pairs of models that have questions in common."""

    @property
    def scores(self) -> Scores:
        """Scores of the first model, which is the only one in a training run."""
        return next(iter(self.models.values())).scores

    @property
    def in_overall(self) -> bool:
        """Whether macro averages include the task."""
        return self.part in (None, "training")


class ModelSummary(Accuracy):
    """Macro average of a model's accuracies over all tasks. For a training run, the average excludes held-out tasks and
    labeled tasks."""

    guess_adjusted: float | None
    """Mean of `guess_adjusted` over the tasks that have a floor."""
    categories: dict[str, Share]
    """Macro average by category."""
    usage: Usage
    failed: int
    parts: dict[TaskPart, Scores] = Field(default_factory=dict)
    """Scores over all questions from the training tasks and over all questions from the held-out tasks. This field is
    set only for training runs."""


class Results(ResultsRecord):
    """Results of an evaluation: all models on all tasks."""

    format: Literal["rg_env.evaluation/2"] = "rg_env.evaluation/2"
    created: str
    """Creation time in UTC, in ISO 8601 format."""
    versions: dict[str, str]
    step: int | None = None
    """Number of optimizer steps before this evaluation. This field is set only for training runs."""
    environments: list[EvaluatedEnvironment] = Field(default_factory=list)
    """Environments that provided the questions."""
    notes: list[str] = Field(default_factory=list)
    """Notes about the models' training runs, for example about different settings or unknown training questions."""
    tasks: dict[str, TaskResults]
    """Results by task."""
    models: dict[str, ModelSummary]
    comparisons: list[Paired]
    """Comparisons of macro averages between all pairs of models that have questions in common on every task. `n` is the
    number of questions."""
    rollouts: list[dict[str, Any]] = Field(default_factory=list)
    """Records of the answers. This field is set only for training runs. Other evaluations store the records in
    rollouts.jsonl."""

    @property
    def overlap_is_known(self) -> bool:
        """Whether the questions that each model was trained on are known, so that they could be left out."""
        return not any(OVERLAP_UNKNOWN in note for note in self.notes)

    def of_task(self, name: str) -> "Results":
        """Return one task's results, as in the task's own file."""
        task = self.tasks[name]
        models = {model: summary_of(model, [task]) for model in task.models}
        return self.model_copy(update={"tasks": {name: task}, "models": models, "comparisons": task.comparisons})

    @property
    def title(self) -> str:
        """Title that names the models and tasks. For a training run, the title names only the tasks that the run trains
        on."""
        if self.step is None:
            models = list(self.models)
        else:
            source = Path(next(each.source for task in self.tasks.values() for each in task.models.values()))
            models = ["tiny" if source.parts[-2:] == ("tiny", "policy") else source.name]
        tasks = [name for name, task in self.tasks.items() if task.in_overall] or list(self.tasks)
        return f"{listed(models)} on {listed(tasks)}"

    @property
    def sampling(self) -> EvaluationSampling:
        """Sampling settings of the first task."""
        return next(iter(self.tasks.values())).sampling

    def overall(self, part: TaskPart = "training") -> Scores | None:
        """Return a training run's scores over all tasks in `part`, or None if there are no such tasks."""
        return next(iter(self.models.values())).parts.get(part)

    def accuracies(self) -> dict[str, tuple[Scores, float, Interval]]:
        """Return a training run's measured accuracies, each as a tuple of the scores, the accuracy and its interval.
        The keys are "sampled" and "greedy" (both for the training tasks) and "held-out tasks"."""
        overall, held_out = self.overall(), self.overall("held_out")
        found = {"sampled": (overall, "accuracy"), "greedy": (overall, "greedy_accuracy")}
        found |= {"held-out tasks": (held_out, "accuracy")}
        return {
            label: (scores, getattr(scores, name), scores.intervals[name])
            for label, (scores, name) in found.items()
            if scores and name in scores.intervals
        }

    def scores(self, part: TaskPart) -> dict[str, Scores]:
        """Return a training run's scores on each task in `part`."""
        return {name: task.scores for name, task in self.tasks.items() if task.part == part}

    def summary(self) -> dict[str, Any]:
        """Return a training run's evaluation metrics, in the format of `train_results.json`.

        The overall metrics cover the training tasks. Metrics for each task are under `tasks`, `held_out` and
        `labelled`. `held_out` also has its own overall metrics, and is None if there are no held-out tasks.
        """

        def plain(scores: Scores | None) -> dict[str, Any]:
            return scores.model_dump(mode="json") if scores else {}

        overall, held_out = self.overall(), self.overall("held_out")
        tasks = {part: {name: plain(each) for name, each in self.scores(part).items()} for part in get_args(TaskPart)}
        nothing = dict.fromkeys(Scores.model_fields) | {"n": 0, "answers": 0, "pass_at_k": {}, "errors": {}}
        return {
            "step": self.step,
            "sampling": {**vars(self.sampling), "stop": list(self.sampling.stop)},
            "questions": [each.model_dump() for each in self.environments],
            **(plain(overall) or {**nothing, "intervals": {}, "status": {}}),
            "tasks": tasks["training"],
            "held_out": {**plain(held_out), "tasks": tasks["held_out"]} if held_out else None,
            "labelled": tasks["labelled"],
        }


def summary_of(
    model: str, tasks: Collection[TaskResults], parts: Mapping[TaskPart, Scores] = MappingProxyType({})
) -> ModelSummary:
    """Summarize a model's results on `tasks`."""
    overall = [(task.category, task.models[model].scores) for task in tasks if task.in_overall]
    measured = [(category, *scores.measured) for category, scores in overall if scores.accuracy is not None]
    categories: dict[str, list[float]] = {}
    for category, accuracy, _ in measured:
        if category:
            categories.setdefault(category, []).append(accuracy)
    mean, interval = mean_of([a for _, a, _ in measured], [i for *_, i in measured]) if measured else (None, None)
    adjusted = [each.guess_adjusted for _, each in overall if each.guess_adjusted is not None]
    usages = [task.models[model].usage for task in tasks]
    columns = {name: [getattr(usage, name) for usage in usages] for name in Usage.model_fields}
    return ModelSummary(
        accuracy=mean,
        intervals={"accuracy": interval} if interval else {},
        guess_adjusted=fmean(adjusted) if adjusted else None,
        categories={category: fmean(values) for category, values in sorted(categories.items())},
        usage=Usage(**{name: None if None in values else sum(values) for name, values in columns.items()}),
        failed=sum(task.models[model].scores.failed for task in tasks),
        parts=dict(parts),
    )


def read_results(file: str | Path) -> Results:
    """Read a results file.

    Raises:
        InputError: the file cannot be read, is not a results file, or has a different format version.
    """
    try:
        content = read_bytes(Path(file))
        return Results.model_validate_json(content)
    except ValidationError as error:
        if content and b'"format"' not in content:
            remedy = (
                f"; pass the run's folder, {Path(file).parent}"
                if Path(file).name in ("rollouts.jsonl", "metrics.jsonl")
                else ""
            )
            raise InputError(f"{file} is not a results file from rg-env eval (results_*.json){remedy}") from error
        first = next(problems_in(Results, error))
        raise damaged(
            Path(file), f"its contents do not match the current results format: {'.'.join(first.path)} {first.message}"
        ) from error


def results_files(folder: Path) -> list[Path]:
    """Return the files in an evaluation folder that contain the results for all tasks, newest first. Files are sorted
    by the time in their names."""
    return sorted(folder.glob("results_all_tasks_*.json"), reverse=True)


def nothing_in(folder: Path) -> InputError:
    """Return the error for a folder that contains neither a run nor an evaluation."""
    if (folder / "sweep.yaml").is_file():
        return InputError(f"{folder} is a sweep: use `rg-env compare {folder}`, or pass the folders of its runs")
    return InputError(
        f"{folder} contains neither a training run (metrics.jsonl, eval_results/) nor an evaluation "
        "(results_all_tasks_*.json, rollouts.jsonl)"
    )


def read_evaluations(run: RunFolder, until: float = math.inf) -> list[Results]:
    """Read a training run's evaluations up to step `until`, in order. Raises the same errors as `read_results`."""
    return [read_results(run.evaluation_file(step)) for step in run.evaluation_steps() if step <= until]


# Results from several files, which must be comparable

_SAME = ("spec", "questions", "sampling", "grading", "system_prompt", "floor")
"""Task fields that must be equal in all files."""


def merged(files: Mapping[str, Results]) -> Results:
    """Merge the models and tasks from the files.

    Raises:
        InputError: a file has no answers, models were evaluated on different tasks or in different ways, or two files
            have different results for the same model name.
    """
    tasks: dict[str, TaskResults] = {}
    first: dict[str, str] = {}  # the first file that contains each task
    for file, results in files.items():
        if not any(model.scores.n for task in results.tasks.values() for model in task.models.values()):
            raise InputError(f"{file} has no answers")
        for name, task in results.tasks.items():
            known, where = tasks.setdefault(name, task), first.setdefault(name, file)
            if reason := _difference(known, task):
                raise InputError(f"{file} cannot be compared with {where} on {name!r}: {reason}")
            for model in known.models.keys() & task.models.keys():
                if known.models[model] != task.models[model]:
                    raise InputError(
                        f"{file} and {where} both have a model {model!r}, with different results: omit one file, or "
                        "evaluate one of the models under another name"
                    )
            tasks[name] = known.model_copy(update={"models": known.models | task.models})
    models = {model: file for file, results in files.items() for model in results.models}
    for name, task in tasks.items():
        if len(files) > 1 and (missing := [file for model, file in models.items() if model not in task.models]):
            only = first[name]
            raise InputError(f"{missing[0]} cannot be compared with {only}: only {only} has the task {name!r}")
    answered = {model: [task for task in tasks.values() if model in task.models] for model in models}
    summaries = {model: summary_of(model, of_model) for model, of_model in answered.items()}
    return next(iter(files.values())).model_copy(update={"tasks": tasks, "models": summaries})


def _difference(one: TaskResults, other: TaskResults) -> str | None:
    """Return the first difference between two tasks in the fields that must be equal, or None if these fields are
    equal."""
    ours, theirs = (dict(leaves(each.model_dump(include=set(_SAME)))) for each in (one, other))
    for key in [*ours, *theirs]:
        a, b = ours.get(key), theirs.get(key)
        if a != b:
            return f"different {key}: {one_line(b, 24)}, not {one_line(a, 24)}"
    return None
