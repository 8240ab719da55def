"""The schema for training configs (the files in `configs/train/`), with methods that build what a
run needs from a config.

    config = load_train_config("configs/train/tiny.yaml")    # see `load`
    env = config.environment()

Each section is frozen. `docs/reference/configuration.md` is generated from the docstrings of the sections and fields.
The `training` section is `grpo.GRPOSettings`. This module imports neither torch nor reasoning_gym.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from rg_env.core.config import parsing
from rg_env.core.config.files import without_nulls
from rg_env.core.config.parsing import Above0, Count, From0, Positive, Section, Seed, Share, TaskOptions, Text, named
from rg_env.core.data.dataset import SplitRequest
from rg_env.core.data.splits import OnFew, Split, SplitBy
from rg_env.core.data.user_rows import DataConfig
from rg_env.core.environment import Environment, ReasoningGym
from rg_env.core.hub import repo_problem
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import unknown_name
from rg_env.tiny import TINY, tiny_mixture
from rg_env.training.config.grpo import OTHER_TRAINERS, GRPOConfig, GRPOSettings

DataRows = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""Training and evaluation rows from the `data` section."""


class ModelConfig(Section):
    """The policy to train. `model: tiny` is short for `model: {name: tiny}`."""

    short = "name"

    name: Text
    """A folder, a GGUF file (whose weights are dequantized; needs the package gguf), a model name on the Hugging Face
    Hub, or "tiny" for the tiny policy that ships with the package."""
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = "auto"
    """Attention implementation. "auto" uses flash-attn if it works on this machine and with this `dtype`, and PyTorch's
    SDPA otherwise. Models that support neither use "eager"."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights. "auto" selects float32, or bfloat16 with ZeRO-3 and `mixed_precision: bf16` in the
    accelerate config. "bfloat16" is meant for LoRA, where it halves the memory needed for the frozen weights."""


class TaskConfig(TaskOptions):
    """A training task. The key in `tasks` is the task's name."""

    weight: parsing.Weight = 1.0
    """Relative weight, which determines the task's share of the training and evaluation questions."""


class SplitsConfig(Section):
    """Numbers of questions in a run, and how they are divided between training and evaluation. By default, training and
    evaluation never share a problem, regardless of the seeds."""

    num_train_examples: Positive = 2000
    """Number of training questions, divided among the tasks by weight. They are distinct if the tasks have enough
    questions (see `on_few`)."""
    num_eval_examples: Count = 200
    """Number of distinct evaluation questions, divided among the training tasks by weight. If 0, the training tasks
    are not evaluated."""
    on_few: OnFew = "repeat"
    """What happens if a task has fewer distinct questions than requested. "repeat" repeats training questions, so that
    each problem occurs equally often, and evaluates the distinct evaluation questions only. "cap" trains on the
    distinct questions only, too. "error" ends the run before it starts."""
    seed: Seed | None = None
    """Seed for the training questions. Default: the run's `seed`."""
    eval_seed: Seed = 0
    """Seed for the evaluation questions. This seed is independent of the run's `seed`, so runs with different seeds are
    evaluated on the same questions."""
    by: SplitBy = "problem"
    """Method for dividing questions between training and evaluation. "problem" keeps all wordings of a problem in the
    same split. "question" assigns each question text independently, so the same problem can be in both splits. Use
    "question" to reproduce runs from earlier releases of rg-env, or to get more rows from tasks with few problems."""
    manifest: Text | None = None
    """Path to an earlier run's manifest.json. The new run uses exactly the same rows, and fails if these rows cannot be
    reproduced."""


def _host(text: str) -> str:
    if "/" in text or text.count(":") == 1:
        raise ValueError("must be a name or an address, without http:// and without the port, which is engine.port")
    return text


