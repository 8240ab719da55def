"""What a training run is: the schema of the files in `configs/train/`, and what other layers read from it.

    config = load_train_config("configs/train/tiny.yaml")    # see `load`
    env = ReasoningGym(gym=config.gym, **config.environment_arguments())

Each section is a frozen schema with a docstring under every field; `docs/reference/configuration.md` is generated from
them. Imports neither torch nor reasoning_gym.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from rg_env.core.config.files import without_nulls
from rg_env.core.config.parsing import (
    Above0,
    Count,
    From0,
    Positive,
    Problem,
    PromptConfig,
    Rewards,
    Section,
    Seed,
    Share,
    TaskOptions,
    Text,
    default_rewards,
    named,
)
from rg_env.core.data.splits import SplitBy
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import unknown_name
from rg_env.training.config.grpo import OWNED_ELSEWHERE, GRPOConfig


class ModelConfig(Section):
    """The policy to train. Plain text is its name: `model: tiny`."""

    short = "name"

    name: Text
    """A folder, a name on the model hub, or "tiny": the tiny policy that ships with the package."""
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """Attention implementation. "auto": flash-attn where it works, otherwise PyTorch's SDPA."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights. "bfloat16" is for LoRA, whose frozen weights then take half the memory."""


class TaskConfig(TaskOptions):
    """One task, under its name."""

    weight: Annotated[float, Field(gt=0, le=1e100)] = 1.0
    """Share of the questions, relative to the other tasks."""


class DataConfig(Section):
    """Questions and answers of your own, trained on instead of Reasoning Gym tasks. Plain text is the path. As many
    questions as `splits.num_eval_examples` are for evaluation, picked by `splits.eval_seed`; the others are trained on.
    An answer is correct if it equals the row's as number or text."""

    short = "path"
    renamed: ClassVar = {
        "task_name": "use tasks: [NAME]; data is for questions of your own",
        "num_examples": "use splits.num_train_examples; data is for questions of your own",
        "seed": "use seed, or splits.seed",
        "train_files": "it is called path",
        "name": "it is called config",
        "subset": "it is called config",
        "dataset": "it is called path",
        "prompt_key": "it is called question_column",
    }

    path: Text
    """A .csv, .json, .jsonl or .parquet file, or the name of a dataset on the Hugging Face Hub."""
    config: Text | None = None
    """Configuration of a dataset on the Hub, such as "main"."""
    split: Text = "train"
    """Split of a dataset on the Hub."""
    question_column: Text = "question"
    """Column with the questions."""
    answer_column: Text = "answer"
    """Column with the gold answers: text or numbers."""
    answer_after: Text | None = None
    """The gold answer is what follows this text in the answer column, such as "####"; default: all of it."""


class SplitsConfig(Section):
    """Which questions. Training and evaluation never ask the same problem, whatever the seeds."""

    num_train_examples: Positive = 2000
    """Number of distinct training questions, over all tasks by weight."""
    num_eval_examples: Count = 200
    """Number of distinct evaluation questions of the training tasks, by weight; 0: none."""
    seed: Seed | None = None
    """Seed of the training questions; default: the run's seed."""
    eval_seed: Seed = 0
    """Seed of the evaluation questions: the same for runs that differ in their seed."""
    by: SplitBy = "problem"
    """What decides whether a question is for training or for evaluation: its "problem", whatever the words and their
    order, or its text alone ("question"), which lets the same problem be in both. "question" reproduces runs of earlier
    releases, and gives more rows of tasks with few problems."""
    manifest: Text | None = None
    """The manifest.json of a run: train on exactly its rows, or refuse."""


