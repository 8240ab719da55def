"""The results of an evaluation: typed records, and the one format of the files that hold them.

    results = read_results("outputs/eval/results_all_tasks_20250101-120000.json")
    results = read_results("outputs/RUN/eval_results/eval_step_25.json")
    results.tasks["maze"].models["base"].scores.accuracy

`rg-env eval` writes one file for all tasks and one for each; a training run writes a file for each evaluation, with its
rollouts in it. All models of a file answered the same frozen questions; `correct` keeps the verdict on each answer, so
any two models can be compared question by question later, across files too. Intervals are 95 % confidence intervals.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, Strict, ValidationError, model_validator

from rg_env.core.config.parsing import Section, Share, problems_in
from rg_env.core.run_folder import RunFolder, damaged, evaluation_summary
from rg_env.core.statistics import wilson_interval
from rg_env.errors import InputError

Interval = Annotated[tuple[float, float], Strict(False)]
"""Lower and upper end of a 95 % confidence interval. Not strict: in JSON it is a list."""
Part = Literal["training", "held_out", "labelled"]
"""What a task is to a training run: trained on, held out, or reported under a label in no overall figure."""


class Record(Section):
    """A part of a results file."""

    model_config = ConfigDict(allow_inf_nan=False)


class Questions(Record):
    """The questions, the same for all models."""

    n: int
    """Number of questions."""
    seed: int | None
    """Seed of the evaluation split; None for rows that rg_env did not draw."""
    manifest_sha256: str | None
    """Hash of the manifest of their environment (`core.data.manifest.split_hash`)."""
    prompts_sha256: str
    """Hash of prompts and gold answers, for models without a system prompt of their own."""


class Environment(Record):
    """One environment whose evaluation rows were used."""

    part: Part | None
    label: str | None
    tasks: list[str]
    n: int
    manifest_sha256: str | None
    prompts_sha256: str


class Sampling(Record):
    """How answers were sampled."""

    rollouts_per_example: int
    temperature: float
    top_p: float
    max_tokens: int | None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    greedy: bool = False
    """Whether each question was also answered once greedily."""


class Accuracy(Record):
    """A mean accuracy; None in environments that measure none."""

    accuracy: Share | None
    accuracy_interval: Interval | None

    @property
    def measured(self) -> tuple[float, Interval]:
        """The accuracy and its interval. Raises `InputError` if it was not measured."""
        if self.accuracy is None or self.accuracy_interval is None:
            raise InputError("accuracy was not measured: the environment has no accuracy metric")
        return self.accuracy, self.accuracy_interval


class Scores(Accuracy):
    """Means over all answers to `n` questions, with standard errors (`_se`) and intervals clustered by question.

    A call that failed for good counts as a wrong answer. None: nothing to average, such as accuracies in an environment
    that measures none, greedy figures without greedy answers, and tokens that a server does not report.
    """

    n: int
    """Questions that count: all but those that the model was trained on."""
    answers: int
    """Sampled answers to them, failed calls included."""
    accuracy_se: float | None
    guess_adjusted: float | None
    """(accuracy - floor) / (1 - floor), where floor is the accuracy of the best constant answer: 0 is guessing."""
    greedy_accuracy: Share | None
    greedy_accuracy_se: float | None
    reward: float | None
    reward_se: float | None
    reward_interval: Interval | None
    greedy_reward: float | None
    greedy_reward_se: float | None
    pass_at_k: dict[str, float]
    """pass@1, pass@2, pass@4, ... up to the number of answers to a question; empty if that is 1."""
    pass_at_k_se: dict[str, float]
    mean_completion_tokens: float | None
    mean_completion_tokens_se: float | None
    truncated: Share | None
    """Share of the answers that `max_tokens` cut off."""
    truncated_se: float | None
    status: dict[str, float]
    """Share of each status (`core.grading.scoring.Status`), and of "failed"; empty in environments of other rows."""
    failed: int
    """Calls without an answer, after all tries."""
    left_out: int
    """Questions that this model was trained on: neither answered nor counted."""

    @property
    def greedy(self) -> Accuracy:
        """The accuracy of the greedy answers, of which each question has one."""
        share = self.greedy_accuracy
        return Accuracy(accuracy=share, accuracy_interval=None if share is None else wilson_interval(share, self.n))

    def figures(self) -> dict[str, float]:
        """All means that are known, pass@k as `pass@2`, statuses as `status/<name>`."""
        names = ("accuracy", "greedy_accuracy", "reward", "greedy_reward", "mean_completion_tokens", "truncated")
        known = {name: value for name in names if (value := getattr(self, name)) is not None}
        return self.pass_at_k | known | {f"status/{name}": share for name, share in self.status.items()}


class Usage(Record):
    """Tokens used, and their cost."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    """In the currency of the prices given; None without prices."""


class ModelResult(Record):
    """One model on one task."""

    source: str
    """Folder, name on the hub, or address of the endpoint."""
    kind: Literal["endpoint", "hub", "folder", "adapter", "tiny"]
    engine: Literal["endpoint", "embedded", "vllm"]
    system_prompt: str | None
    """The model's own; None: that of all models."""
    scores: Scores
    usage: Usage
    correct: dict[str, list[bool]]
    """By question (its hash, see `core.data.splits.question_hash`), the verdict on each answer."""