class EngineConfig(Section):
    """The engine that generates completions. `engine: vllm` is short for `engine: {kind: vllm}`."""

    short = "kind"
    renamed: ClassVar = OTHER_TRAINERS["engine"]

    kind: Literal["embedded", "vllm"] = "embedded"
    """"embedded" samples from the model being trained, in the training process. "vllm" samples from a vLLM server,
    which `rg-env vllm` and `rg-env launch` start."""
    max_batch_size: Positive = 512
    """Maximum number of sequences that the embedded engine decodes at once. Lower values use less memory, but
    generation takes longer."""
    host: Annotated[Text, AfterValidator(_host)] = "127.0.0.1"
    """Host of the vLLM server: a name or an address."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the vLLM server."""
    connect_timeout: Above0 = 5.0
    """Seconds to wait for the vLLM server when a run starts."""
    generation_timeout: Above0 = 600.0
    """Timeout for one request, in seconds ("vllm" only). A request generates a step's rollouts, or the same number of
    evaluation answers."""
    num_batches_ahead: Count = 0
    """Number of batches generated in advance, while the model is trained on an earlier batch ("vllm" only). With 0,
    generation and training alternate. With 1, generation and training overlap, and rollouts are one step off-policy."""
    importance_sampling_correction: bool = False
    """Whether each token's policy loss is weighted by min(p_trainer / p_sampler, cap), which corrects for the
    difference between the server's probabilities and the trainer's ("vllm" only; Yao et al., 2025, "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training")."""
    importance_sampling_cap: Above0 = 2.0
    """Upper bound (`cap`) on the importance weights."""
    weight_sync_timeout: Above0 = 120.0
    """Seconds to wait for the vLLM server's workers in each phase of a weight sync."""


class LoraConfig(Section):
    """Low-rank adapters, which are trained instead of the model's own weights (Hu et al., 2021, arXiv:2106.09685)."""

    renamed: ClassVar = OTHER_TRAINERS["lora"]

    r: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """Scaling parameter: the output of the adapters is multiplied by alpha / r."""
    target_modules: Annotated[list[Text], Field(min_length=1)] = ["all-linear"]  # noqa: RUF012
    """Names of the layers to which adapters are added. If the only entry is "all-linear", adapters are added to all
    linear layers except the LM head."""
    use_rslora: bool = False
    """Whether to multiply the adapters' output by alpha / sqrt(r) instead of alpha / r (rsLoRA)."""


class CurriculumTask(Section):
    """A task with a difficulty level that changes during training. The key in `tasks` is the task's name."""

    attributes: list[Text] = Field(default_factory=list)
    """Attributes of the task that change with the level. Default: all."""
    start: Count = 0
    """Level at the start of training."""
    highest: Count | None = None
    """Highest level that the curriculum can reach. Default: the task's highest level."""


class CurriculumConfig(Section):
    """Difficulty levels that change during training, either with the measured accuracy or at given steps."""

    renamed: ClassVar = OTHER_TRAINERS["curriculum"]

    tasks: dict[str, CurriculumTask]
    """Training tasks whose levels change. The levels of all other tasks stay fixed."""
    success_threshold: Share = 0.7
    """The level is raised if accuracy over the window exceeds this value."""
    failure_threshold: Share = 0.1
    """The level is lowered if accuracy over the window falls below this value."""
    window: Positive = 20
    """Number of recent prompts, all at the task's current level, over which accuracy is measured. Without a
    `schedule`, the level does not change until the window is full."""
    check_every: Positive = 1
    """Number of steps between accuracy checks."""
    step: Positive = 1
    """Number of levels to go up or down when accuracy crosses a threshold."""
    schedule: dict[str, Count] | None = None
    """Levels to switch to at given training steps, such as {0: 0, 100: 1, 200: 2}. If a schedule is set, the thresholds
    are not used. Default: levels depend on accuracy."""

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
    """A run's console output, recorded rollouts and experiment trackers. `metrics.jsonl` is always written."""

    report_to: Annotated[
        list[Literal["tensorboard", "wandb", "trackio"]],
        BeforeValidator(lambda names: [] if names in ("none", ["none"]) else names),
    ] = Field(default_factory=list)
    """Experiment trackers that receive the metrics. By default, or with "none", no tracker is used. Metrics are sent
    only to the trackers listed here."""
    project: Text = "rg-env"
    """Name of the project in W&B and Trackio."""
    run_name: Text | None = None
    """Name of the run in W&B and Trackio. Default: the output folder's name."""
    examples_every: Count = 10
    """Number of steps between examples (questions and answers) printed on the console. 0 turns them off."""
    num_examples: Positive = 2
    """Number of examples to print at a time."""
    rollouts_kept: Count = 32
    """Maximum number of rollouts per step to write to rollouts.jsonl."""
    completion_tables: bool = True
    """Whether the examples printed on the console are also sent to W&B and Trackio as tables."""