class EngineConfig(Section):
    """What generates completions. Plain text is its kind: `engine: vllm`."""

    short = "kind"
    renamed: ClassVar = {
        "weight_sync_transport": "the server decides: start it with `rg-env vllm --weight-transfer-config "
        '\'{"backend": "nccl"}\'`, or "rg_env_shm"',
        "weight_sync_check_every": "every sync is checked: leave it out",
    }

    kind: Literal["embedded", "vllm"] = "embedded"
    """"embedded": the model in training itself, in this process; "vllm": a vLLM server, as `rg-env vllm` and `rg-env
    launch` start one."""
    max_batch_size: Positive = 512
    """Sequences that the embedded engine decodes at once; more are decoded in turns. Fewer take less memory."""
    host: Text = "127.0.0.1"
    """Host of the vLLM server."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the vLLM server."""
    connect_timeout: Above0 = 5.0
    """Seconds to wait for the server at the start of a run."""
    generation_timeout: Above0 = 600.0
    """Seconds that a batch of rollouts may take."""
    num_batches_ahead: Count = 0
    """Batches generated while earlier ones are trained on ("vllm" only); 1 overlaps both, one step off-policy."""
    importance_sampling_correction: bool = False
    """Weigh each token by min(p_trainer / p_sampler, cap) ("vllm" only)."""
    importance_sampling_cap: Above0 = 2.0
    """Upper bound of these importance weights."""
    weight_sync_timeout: Above0 = 120.0
    """Seconds to wait for the server's workers in each phase of a weight sync."""

    @classmethod
    def of(cls, kind: object) -> "EngineConfig":
        """The default settings of the engine with this name. Raises `InputError` for an unknown one."""
        kinds = ("embedded", "vllm")
        if kind not in kinds:
            raise unknown_name("engine", kind, kinds)
        return cls(kind="vllm" if kind == "vllm" else "embedded")


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights."""

    r: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """The update is scaled by alpha / r."""
    dropout: Share = 0.0
    """Dropout on the adapters' input."""
    target_modules: Annotated[list[Text], Field(min_length=1)] = ["all-linear"]  # noqa: RUF012
    """Names of the layers that get an adapter; "all-linear" alone: all but the LM head."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) instead."""


class CurriculumTask(Section):
    """A task whose level changes."""

    attributes: list[Text] = Field(default_factory=list)
    """Attributes of the task's curriculum that change; default: all."""
    start: Count = 0
    """First level."""
    highest: Count | None = None
    """Highest level to reach; default: the task's highest."""


class CurriculumConfig(Section):
    """Levels that change during training: with the measured accuracy, or at given steps."""

    tasks: dict[str, CurriculumTask]
    """The training tasks whose level changes; the others stay as they are."""
    success_threshold: Share = 0.7
    """Raise the level when the accuracy over the window is above this."""
    failure_threshold: Share = 0.1
    """Lower the level when the accuracy over the window is below this."""
    window: Positive = 20
    """Number of prompts of the task, at its present level, over which accuracy is measured; until the window is full
    the level does not change."""
    check_every: Positive = 1
    """Steps between two checks of the accuracy."""
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
    """What a run shows and keeps. metrics.jsonl is always written."""

    report_to: Annotated[
        list[Literal["tensorboard", "wandb", "trackio"]],
        BeforeValidator(lambda names: [] if names in ("none", ["none"]) else names),
    ] = Field(default_factory=list)
    """Services that also get the metrics, by name; "none": no service. Nothing is uploaded unless named here."""
    project: Text = "rg-env"
    """Project under which wandb and trackio keep the run."""
    run_name: Text | None = None
    """Name of the run at these services; default: the output folder's name."""
    examples_every: Count = 10
    """Steps between two prints of questions and answers on the console; 0: none."""
    num_examples: Positive = 2
    """Number of questions shown then."""
    rollouts_kept: Count = 32
    """Rollouts of each step that are kept in rollouts.jsonl."""
    completion_tables: bool = True
    """Send the questions and answers that are shown on the console to wandb and trackio as tables."""


class HubConfig(Section):
    """Publishing on the Hugging Face Hub, with a card made from the run's files, as `rg-env push` does it. A failed
    upload never ends a run: one line reports the command that finishes it."""

    enabled: bool = False
    """Upload the model at the end of training."""
    repo_id: Text | None = None
    """USER/NAME of the repository, created if it is missing. One with other contents is not overwritten."""
    private: bool = False
    """Create the repository as private."""
    optimizer_state: Literal["none", "full"] = "none"
    """"full": include the optimizer state, so that training can resume."""
    every: Count = 0
    """Steps between uploads of checkpoints: a multiple of output.save_every; 0: at the end only."""

    renamed: ClassVar = {
        "organization": "put it into repo_id: ORGANIZATION/NAME",
        "optimizer_save_mode": "it is called optimizer_state: full or none",
        "model_name": "it is called repo_id: USER/NAME",
    }


class OutputConfig(Section):
    """Where a run's files go. Plain text is the folder."""

    short = "dir"

    dir: Text | None = None
    """A new folder; default: a fresh one under outputs/."""
    save_every: Count = 100
    """Steps between checkpoints; 0: at the end only."""
    save_total_limit: Positive | None = None
    """Number of checkpoints kept; default: all."""


