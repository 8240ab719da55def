"""The section `monitors:` of a run's config: when a run speaks up, and when it ends itself (see `monitors`).

The sections of a run's config (see `config`), each a frozen schema with a docstring under every field.

The section `evaluation` of a run's config, and the settings that it shares with `EvaluationPlan`.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from rg_env.core.config.parsing import (
    Above0,
    Count,
    From0,
    Positive,
    Problem,
    Section,
    Seed,
    Share,
    TaskOptions,
    Text,
    named,
)
from rg_env.core.data.splits import SplitBy
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import unknown_name


class ModelConfig(Section):
    """The policy to train."""

    name: Text
    """A folder, a name on the model hub, or "tiny": the tiny policy that ships with the package."""
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """"auto": flash-attn where it works, otherwise PyTorch's SDPA."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights. "bfloat16" is for LoRA, whose frozen weights then take half the memory."""


class TaskConfig(TaskOptions):
    """One task, under its name."""

    weight: Annotated[float, Field(gt=0, le=1e100)] = 1.0
    """Share of the questions, relative to the other tasks."""


class SplitsConfig(Section):
    """Which questions. Training and evaluation never ask the same problem, whatever the seeds."""

    num_train_examples: Positive = 2000
    """Distinct training questions, over all tasks by weight."""
    num_eval_examples: Count = 200
    """Distinct evaluation questions of the training tasks, by weight; 0: none."""
    seed: Seed | None = None
    """Picks the training questions; default: the run's seed."""
    eval_seed: Seed = 0
    """Picks the evaluation questions: the same for runs that differ in their seed."""
    by: SplitBy = "problem"
    """What decides whether a question is for training or for evaluation: the problem that it asks, whatever its words
    and order, or ("question") its text alone, which lets the same problem be in both. "question" reproduces runs of
    releases before there was a choice, and gives more rows of tasks with few problems."""
    manifest: Text | None = None
    """The manifest.json of a run: train on exactly its rows, or refuse."""


class EngineConfig(Section):
    """What generates."""

    renamed: ClassVar = {
        "weight_sync_transport": "the server decides: start it with `rg-env vllm --weight-transfer-config "
        '\'{"backend": "nccl"}\'`, or "rg_env_shm"',
        "weight_sync_check_every": "every sync is checked: leave it out",
    }

    kind: Literal["embedded", "vllm"] = "embedded"
    """"embedded": the model in training itself, in this process; "vllm": a vLLM server, as `rg-env vllm` and `rg-env
    launch` start one."""
    host: Text = "127.0.0.1"
    """Of the server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Of the server."""
    connect_timeout: Above0 = 5.0
    """Seconds to wait for the server at the start."""
    generation_timeout: Above0 = 600.0
    """Seconds that a batch of rollouts may take."""
    num_batches_ahead: Count = 0
    """Batches generated while earlier ones are trained on ("vllm" only); 1 overlaps both, one step off-policy."""
    importance_sampling_correction: bool = False
    """Weigh each token by min(p_trainer / p_sampler, cap) ("vllm" only)."""
    importance_sampling_cap: Above0 = 2.0
    """That cap."""
    weight_sync_timeout: Above0 = 120.0
    """Seconds; deadline of each wait for the server's workers."""

    @classmethod
    def of(cls, kind: object) -> "EngineConfig":
        """The default settings of an engine by its name. Raises `InputError` for an unknown one."""
        kinds = ("embedded", "vllm")
        if kind not in kinds:
            raise unknown_name("engine", kind, kinds)
        return cls(kind="vllm" if kind == "vllm" else "embedded")


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights."""

    r: Positive = 16
    """Rank."""
    alpha: Positive = 32
    """The update is scaled by alpha / r."""
    dropout: Share = 0.0
    """On the adapters' input."""
    target_modules: Annotated[list[Text], Field(min_length=1)] = ["all-linear"]  # noqa: RUF012
    """Names of the layers that get an adapter; "all-linear" alone: all but the LM head."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) instead."""


class CurriculumTask(Section):
    """A task whose level changes."""

    attributes: list[Text] = Field(default_factory=list)
    """Attributes of the task's curriculum that change; default: all."""
    start: Count = 0
    """Level to begin with."""
    highest: Count | None = None
    """Level to stop at; default: the task's highest."""