class HubConfig(Section):
    """Uploads to the Hugging Face Hub. As with `rg-env push`, each upload includes a model card generated from the
    run's files. If an upload fails, the run continues, and a one-line message with the command that completes the
    upload is printed."""

    renamed: ClassVar = OTHER_TRAINERS["hub"]

    enabled: bool = False
    """Whether the run is uploaded at the end of training, and also during training if `every` is above 0."""
    repo_id: Annotated[Text | None, Field(validate_default=True)] = None
    """Repository on the Hub, as USER/NAME. The repository is created if it does not exist. A repository with other
    contents is not overwritten."""
    private: bool = False
    """Whether a new repository is private."""
    optimizer_state: Literal["none", "full"] = "none"
    """Whether to upload the optimizer state. "full" uploads the state so that training can be resumed from the
    repository. "none" omits the state."""
    every: Count = 0
    """Number of steps between checkpoint uploads during training. The number must be a multiple of `output.save_every`.
    0 uploads only at the end."""

    @field_validator("repo_id")
    @classmethod
    def _is_a_repository(cls, repo_id: str | None, info: ValidationInfo) -> str | None:
        if repo_id is None and info.data.get("enabled"):
            raise ValueError("is required if hub.enabled is true: set it to the repository to upload to, as USER/NAME")
        if repo_id is not None and (problem := repo_problem(repo_id)):
            raise ValueError(problem)
        return repo_id


class OutputConfig(Section):
    """The output folder and its checkpoints. `output: DIR` is short for `output: {dir: DIR}`."""

    short = "dir"

    dir: Text | None = None
    """Output folder, which must not contain another run. Default: a new folder under outputs/."""
    save_every: Count = 100
    """Number of steps between checkpoints. 0 saves only at the end."""
    save_total_limit: Positive | None = None
    """Maximum number of checkpoints to keep. Older checkpoints are deleted. Default: all checkpoints are kept."""


RESERVED_LABELS = {"held_out": "a metric (eval/held_out)", "status": "a metric (eval/status)"}
"""Names under `eval/` that cannot be labels, each with a description of its use."""


class EvaluationSettings(Section):
    """Schedule and sampling settings for the fixed evaluation."""

    every: Count | None = None
    """Number of steps between evaluations. Default: a fifth of the run. 0 turns off evaluation during training."""
    before: bool = True
    """Whether to evaluate before the first step."""
    after: bool = True
    """Whether to evaluate after the last step."""
    rollouts_per_example: Positive = 1
    """Number of sampled answers per question. If the number is above 1, pass@k is reported."""
    temperature: From0 | None = None
    """Temperature for the sampled answers. Default: `training.temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling threshold (top-p) for the sampled answers. Default: `training.top_p`."""
    max_tokens: Positive | None = None
    """Maximum number of new tokens per answer. Default: `training.max_tokens`."""
    greedy: Annotated[bool, Field(validate_default=True)] = True
    """Whether each question is also answered once with greedy decoding."""

    @field_validator("temperature")
    @classmethod
    def _varies(cls, temperature: float | None, info: ValidationInfo) -> float | None:
        if temperature == 0 and info.data.get("rollouts_per_example", 1) > 1:
            raise ValueError(
                "with temperature 0, all answers are the same: use rollouts_per_example=1 or a higher temperature"
            )
        return temperature

    @field_validator("greedy")
    @classmethod
    def _adds_an_answer(cls, greedy: bool, info: ValidationInfo) -> bool:
        if greedy and info.data.get("temperature") == 0:
            raise ValueError("with temperature 0, the sampled answer is already greedy: set greedy to false")
        return greedy


