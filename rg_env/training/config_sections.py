"""The sections of a run's config (see `config`), each a frozen schema with a docstring under every field."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from rg_env.core.config import Section
from rg_env.core.config_sections import Above0, Count, Positive, Seed, Share, TaskOptions, Text, named
from rg_env.core.splits import SplitBy
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