class CurriculumConfig(Section):
    """Levels that change while training goes on: with the measured accuracy, or at given steps."""

    tasks: dict[str, CurriculumTask]
    """Which of the training tasks; the others stay as they are."""
    success_threshold: Share = 0.7
    """Raise the level when the accuracy over the window is above this."""
    failure_threshold: Share = 0.1
    """Lower it when the accuracy is below this."""
    window: Positive = 20
    """Prompts of the task, at its present level, over which accuracy is measured; nothing changes before there are so
    many."""
    check_every: Positive = 1
    """Steps between two looks at the accuracy."""
    step: Positive = 1
    """Levels to go up or down by."""
    schedule: dict[str, Count] | None = None
    """Levels by step, such as {0: 0, 100: 1, 200: 2}, instead of thresholds."""

    _named = field_validator("tasks", mode="before")(named("{name: b, start: 1}", "name it once"))

    @field_validator("schedule")
    @classmethod
    def _steps(cls, schedule: dict[str, int] | None) -> dict[str, int] | None:
        if schedule is None:
            return None
        if not schedule or not all(step.isdecimal() and len(step) <= 10 for step in schedule):
            raise ValueError("must map steps to levels, such as {0: 0, 100: 1}")
        if len({int(step) for step in schedule}) < len(schedule):
            raise ValueError("names a step twice")
        return schedule


class LoggingConfig(Section):
    """What is shown and kept while a run goes on. metrics.jsonl is always written."""

    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Services besides. Nothing is uploaded unless named here."""
    project: Text = "rg-env"
    """Under which wandb and trackio keep the run."""
    run_name: Text | None = None
    """Default: the output folder's name."""
    examples_every: Count = 10
    """Steps between two looks at questions and answers on the console; 0: none."""
    num_examples: Positive = 2
    """Shown then."""
    rollouts_kept: Count = 32
    """Of each step, in rollouts.jsonl."""


class HubConfig(Section):
    """Publishing on the Hugging Face Hub, with a card made from the run's files, as `rg-env push` does it. An upload
    that fails never ends a run: one line tells the command that finishes it."""

    enabled: bool = False
    """Upload the model when training has come to its end."""
    repo_id: Text | None = None
    """USER/NAME; made where it is not there. One that holds something else is not overwritten."""
    private: bool = False
    """Make it so that only its owner sees it."""
    optimizer_state: Literal["none", "full"] = "none"
    """"full": with all that training goes on from."""
    every: Count = 0
    """Steps between uploads on the way, of checkpoints: a multiple of output.save_every; 0: at the end only."""


class OutputConfig(Section):
    """Where a run's files go."""

    dir: Text | None = None
    """A new folder; default: a fresh one under outputs/."""
    save_every: Count = 100
    """Steps between checkpoints; 0: at the end only."""
    save_total_limit: Positive | None = None
    """Checkpoints kept; default: all."""


_LABEL = re.compile(r"\w[\w.-]{0,79}")
_FIGURES = ("held_out", "status")
"""Names under `eval/` that are no task's."""


class EvaluationSettings(Section):
    """When the fixed evaluation is made, and how its questions are answered."""

    every: Count | None = None
    """Steps between evaluations; default: a fifth of the run; 0: before and after only."""
    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    rollouts_per_example: Positive = 1
    """Sampled answers to each question; above 1, pass@k is reported."""
    temperature: From0 | None = None
    """Of the sampled answers; default: that of training."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the sampled answers; default: that of training."""
    max_tokens: Positive | None = None
    """New tokens at most; default: those of training."""
    greedy: bool = True
    """Answer each question once more, without sampling."""


class EvaluationTask(TaskOptions):
    """One entry, under the name of its task or under a label."""

    task: Text | None = None
    """The task, where the entry's name is a label."""
    num_examples: Positive | None = None
    """Distinct questions; default: `num_held_out_examples`."""