class EvaluationTask(TaskOptions):
    """An evaluation task. The key in `tasks` is the task's name or a label."""

    task: Text | None = None
    """Name of the task if the key is a label. Default: the key."""
    num_examples: Positive | None = None
    """Number of distinct questions. Default: `evaluation.num_held_out_examples`."""


class EvaluationConfig(EvaluationSettings):
    """The fixed evaluation, which uses the same questions before, during and after training."""

    renamed: ClassVar = OTHER_TRAINERS["evaluation"]

    tasks: dict[str, EvaluationTask] = Field(default_factory=dict)
    """Tasks to evaluate in addition to the training tasks. A held-out task is listed under its own name. Any task, such
    as a training task at another difficulty, can be listed under a label instead. Results under a label do not count
    toward the overall metrics."""
    num_held_out_examples: Positive = 50
    """Number of distinct questions for each entry in `tasks` that does not set `num_examples`."""

    _named = field_validator("tasks", mode="before")(
        named("{name: b, num_examples: 20}", "give the second entry a label: {name: LABEL, task: NAME}")
    )

    @property
    def held_out(self) -> list[str]:
        """Keys in `tasks` that are task names."""
        return [name for name, entry in self.tasks.items() if entry.task in (None, name)]

    @property
    def labels(self) -> list[str]:
        """Keys in `tasks` that are labels."""
        return [name for name in self.tasks if name not in self.held_out]

    def gym(self, name: str) -> dict[str, Any]:
        """Return the entry `name` in the form that `Mixture.parse` accepts. The entry's weight is its number of
        questions."""
        entry = self.tasks[name]
        options = entry.model_dump(exclude={"task", "num_examples"})
        return {"name": entry.task or name, "weight": entry.num_examples or self.num_held_out_examples, **options}