_LABEL = re.compile(r"\w[\w.-]{0,79}")
_FIGURES = ("held_out", "status")
"""Names under `eval/` that do not belong to a task."""


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
    """Temperature of the sampled answers; default: that of training."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling of the sampled answers; default: that of training."""
    max_tokens: Positive | None = None
    """Most new tokens of an answer; default: that of training."""
    greedy: bool = True
    """Answer each question once more, without sampling."""

    def contradictions(self) -> Iterator[Problem]:
        """Settings that exclude each other."""
        if self.temperature != 0:  # training's, which is the default, is above 0
            return
        if self.rollouts_per_example > 1:
            yield Problem(("rollouts_per_example",), "with temperature 0 all answers are the same: take 1, or sample")
        if self.greedy:
            yield Problem(("greedy",), "with temperature 0 that is the answer already: turn it off")


class EvaluationTask(TaskOptions):
    """One entry, under the name of its task or under a label."""

    task: Text | None = None
    """The task, if the entry's name is a label."""
    num_examples: Positive | None = None
    """Number of distinct questions; default: `num_held_out_examples`."""


class EvaluationConfig(EvaluationSettings):
    """The fixed evaluation: the same questions before, during and after training."""

    tasks: dict[str, EvaluationTask] = Field(default_factory=dict)
    """What is evaluated in addition to the training tasks: held-out tasks, each under its name; and any task, such as a
    training task at another difficulty, under a label of your own, whose figures are in no overall figure."""
    num_held_out_examples: Positive = 50
    """Number of distinct questions of each of `tasks` without `num_examples`."""

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


def label_problem(label: str) -> str | None:
    """Why figures cannot have the name `label`; None: they can."""
    if not _LABEL.fullmatch(label):
        return "a label holds letters, digits, '_', '-' and '.', 80 at most"
    if label in _FIGURES:
        return f"is the name of a figure (eval/{label}): choose another label"
    if label in load_table():
        return "is the name of a task: choose another label"
    return None


