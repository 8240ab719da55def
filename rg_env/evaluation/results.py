"""The files that an evaluation leaves, as typed records: what they say, and reading them back.

    results = read_results("outputs/eval/results_all_tasks_20250101-120000.json")
    results.tasks["maze"].models["base"].scores.accuracy

One task's file holds a `TaskResults`, that of all tasks an `AllResults`; which it is, it says itself (`format`). Every
model was asked the same frozen questions; `correct` keeps what became of each, so that any two models can be compared
question by question later, from files of different runs, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rg_env.core.config.parsing import Section, problems_in
from rg_env.core.text import reason_of
from rg_env.errors import InputError

TASK_FORMAT, ALL_FORMAT = "rg_env.results/1", "rg_env.results_all/1"
Interval = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""
Share = Annotated[float, Field(ge=0, le=1)]


class Questions(Section):
    """What was asked, the same of all models."""

    n: int
    """Distinct questions."""
    seed: int
    """Of the evaluation split."""
    manifest_sha256: str
    """Of their manifest (`core.manifest.split_hash`): tasks, seed, questions in order, version of reasoning-gym."""
    prompts_sha256: str
    """Of questions, gold answers and the messages around them, without a model's own system prompt."""


class Sampling(Section):
    """How answers were drawn."""

    rollouts_per_example: int
    temperature: float
    top_p: float
    max_tokens: int


class ModelScores(Section):
    """What a model's answers came to. Means are over all answers, intervals clustered by question; a call that failed
    for good counts as a wrong answer."""

    n: int
    """Questions that count: those asked, without those that the model was trained on."""
    rollouts: int
    accuracy: Share
    accuracy_interval: Interval
    guess_adjusted: float | None
    """(accuracy - floor) / (1 - floor), where floor is what the best constant answer gets: 0 is guessing, 1 is all."""
    reward: float
    reward_interval: Interval
    pass_at_k: dict[str, float]
    """"pass@2", "pass@4", ... up to the answers to a question; empty with one."""
    mean_completion_tokens: float | None
    """None: the server reports none."""
    truncated: Share | None
    """Share of answers that `max_tokens` cut off."""
    status: dict[str, float]
    """Share of each status (`core.scoring.Status`), and of "failed"."""
    failed: int
    """Calls without an answer, after all tries."""
    left_out: int
    """Questions that this model was trained on: not asked, not counted."""