class Paired(Record):
    """Two models on the same questions."""

    a: str
    b: str
    n: int
    """Questions that count for both."""
    difference: float
    """Accuracy of `a`, the later model, minus that of `b`."""
    interval: Interval
    p_value: Share
    """Chance of a difference at least as large between equally good models, by a permutation test."""


Verdict = Literal["within_tolerance", "within_chance", "beyond"]


class PublishedFigure(Record):
    """A published accuracy next to ours."""

    table: str
    source: str
    row: str
    tasks: list[str]
    """The figure is the mean over these tasks."""
    model: str
    published: Share
    published_n: int | None
    """Distinct questions behind it; None: not known."""
    ours: Share
    interval: Interval
    """Interval of ours."""
    n: int
    """Distinct questions behind ours."""
    difference: float
    """Ours minus the published one."""
    difference_interval: Interval
    """Interval of the difference of both samples."""
    tolerance: Share
    verdict: Verdict
    """Whether the two differ by no more than the tolerance; by more, but no more than chance explains (0 is in the
    interval of the difference); or beyond both."""


class TaskResults(Record):
    """All models on one task."""

    task: str
    """Its name, or its label."""
    part: Part | None = None
    """None: not evaluated by a training run."""
    spec: dict[str, Any] | None
    """Name, config and levels, as `Mixture.parse` takes them; None for rows that rg_env did not draw."""
    category: str | None
    questions: Questions
    sampling: Sampling
    system_prompt: str | None
    grading: Literal["hardened", "partial", "upstream"]
    floor: Share | None
    """Accuracy of the best constant answer to these questions; None: not measured."""
    models: Annotated[dict[str, ModelResult], Field(min_length=1)]
    """By name, in the order given."""
    comparisons: list[Paired]
    """Every pair of models."""


class BenchmarkScore(Record):
    """One figure of lm-evaluation-harness."""

    task: str
    """The benchmark, or a task that it is made of."""
    metric: str
    filter: str
    """How the answer was extracted."""
    value: float
    stderr: float | None
    interval: Interval | None
    """From `stderr`, Wilson's for a share (`core.statistics.error_interval`); None if lm-eval reports no error."""
    n: int
    """Number of documents."""
    num_fewshot: int | None
    version: str | None
    """Version of the task."""


class ExternalResult(Record):
    """One model on one benchmark of lm-evaluation-harness."""

    model: str
    benchmark: str
    answers: int
    failed: int
    """Calls without an answer, after all tries: graded as an empty answer."""
    truncated: Share | None
    usage: Usage
    scores: list[BenchmarkScore]
    """Scores of the benchmark as a whole come first."""


class ModelSummary(Accuracy):
    """One model over all tasks, without those under labels of a training run or held out from it: the macro average of
    their accuracies."""

    guess_adjusted: float | None
    """Mean over the tasks that have a floor."""
    categories: dict[str, Share]
    """Macro average over the tasks of each category."""
    usage: Usage
    failed: int
    parts: dict[Part, Scores] = Field(default_factory=dict)
    """In a training run: over all questions of the training tasks, and over those of the held-out tasks."""