class EvaluationConfig(EvaluationSettings):
    """The fixed evaluation: the same questions before training, while it goes on, and after."""

    tasks: dict[str, EvaluationTask] = Field(default_factory=dict)
    """What is asked beside the training tasks: held-out tasks, each under its name; and any task, such as a training
    task at another difficulty, under a label of your own, whose figures then are in no overall one."""
    num_held_out_examples: Positive = 50
    """Distinct questions of each of `tasks` that does not say how many."""

    _named = field_validator("tasks", mode="before")(
        named("{name: b, num_examples: 20}", "give the second one a label: {name: LABEL, task: NAME}")
    )

    @property
    def held_out(self) -> list[str]:
        """The entries of tasks under their own names."""
        return [name for name, entry in self.tasks.items() if entry.task in (None, name)]

    @property
    def labels(self) -> list[str]:
        """The entries under labels."""
        return [name for name in self.tasks if name not in self.held_out]

    def gym(self, name: str) -> dict[str, Any]:
        """An entry in the form that `Mixture.parse` takes; its weight is its number of questions."""
        entry = self.tasks[name]
        options = entry.model_dump(exclude={"task", "num_examples"})
        return {"name": entry.task or name, "weight": entry.num_examples or self.num_held_out_examples, **options}


def contradictions(settings: EvaluationSettings) -> Iterator[Problem]:
    """Settings that do not go together."""
    if settings.temperature != 0:  # training's, which is the default, is above 0
        return
    if settings.rollouts_per_example > 1:
        yield Problem(("rollouts_per_example",), "with temperature 0 all answers are the same: take 1, or sample")
    if settings.greedy:
        yield Problem(("greedy",), "with temperature 0 that is the answer already: turn it off")


def label_problem(label: str) -> str | None:
    """Why figures cannot stand under `label`; None: they can."""
    if not _LABEL.fullmatch(label):
        return "a label holds letters, digits, '_', '-' and '.', 80 at most"
    if label in _FIGURES:
        return f"is the name of a figure (eval/{label}): choose another label"
    if label in load_table():
        return "is the name of a task: choose another label"
    return None


Factor = Annotated[float, Field(gt=1, allow_inf_nan=False)]

ALL = "all"


class MonitorsConfig(Section):
    """Rules over what a run logs, each under its name with its threshold. One that fires says in one line what is the
    matter, the likely cause, and the key to change; it stays silent then until all was well for a whole window."""

    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Logs, one a step, over which a rule takes its means; the first line can come after so many."""
    off: list[str] = Field(default_factory=list)
    """Rules that are left out; [all]: every one."""
    stop_on: list[str] = Field(default_factory=list)
    """Rules that end the run when they fire: with the last evaluation, a checkpoint, all results, and exit code 1."""
    zero_variance: Share = 0.9
    """Share of groups with equal rewards, which teach nothing, from here up."""
    answer_rate: Share = 0.5
    """Share of completions with a well-formed answer below this, and not rising."""
    format_rate: Share = 0.5
    """The same for the form that the reward `think_format` asks for, where it is paid."""
    truncation: Share = 0.2
    """Share of completions that the token limit cut off, from here up."""
    length_drift: Factor = 2.0
    """Mean length of completions so many times that of the first window, or that part of it, without more accuracy."""
    entropy_collapse: Share = 0.1
    """Entropy below this part of that in the first window, at an accuracy below 0.8 that does not rise."""
    reward_hacking: Above0 = 0.1
    """Rise of the mean reward over that of the window before, or the first one, from here up and beyond noise, without
    more accuracy; half of it is enough with less."""
    kl_spike: Factor = 5.0
    """KL divergence so many times its median over the window, and above 0.1 nats a token."""
    ratio_spike: Factor = 5.0
    """Largest probability ratio of a token so many times its median over the window, and above 10."""
    grader_timeouts: Share = 0.02
    """Share of answers whose grading took too long, from here up."""
    ungradable: Share = 0.02
    """Share of answers that could not be graded, from here up."""

    @field_validator("off", "stop_on")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        for name in names:
            if name not in rule_names() and not (name == ALL and info.field_name == "off"):
                raise unknown_name("monitor", name, rule_names())
            if info.field_name == "stop_on" and {name, ALL} & set(info.data.get("off", [])):
                raise ValueError(f"{name} is off: take it out of monitors.off")
        return names

    def active(self) -> list[str]:
        """The rules that are on."""
        return [] if ALL in self.off else [name for name in rule_names() if name not in self.off]


def rule_names() -> list[str]:
    """All of them, in the order in which they are asked."""
    return [name for name in MonitorsConfig.model_fields if name not in ("window", "off", "stop_on")]