class Usage(Section):
    """What the answers took."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    """In the currency of the prices given; None: no prices were given."""


class ModelResult(Section):
    """One model on one task."""

    source: str
    """Folder, name on the hub, or address of the endpoint."""
    kind: Literal["endpoint", "hub", "folder", "adapter", "tiny"]
    engine: Literal["endpoint", "embedded", "vllm"]
    system_prompt: str | None
    """Its own; None: that of all models."""
    scores: ModelScores
    usage: Usage
    correct: dict[str, list[bool]]
    """By question (its hash, see `core.splits.question_hash`), one for each answer."""


class Paired(Section):
    """Two models on the same questions."""

    a: str
    b: str
    n: int
    """Questions that count for both."""
    difference: float
    """Accuracy of `a` minus that of `b`."""
    interval: Interval
    p_value: Share
    """By permutation, of a difference at least as large where the models are equally good."""


Verdict = Literal["within_tolerance", "within_chance", "beyond"]


class PublishedFigure(Section):
    """A published accuracy beside ours."""

    table: str
    source: str
    """Where it stands."""
    row: str
    tasks: list[str]
    """Whose mean it is."""
    model: str
    published: Share
    published_n: int | None
    """Distinct questions behind it; None: not known."""
    ours: Share
    interval: Interval
    """Of ours."""
    n: int
    """Distinct questions behind ours."""
    difference: float
    """Ours minus the published one."""
    difference_interval: Interval
    """Of both together."""
    tolerance: Share
    verdict: Verdict
    """Whether the two differ by no more than the tolerance; or by more, but no more than chance explains (0 is in the
    interval of the difference); or beyond both."""


class TaskResults(Section):
    """All models on one task: `results_<task>_<time>.json`."""

    format: Literal["rg_env.results/1"] = "rg_env.results/1"
    created: str
    """ISO 8601, UTC."""
    versions: dict[str, str]
    task: str
    """Its name, or the label that it was asked under."""
    spec: dict[str, Any]
    """Name, config and levels, as `Mixture.parse` takes them."""
    category: str
    questions: Questions
    sampling: Sampling
    system_prompt: str
    grading: Literal["hardened", "partial", "upstream"]
    floor: Share | None
    """Accuracy of the best constant answer on these questions; None where answers are not compared with a gold one."""
    models: Annotated[dict[str, ModelResult], Field(min_length=1)]
    """By name, in the order that they were given."""
    comparisons: list[Paired]
    """Every pair of models."""


class BenchmarkScore(Section):
    """One figure of lm-evaluation-harness, as it gives it."""

    task: str
    """The benchmark, or a task that it is made of."""
    metric: str
    filter: str
    """How the answer was taken out of the text."""
    value: float
    stderr: float | None
    interval: Interval | None
    """value ± 1.96 stderr, within 0 ... 1 for a share; None where lm-eval has no error, or 0."""
    n: int
    """Documents."""
    num_fewshot: int | None
    version: str | None
    """Of the task."""


class ExternalResult(Section):
    """One model on one benchmark of lm-evaluation-harness."""

    model: str
    benchmark: str
    answers: int
    failed: int
    """Calls without an answer, after all tries: graded as an empty answer."""
    truncated: Share | None
    usage: Usage
    scores: list[BenchmarkScore]
    """Those of the benchmark as a whole first."""


class ModelSummary(Section):
    """One model over all tasks."""

    accuracy: Share
    """Macro average: the mean of the tasks' accuracies."""
    accuracy_interval: Interval
    guess_adjusted: float | None
    """Mean over the tasks that have a floor."""
    categories: dict[str, Share]
    """Macro average over the tasks of each category."""
    usage: Usage
    failed: int


class AllResults(Section):
    """All models on all tasks: `results_all_tasks_<time>.json`."""

    format: Literal["rg_env.results_all/1"] = "rg_env.results_all/1"
    created: str
    versions: dict[str, str]
    tasks: dict[str, TaskResults]
    """Empty, with `models` and `comparisons`, where external benchmarks alone were asked."""
    models: dict[str, ModelSummary]
    comparisons: list[Paired]
    """Every pair of models, macro average over tasks; `n` is the number of questions."""
    published: list[PublishedFigure] = Field(default_factory=list)
    """What the config has to compare with."""
    external: list[ExternalResult] = Field(default_factory=list)
    """Every model on every external benchmark."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.tasks and not self.external:
            raise ValueError("has neither tasks nor external benchmarks")
        return self


def read_results(file: str | Path) -> TaskResults | AllResults:
    """The results in `file`.

    Raises:
        InputError: it cannot be read, or is no results file, or one of another version.
    """
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"), object_pairs_hook=no_key_twice)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no results file: it is not JSON: {reason_of(error)}") from error
    return parse_results(values, str(file))


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, of which Python would keep the last value of a key. Raises `ValueError`."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return values


def parse_results(values: object, name: str) -> TaskResults | AllResults:
    """The results in JSON values; `name` says whose they are. Raises as `read_results`."""
    found = values.get("format") if isinstance(values, Mapping) else None
    schemas: dict[Any, type[TaskResults | AllResults]] = {TASK_FORMAT: TaskResults, ALL_FORMAT: AllResults}
    schema = schemas.get(found if isinstance(found, str) else None)
    if schema is None:
        family = isinstance(found, str) and found.split("/")[0] in ("rg_env.results", "rg_env.results_all")
        what = f"a results file of another version ({found})" if family else "no results file of rg-env eval"
        raise InputError(f"{name} is {what}")
    try:
        text = json.dumps(values, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{name} is damaged: it has a figure that is not finite") from error
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        first = next(problems_in(schema, error))
        raise InputError(f"{name} is damaged: {'.'.join(first.path)} {first.message}") from error