def evaluation_steps(every: int | None, max_steps: int) -> int:
    """Steps between two evaluations, a fifth of the run if `every` is None; 0: none during training."""
    return max(1, max_steps // 5) if every is None else every


Factor = Annotated[float, Field(gt=1, allow_inf_nan=False)]

ALL = "all"


class MonitorsConfig(Section):
    """Rules over what a run logs, each under its name with its threshold. A rule that fires prints one line with the
    symptom, the likely cause and the key to change, and then stays silent until all was well for a whole window."""

    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Number of logs, one a step, over which a rule averages; no rule fires before the first window is full."""
    off: list[str] = Field(default_factory=list)
    """Rules that are turned off; [all]: every one."""
    stop_on: list[str] = Field(default_factory=list)
    """Rules that end the run when they fire: with the last evaluation, a checkpoint, all results, and exit code 1."""
    zero_variance: Share = 0.9
    """Fires at this share of groups with equal rewards, which teach nothing, or above."""
    answer_rate: Share = 0.5
    """Fires when the share of completions with a well-formed answer is below this, and not rising."""
    format_rate: Share = 0.5
    """The same for the form that the reward `think_format` pays for, if it is a reward."""
    truncation: Share = 0.2
    """Fires at this share of completions that the token limit cut off, or above."""
    length_drift: Factor = 2.0
    """Fires when the mean length of completions is this many times that of the first window, or that part of it,
    without more accuracy."""
    entropy_collapse: Share = 0.1
    """Fires when the entropy is below this part of that in the first window, at an accuracy below 0.8 that does not
    rise."""
    reward_hacking: Above0 = 0.1
    """Fires when the mean reward has risen by this since the window before, or since the first one, beyond noise and
    without more accuracy; half of it is enough with less accuracy."""
    kl_spike: Factor = 5.0
    """Fires when the KL divergence is this many times its median over the window, and above 0.1 nats a token."""
    ratio_spike: Factor = 5.0
    """Fires when the largest probability ratio of a token is this many times its median over the window, and above
    10."""
    grader_timeouts: Share = 0.02
    """Fires at this share of answers whose grading took too long, or above."""
    ungradable: Share = 0.02
    """Fires at this share of answers that could not be graded, or above."""

    @field_validator("off", "stop_on")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        for name in names:
            if name not in cls.rule_names() and not (name == ALL and info.field_name == "off"):
                raise unknown_name("monitor", name, cls.rule_names())
            if info.field_name == "stop_on" and {name, ALL} & set(info.data.get("off", [])):
                raise ValueError(f"{name} is off: take it out of monitors.off")
        return names

    @classmethod
    def rule_names(cls) -> list[str]:
        """All rules, in the order in which they are checked."""
        return [name for name in cls.model_fields if name not in ("window", "off", "stop_on")]

    def active(self) -> list[str]:
        """The rules that are on."""
        return [] if ALL in self.off else [name for name in self.rule_names() if name not in self.off]


_ELSEWHERE = {
    "_base_": "it is called extends",
    "base": "it is called extends",
    "defaults": "it is called extends",
    "task": "it is called tasks, such as tasks: [leg_counting]",
    "task_name": "it is called tasks, such as tasks: [leg_counting]",
    "dataset": "it is called tasks, or data for questions of your own",
    "datasets": "it is called tasks: a mapping of names to weight, config and level",
    "environment": "use tasks, prompt and rewards",
    "reasoning_gym": "use tasks, and splits.num_train_examples",
    "num_examples": "use splits.num_train_examples",
    "dataset_size": "use splits.num_train_examples",
    "eval_num_samples": "use splits.num_eval_examples",
    "eval_datasets": "use evaluation.tasks",
    "fixed_eval_steps": "use evaluation.every",
    "model_name": "use model.name",
    "model_name_or_path": "use model.name",
    "developer_prompt": "use prompt.system_prompt",
    "developer_role": "use prompt.placement",
    "reward": "it is called rewards",
    "reward_funcs": "it is called rewards, such as {correctness: 1.0}",
    "secondary_rewards": "it is called rewards, such as {format: 0.2}",
    "peft": "it is called lora, such as {r: 16, alpha: 32}",
    "peft_config": "it is called lora, such as {r: 16, alpha: 32}",
    "use_peft": "give a section lora, such as {r: 16, alpha: 32}",
    "lora_alpha": "use lora.alpha",
    "output_dir": "use output.dir",
    "save_steps": "use output.save_every",
    "save_total_limit": "use output.save_total_limit",
    "hf_upload": "it is called hub: {enabled: true, repo_id: USER/NAME}",
    "push_to_hub": "use hub.enabled and hub.repo_id",
    "hub_model_id": "use hub.repo_id",
    "wandb": "use logging.report_to=wandb, logging.project and logging.run_name",
    "wandb_project": "use logging.project",
    "experiment_name": "use logging.run_name",
    "project_name": "use logging.project",
    "use_vllm": "use engine.kind=vllm",
    "per_device_batch_size": "use training.per_device_train_batch_size",
    "train_batch_size": "use training.rollouts_per_step",
    "batch_counts_as_step": "use training.rollouts_as_steps",
    "eval_only": "use the option --eval-only",
    "checkpoint_path": "use the options --eval-only --checkpoint PATH, or --resume PATH",
    "auto_resume": "use the option --resume auto",
    "resume_mode": "use the option --resume",
    "actor_rollout_ref": "verl's sections are training, engine and model here",
    "algorithm": "verl's sections are training, engine and model here",
    "trainer": "verl's sections are training, output and logging here",
}
"""Sections and keys of other tools, and what replaces them."""


class TrainConfig(Section):
    """A training run."""

    renamed: ClassVar = _ELSEWHERE
    mistaken: ClassVar = {
        "models": "this is the config of an evaluation: rg-env eval",
        "script": "this records a run of a script, and is not a config: run the script again, with the options in it",
    }

    imports: list[Text] = Field(default_factory=list)
    """Modules, or .py files (relative to the config that names them), that register tasks or rewards of your own."""
    seed: Seed = 0
    """Seed of everything random: questions, their order, sampling, new weights."""
    grading: Literal["hardened", "partial", "upstream"] = "hardened"
    """"hardened": right or not; "partial": real progress counts; "upstream": the library's own formulas, for comparison
    with published numbers."""
    model: ModelConfig
    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    """The tasks to train on; or else `data`."""
    data: DataConfig | None = None
    splits: SplitsConfig = SplitsConfig()
    prompt: PromptConfig = PromptConfig()
    rewards: Rewards = Field(default_factory=default_rewards)
    """What a rollout is rewarded for."""
    engine: EngineConfig = EngineConfig()
    training: GRPOConfig = GRPOConfig()
    lora: LoraConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    curriculum: CurriculumConfig | None = None
    monitors: MonitorsConfig = MonitorsConfig()
    logging: LoggingConfig = LoggingConfig()
    output: OutputConfig = OutputConfig()
    hub: HubConfig = HubConfig()

    _named = field_validator("tasks", mode="before")(
        named("{name: b, weight: 2}", "name it once, with the sum of weights")
    )

    @property
    def gym(self) -> list[dict[str, Any]]:
        """The tasks in the form that `Mixture.parse` takes."""
        return [{"name": name, **task.model_dump()} for name, task in self.tasks.items()]

    @property
    def reward_specs(self) -> list[dict[str, Any]]:
        """The rewards in the form that `resolve_rewards` takes."""
        return [{"name": name, **reward.model_dump()} for name, reward in self.rewards.items()]

    @property
    def trained_on(self) -> list[str]:
        """Names of what is trained on, for names of runs: the tasks, or the file of your own data."""
        return [Path(self.data.path).stem] if self.data else list(self.tasks)

    def prompt_arguments(self) -> dict[str, Any]:
        """Arguments of any `Environment`: how questions are prompted, and what answers are rewarded for."""
        prompt = self.prompt
        return {
            "system_prompt": prompt.system_prompt,
            "prompt_placement": prompt.placement,
            "preamble": prompt.preamble,
            "rewards": self.reward_specs,
        }

    def environment_arguments(self) -> dict[str, Any]:
        """Arguments of `ReasoningGym`, without `gym`."""
        splits = self.splits
        return {
            "num_train_examples": splits.num_train_examples,
            "num_eval_examples": splits.num_eval_examples,
            "seed": self.seed if splits.seed is None else splits.seed,
            "eval_seed": splits.eval_seed,
            "split_by": splits.by,
            "manifest": splits.manifest,
            **self.prompt_arguments(),
            "grading": self.grading,
        }

    def evaluation_environments(self) -> list[tuple[str | None, dict[str, Any]]]:
        """What is evaluated in addition to the training tasks, an entry for each environment: its label, and all its
        arguments of `ReasoningGym`. The held-out tasks share one, without a label."""
        evaluation = self.evaluation
        parts: list[tuple[str | None, list[str]]] = [(None, evaluation.held_out)] if evaluation.held_out else []
        parts += [(label, [label]) for label in evaluation.labels]
        environments = []
        for label, names in parts:
            gym = [evaluation.gym(name) for name in names]
            # By largest remainder each task gets as many rows as its weight if the weights add up to all rows.
            rows = {"num_train_examples": 0, "num_eval_examples": sum(spec["weight"] for spec in gym), "manifest": None}
            environments.append((label, {**self.environment_arguments(), "gym": gym, **rows}))
        return environments

    def grpo_config(self, folder: Path | None = None) -> GRPOConfig:
        """The section `training` with what other sections hold: the seed, the output folder, when to save."""
        return self.training.model_copy(
            update={
                "seed": self.seed,
                "output_dir": None if folder is None else str(folder),
                "save_steps": self.output.save_every,
                "save_total_limit": self.output.save_total_limit,
            }
        )

    def resolved(self) -> dict[str, Any]:
        """The whole config, defaults included, as plain values that `load_train_config` reads to the same config."""
        values: dict[str, Any] = without_nulls(self.model_dump(mode="json", exclude={"training": set(OWNED_ELSEWHERE)}))
        return values

    def in_updates(self, own_rows: int | None = None) -> "TrainConfig":
        """The same run with all steps counted in updates (`training.rollouts_as_steps`); rounded up. The number of
        steps follows from `training.num_train_epochs`, if given.

        Args:
            own_rows: number of training rows in `data`; without it, its epochs stay epochs.
        """
        training = self.training
        rows = own_rows if self.data else self.splits.num_train_examples
        epochs = training if rows is None else training.for_rows(rows)
        if not training.rollouts_as_steps:
            return self if epochs is training else self.model_copy(update={"training": epochs})

        def updates(rollouts: int | None) -> int | None:
            return None if rollouts is None else -(-rollouts * training.num_iterations // training.rollouts_per_step)

        def counted(section: Any, *names: str) -> Any:
            return section and section.model_copy(update={name: updates(getattr(section, name)) for name in names})

        curriculum = counted(self.curriculum, "check_every")
        if curriculum is not None and curriculum.schedule is not None:
            # The latest last: it wins where several begin with the same update.
            starts = sorted((int(start), level) for start, level in curriculum.schedule.items())
            schedule = {str(updates(start)): level for start, level in starts}
            curriculum = curriculum.model_copy(update={"schedule": schedule})
        changes = {
            "training": counted(training, "max_steps", "warmup_steps").model_copy(update={"rollouts_as_steps": False}),
            "output": counted(self.output, "save_every"),
            "hub": counted(self.hub, "every"),
            "logging": counted(self.logging, "examples_every"),
            "evaluation": counted(self.evaluation, "every"),
            "curriculum": curriculum,
        }
        if epochs is not training:
            changes["training"] = changes["training"].model_copy(
                update={"max_steps": epochs.max_steps, "num_train_epochs": None}
            )
        return self.model_copy(update=changes)