class Results(Record):
    """An evaluation: all models on all tasks."""

    format: Literal["rg_env.evaluation/1"] = "rg_env.evaluation/1"
    created: str
    """ISO 8601, UTC."""
    versions: dict[str, str]
    step: int | None = None
    """In a training run: optimizer steps before this evaluation."""
    environments: list[Environment] = Field(default_factory=list)
    """Where the questions are from."""
    notes: list[str] = Field(default_factory=list)
    """What was taken from the training runs of models, and which model was evaluated otherwise than it was trained."""
    tasks: dict[str, TaskResults]
    """Empty, like `models` and `comparisons`, if there are only external benchmarks."""
    models: dict[str, ModelSummary]
    comparisons: list[Paired]
    """Every pair of models, macro average over tasks; `n` is the number of questions."""
    published: list[PublishedFigure] = Field(default_factory=list)
    """Published figures that the config compares with."""
    external: list[ExternalResult] = Field(default_factory=list)
    """Every model on every external benchmark."""
    rollouts: list[dict[str, Any]] = Field(default_factory=list)
    """In a training run: a record for each answer; other evaluations keep theirs in rollouts.jsonl."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.tasks and not self.external:
            raise ValueError("has neither tasks nor external benchmarks")
        return self

    def of_task(self, name: str) -> "Results":
        """One task alone, the content of its own file."""
        task = self.tasks[name]
        models = {
            model: ModelSummary(
                accuracy=each.scores.accuracy,
                accuracy_interval=each.scores.accuracy_interval,
                guess_adjusted=each.scores.guess_adjusted,
                categories={task.category: each.scores.accuracy or 0.0} if task.category else {},
                usage=each.usage,
                failed=each.scores.failed,
            )
            for model, each in task.models.items()
        }
        update = {"tasks": {name: task}, "models": models, "comparisons": task.comparisons, "published": []}
        return self.model_copy(update={**update, "external": []})

    @property
    def title(self) -> str:
        """The models and the tasks that were evaluated; of a training run, the tasks that it trains on."""
        if self.step is None:
            models = list(self.models) or list(dict.fromkeys(each.model for each in self.external))
        else:
            source = Path(next(each.source for task in self.tasks.values() for each in task.models.values()))
            models = ["tiny" if source.parts[-2:] == ("tiny", "policy") else source.name]
        tasks = [name for name, task in self.tasks.items() if task.part in (None, "training")] or list(self.tasks)
        tasks = tasks or list(dict.fromkeys(each.benchmark for each in self.external))
        return f"{_listed(models)} on {_listed(tasks)}"

    @property
    def sampling(self) -> Sampling:
        """The sampling of the first task."""
        return next(iter(self.tasks.values())).sampling

    def overall(self, part: Part = "training") -> Scores | None:
        """The scores of a training run's model over all tasks of `part`; None if it has no such tasks."""
        return next(iter(self.models.values())).parts.get(part)

    def scores(self, part: Part) -> dict[str, Scores]:
        """The scores of a training run's model on each task of `part`."""
        tasks = {name: task for name, task in self.tasks.items() if task.part == part}
        return {name: next(iter(task.models.values())).scores for name, task in tasks.items()}

    def summary(self) -> dict[str, Any]:
        """The figures of an evaluation in a training run, as `train_results.json` has them."""
        return evaluation_summary(self.model_dump(mode="json"))


def read_results(file: str | Path) -> Results:
    """The results in `file`.

    Raises:
        InputError: it cannot be read, is not a results file, or is one of another version.
    """
    try:
        return Results.model_validate_json(Path(file).read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = next(problems_in(Results, error))
        raise damaged(
            Path(file), f"it is not results of this version: {'.'.join(first.path)} {first.message}"
        ) from error


def read_evaluations(run: RunFolder) -> list[Results]:
    """The evaluations of a training run, in order. Raises as `read_results`."""
    return [read_results(run.evaluation_file(step)) for step in run.evaluation_steps()]


def _listed(names: Sequence[str]) -> str:
    """The first three names, and the number of others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