def evaluation_steps(every: int | None, max_steps: int) -> int:
    """Return the number of steps between evaluations: `every`, or a fifth of the run if `every` is None. 0 turns off
    evaluation during training."""
    return max(1, max_steps // 5) if every is None else every


ALL = "all"


class MonitorsConfig(Section):
    """Rules that watch the logged metrics. Each key except `window`, `off` and `stop_on` is a rule, and its value is
    the threshold. A rule that fires prints one line with the symptom, the likely cause and the key to change. The rule
    does not fire again until its condition has been false for an entire window."""

    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Number of steps over which rules compute the mean or median of a metric. No rule fires before the first window
    is full."""
    off: list[str] = Field(default_factory=list)
    """Rules to turn off. `[all]` turns off every rule."""
    stop_on: list[str] = Field(default_factory=list)
    """Rules that end the run when they fire. The run still performs its final evaluation, saves a checkpoint and writes
    all results, but its exit code is 1."""
    zero_variance: Share = 0.9
    """Fires when at least this fraction of groups have the same reward for all rollouts. Such groups provide no
    learning signal."""
    answer_rate: Share = 0.5
    """Fires when the fraction of completions with a well-formed answer is below this value and not rising."""
    truncation: Share = 0.2
    """Fires when at least this fraction of completions are cut off by the token limit."""
    entropy_collapse: Share = 0.1
    """Fires when entropy is below this fraction of its mean over the first window, and accuracy is below 0.8 and not
    rising."""
    reward_hacking: Above0 = 0.1
    """Fires when the mean reward has risen by at least this much, and by more than noise, since the previous or the
    first window, while accuracy has not risen. If accuracy has clearly fallen, half this amount is enough."""
    kl_spike: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 5.0
    """Fires when the KL divergence is at least this many times its median over the window, and at least 0.1 nats per
    token."""
    grader_timeouts: Share = 0.02
    """Fires when grading times out for at least this fraction of answers."""
    ungradable: Share = 0.02
    """Fires when at least this fraction of answers cannot be graded."""

    @field_validator("off", "stop_on")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        for name in names:
            if name not in cls.rule_names() and not (name == ALL and info.field_name == "off"):
                raise unknown_name("monitor", name, cls.rule_names())
            if info.field_name == "stop_on" and {name, ALL} & set(info.data.get("off", [])):
                raise ValueError(f"{name} is off: remove it from monitors.off")
        return names

    @classmethod
    def rule_names(cls) -> list[str]:
        """Return the names of all rules, in the order in which they are checked."""
        return [name for name in cls.model_fields if name not in ("window", "off", "stop_on")]

    def active(self) -> list[str]:
        """Return the names of the active rules."""
        return [] if ALL in self.off else [name for name in self.rule_names() if name not in self.off]


class TrainConfig(Section):
    """A training run's config."""

    renamed: ClassVar = OTHER_TRAINERS["training"] | OTHER_TRAINERS["run"]
    mistaken: ClassVar = {
        "reasoning_gym": "this is a config for Reasoning Gym's own trainer: see configs/train/paper for the "
        "paper's runs",
        "distributed_type": "this is an accelerate config: pass it to `accelerate launch --config-file`, or to "
        "`rg-env launch --accelerate-config`",
        "models": "this is an evaluation config: use rg-env eval",
        "script": "this file records a script's run and is not a config: run the script again with its options",
    }

    imports: list[Text] = Field(default_factory=list)
    """Modules or .py files that register your own tasks or rewards. Paths are relative to the config file that lists
    them."""
    seed: Seed = 0
    """Seed for the training questions, their order, sampling and newly initialized weights."""
    grading: Literal["hardened", "partial", "upstream"] = "hardened"
    """Grading method. "hardened" scores an answer as right or wrong. "partial" also gives credit for real progress,
    such as correctly filled cells. "upstream" uses Reasoning Gym's own formulas, for comparison with published
    numbers."""
    model: ModelConfig
    tasks: dict[str, TaskConfig] = Field(default_factory=dict)
    """Tasks to train on. This section is required unless `data` is given."""
    data: DataConfig | None = None
    """Your own questions and answers, used instead of `tasks`. `splits.num_eval_examples` of the rows, selected with
    `splits.eval_seed`, are held out for evaluation, and all other rows are used for training."""
    splits: SplitsConfig = SplitsConfig()
    prompt: parsing.PromptConfig = parsing.PromptConfig()
    rewards: parsing.Rewards = Field(default_factory=parsing.default_rewards)
    """Reward functions, by name. A rollout's reward is the weighted sum of the functions' scores."""
    engine: EngineConfig = EngineConfig()
    training: GRPOSettings = GRPOSettings()
    lora: LoraConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    curriculum: CurriculumConfig | None = None
    monitors: MonitorsConfig = MonitorsConfig()
    logging: LoggingConfig = LoggingConfig()
    output: OutputConfig = OutputConfig()
    hub: HubConfig = HubConfig()

    _named = field_validator("tasks", mode="before")(
        named("{name: b, weight: 2}", "name it once, with the sum of the weights")
    )

    @property
    def gym(self) -> list[dict[str, Any]]:
        """The tasks, with only the user's own options, in the form that `Mixture.parse` accepts."""
        return [{"name": name, **task.model_dump()} for name, task in self.tasks.items()]

    @property
    def trained_on(self) -> list[str]:
        """Names of the training tasks, or of the data file, to use in the run's name."""
        return [self.data.task_name] if self.data else list(self.tasks)

    @property
    def mixture(self) -> Mixture:
        """The training tasks, of which there must be at least one. With the tiny policy, options that are not set
        default to the values that the policy was trained with. This also applies to `evaluation_mixtures`."""
        return self._parsed(self.gym)

    @property
    def evaluation_mixtures(self) -> dict[str | None, Mixture]:
        """The tasks to evaluate in addition to the training tasks, by label. The held-out tasks share one mixture, with
        None as the label. The weights are the tasks' numbers of questions."""
        held_out, labels = self.evaluation.held_out, self.evaluation.labels
        parts: dict[str | None, list[str]] = {None: held_out} if held_out else {}
        parts |= {label: [label] for label in labels}
        return {label: self._parsed([self.evaluation.gym(name) for name in names]) for label, names in parts.items()}

    def _parsed(self, gym: list[dict[str, Any]]) -> Mixture:
        return tiny_mixture(gym) if self.model.name == TINY else Mixture.parse(gym)

    def environment(self, rows: DataRows | None = None) -> Environment:
        """Return the environment with the training tasks, or with `rows`."""
        if rows is not None:
            return Environment(*rows, self.rewards, **self.prompt.arguments)
        splits = self.splits
        return self._gym(self.mixture, splits.num_train_examples, splits.num_eval_examples, splits.manifest)

    def evaluation_environments(self) -> Iterator[tuple[str | None, ReasoningGym]]:
        """Yield the environment for each of the `evaluation_mixtures`, with its label."""
        for label, mixture in self.evaluation_mixtures.items():
            yield label, self._gym(mixture, 0, round(sum(task.weight for task in mixture.tasks)))

    def row_requests(self) -> list[SplitRequest]:
        """Return the requests for the rows of all environments, except for `data`."""
        splits, seed = self.splits, self.seed if self.splits.seed is None else self.splits.seed
        sizes: list[tuple[Mixture, Split, int, int]] = []
        if self.tasks and self.data is None:
            sizes = [(self.mixture, "train", splits.num_train_examples, seed)]
            sizes.append((self.mixture, "eval", splits.num_eval_examples, splits.eval_seed))
        for mixture in self.evaluation_mixtures.values():
            sizes.append((mixture, "eval", round(sum(task.weight for task in mixture.tasks)), splits.eval_seed))
        return [SplitRequest(*size, splits.by, splits.on_few) for size in sizes]

    def _gym(self, mixture: Mixture, num_train: int, num_eval: int, manifest: str | None = None) -> ReasoningGym:
        splits = self.splits
        return ReasoningGym(
            mixture,
            num_train,
            num_eval,
            seed=self.seed if splits.seed is None else splits.seed,
            eval_seed=splits.eval_seed,
            split_by=splits.by,
            on_few=splits.on_few,
            manifest=manifest,
            grading=self.grading,
            rewards=self.rewards,
            **self.prompt.arguments,
        )

    def grpo_config(self, folder: Path | None = None) -> GRPOConfig:
        """Return the arguments of `GRPOTrainer`, with `folder` as the output folder."""
        return GRPOConfig(
            **self.training.model_dump(exclude_unset=True),
            seed=self.seed,
            output_dir=None if folder is None else str(folder),
            save_steps=self.output.save_every,
            save_total_limit=self.output.save_total_limit,
        )

    def training_for(self, own_rows: int | None = None) -> GRPOSettings:
        """Return the `training` section with `num_train_epochs` converted to `max_steps`. Without `own_rows`, the
        number of training rows in `data`, epochs over `data` are not converted."""
        rows = own_rows if self.data else self.splits.num_train_examples
        return self.training if rows is None else self.training.for_rows(rows)

    def resolved(self) -> dict[str, Any]:
        """Return the entire config, including defaults, as plain values. For a YAML file with these values,
        `load_train_config` returns an equal config."""
        values: dict[str, Any] = without_nulls(self.model_dump(mode="json"))
        return values
