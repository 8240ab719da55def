"""`GRPOSettings` is the `training:` section of a run's config. `GRPOConfig` adds the settings that a config file has in
other sections, and is what `GRPOTrainer` takes.

    args = GRPOConfig(output_dir="outputs/run", max_steps=200, learning_rate=1e-6, rollouts_per_step=128)

Settings that also exist in `vf.GRPOConfig` (Verifiers 0.1.6) have the same names there. The batch size is global:
`rollouts_per_step` counts the rollouts on all processes, and gradient accumulation is derived from the number of
processes. A config therefore describes the same experiment on any number of GPUs, except with `loss_type: bnpo`.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rg_env.core.config.parsing import Above0, Count, From0, Positive, Section, Seed, Share, Text
from rg_env.core.config.yaml12 import load as load_yaml
from rg_env.core.text import is_count
from rg_env.errors import InputError
from rg_env.inference.protocol import Sampling
from rg_env.tiny import TRAINING

if TYPE_CHECKING:
    from rg_env.inference.models import Policy

OTHER_TRAINERS: dict[str, Any] = load_yaml(Path(__file__).with_name("other_trainers.yaml").read_text(encoding="utf-8"))
"""Keys from other tools and earlier releases, by section, each with advice for its error message."""


class GRPOSettings(Section):
    """Settings for the GRPO objective, the optimizer and sampling."""

    renamed: ClassVar = OTHER_TRAINERS["training"]

    max_steps: Positive = 200
    """Number of optimizer steps."""
    num_train_epochs: Above0 | None = None
    """Number of passes over the training rows, used instead of `max_steps`. Rows at the end of a pass that do not fill
    a complete step are skipped. Default: `max_steps` determines the length of the run."""
    learning_rate: Above0 = 1e-6
    """Peak learning rate of the schedule."""
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    """Learning rate schedule. After the warmup, "linear" and "cosine" decay to 0 by the end of the run."""
    warmup_steps: Count = 10
    """Number of steps over which the learning rate rises linearly to its peak. The first step already has a fraction of
    the peak. The "constant" schedule has no warmup. Default: 10, or `max_steps` if it is smaller."""
    optim: Literal["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd"] = (
        "adamw_torch_fused"
    )
    """Optimizer. "adamw_torch_fused" is "adamw_torch" with fused kernels. The 8-bit optimizers need bitsandbytes, and
    keep AdamW's moments in 2 bytes per parameter instead of 8. To keep AdamW's state in CPU memory, use ZeRO-3 with
    `offload_optimizer_device: cpu` (configs/zero3.yaml)."""
    weight_decay: From0 = 0.0
    """Weight decay, which does not apply to biases or norms."""
    adam_beta1: Share = 0.9
    """AdamW beta1, the decay rate of the first moment."""
    adam_beta2: Share = 0.999
    """AdamW beta2, the decay rate of the second moment."""
    adam_epsilon: Above0 = 1e-8
    """AdamW epsilon, added to the denominator for numerical stability."""
    max_grad_norm: From0 = 0.2
    """Maximum gradient norm. Larger gradients are clipped. 0 turns clipping off."""
    rollouts_per_step: Positive = 128
    """Number of rollouts per optimizer step, across all processes: the number of prompts times `num_generations`. The
    number must be divisible by `num_generations`, and each process's share must divide evenly into micro-batches."""
    per_device_train_batch_size: Positive = 8
    """Maximum number of rollouts per micro-batch on each process. A process with fewer rollouts than this per step
    handles them all in one micro-batch. This setting affects memory use and speed, but not the number of rollouts per
    step."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Number of rollouts per prompt. The rollouts for a prompt form a group, and advantages are computed relative to
    the group (Shao et al., 2024, arXiv:2402.03300)."""
    num_iterations: Positive = 1
    """Number of optimizer steps per batch of rollouts."""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo"] = "dapo"
    """Method for averaging the token losses. "dapo" averages over all tokens in the step's rollouts (Yu et al., 2025,
    arXiv:2503.14476, section 3.3). "grpo" averages over the tokens of each rollout, then over rollouts (Shao et al.,
    2024, arXiv:2402.03300). "dr_grpo" divides each rollout's sum by `max_prompt_length + max_tokens`, then averages
    over rollouts (Liu et al., 2025, arXiv:2503.20783). "bnpo" averages over each micro-batch's tokens, so its loss
    depends on the number of processes and on `per_device_train_batch_size`. "cispo" averages like "dapo", but clips
    only the weight of each token's gradient, at `1 + epsilon_high`, so that no token loses its gradient (MiniMax, 2025,
    MiniMax-M1, arXiv:2506.13585, equation 4)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether the probability ratio is that of each "token", or the geometric mean of the ratios in the completion
    ("sequence"). With `loss_type: grpo`, "sequence" is GSPO (Zheng et al., 2025, arXiv:2507.18071), whose paper uses
    `epsilon: 3e-4` and `epsilon_high: 4e-4`."""
    mask_truncated_completions: bool = False
    """Whether rollouts that are cut off at `max_tokens` are excluded from the loss ("overlong filtering", Yu et al.,
    2025, DAPO, arXiv:2503.14476, section 3.4). Such rollouts still count toward their group's mean reward."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Scaling of the advantages. Advantages are divided by the standard deviation of rewards in the "group" (Shao et
    al., 2024, arXiv:2402.03300), by the standard deviation in the entire "batch" (Liu et al., 2025, arXiv:2508.08221),
    or not at all ("none"; Liu et al., 2025, arXiv:2503.20783)."""
    beta: From0 = 0.0
    """Weight of the KL term in the loss. 0 turns it off."""
    kl_reference: Literal["initial", "previous"] = "initial"
    """Reference policy for the KL term: the "initial" policy, or the "previous" policy, which is the policy before the
    last update. A copy of the trained weights is kept in memory (with LoRA, only of the adapters)."""
    entropy_coef: From0 = 0.0
    """Weight of the entropy bonus. The entropy of the policy's distribution (in nats, at `temperature`, averaged like
    the loss) times this weight is subtracted from the loss (Schulman et al., 2017, PPO, arXiv:1707.06347, equation 9).
    0 turns it off. Values around 0.001 slow down the collapse to a single answer."""
    off_policy_mask_threshold: Above0 | None = None
    """Off-policy masking threshold, in nats per token. A rollout with a negative advantage is excluded from the
    policy loss if the mean log-probability of its tokens has fallen by more than this threshold since sampling
    (DeepSeek-V3.2, arXiv:2512.02556). Default: no masking."""
    filter_groups: bool = False
    """Whether groups with only right or only wrong answers are replaced with groups for other prompts ("dynamic
    sampling", Yu et al., 2025, DAPO, arXiv:2503.14476, section 3.2)."""
    filter_groups_rounds: Annotated[int, Field(ge=1, le=100)] = 3
    """Maximum number of replacement rounds per batch. Groups that cannot be replaced within this number of rounds are
    excluded from the loss."""
    epsilon: Share = 0.2
    """Clipping range for the probability ratio, as a distance from 1. Clipping has no effect if `num_iterations` is 1,
    because the ratio is then always 1."""
    epsilon_high: From0 | None = None
    """Clipping range above 1 ("clip-higher", DAPO, section 3.1). The value must be at least `epsilon`. Default:
    `epsilon`."""
    delta: Above0 | None = None
    """Upper bound on the ratio in the loss's unclipped term (two-sided clipping). Default: no bound."""
    temperature: Above0 = 1.0
    """Sampling temperature for rollouts. The loss uses log-probabilities at the same temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: tokens are sampled from the smallest set of most likely tokens that has a total probability of
    at least this value. 1 turns it off."""
    top_k: Count = 0
    """Top-k sampling: tokens are sampled only from the `top_k` most likely tokens. 0 turns it off."""
    min_p: Share = 0.0
    """Min-p sampling: tokens whose probability is below this fraction of the most likely token's probability are
    excluded. 0 turns it off."""
    repetition_penalty: Above0 = 1.0
    """Multiplicative penalty on tokens that occur in the prompt or in the completion so far. 1 turns it off."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Penalty subtracted from the logits of tokens that occur in the completion so far. 0 turns it off."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Penalty subtracted from a token's logit for each occurrence in the completion so far. 0 turns it off."""
    max_prompt_length: Positive = 1024
    """Maximum prompt length in tokens. Longer prompts cause an error, or are excluded if a curriculum draws them."""
    max_tokens: Positive = 1024
    """Maximum number of new tokens per completion. `max_new_tokens` is an alias."""
    stop: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Texts that end a completion, such as `["</answer>"]`. The text is part of the completion. Default: only the
    model's end-of-sequence tokens end a completion."""
    shuffle_dataset: bool = True
    """Whether the training rows are used in random order."""
    bf16: bool | None = None
    """Whether to compute in bfloat16 with float32 weights (autocast). Default: only on a GPU. On a CPU with
    bfloat16 instructions, bfloat16 can be faster for large models."""
    gradient_checkpointing: bool | None = None
    """Whether to recompute activations in the backward pass, which saves memory but takes more time. Default: on a GPU,
    and on a CPU only if the activations of a micro-batch would need more than half of the free memory."""
    use_liger_kernel: bool = False
    """Whether to use Liger kernels, which need a GPU and the liger-kernel package."""
    use_cpu: bool | None = None
    """Whether to train on the CPU. Default: only if there is no GPU."""

    @model_validator(mode="before")
    @classmethod
    def _accept_other_names(cls, values: Any) -> Any:
        if isinstance(values, dict) and is_count(given := values.get("max_new_tokens")) and given:
            values = {name: value for name, value in values.items() if name != "max_new_tokens"} | {"max_tokens": given}
        return values  # an invalid max_new_tokens keeps its name so that the error message names it

    @model_validator(mode="after")
    def _warm_up_within_the_run(self) -> Self:
        # Fields are frozen. Unlike `model_copy`, this assignment does not mark the field as set by the user.
        self.__dict__["warmup_steps"] = self._warmup(self.max_steps)
        return self

    def _warmup(self, steps: int) -> int:
        """Return the number of warmup steps in a run of `steps` steps."""
        given = "warmup_steps" in self.model_fields_set or self.lr_scheduler_type == "constant"
        return self.warmup_steps if given else min(self.warmup_steps, steps)

    @field_validator("kl_reference")
    @classmethod
    def _has_kl_term(cls, value: str, info: ValidationInfo) -> str:
        if value == "previous" and info.data.get("beta") == 0:
            raise ValueError("there is no KL term because beta is 0: set beta above 0")
        return value

    @field_validator("epsilon_high")
    @classmethod
    def _not_below_epsilon(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and value < (least := info.data.get("epsilon", 0)):
            raise ValueError(f"must be at least epsilon ({least:g})")
        return value

    @field_validator("delta")
    @classmethod
    def _bounds_the_unclipped_term(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("loss_type") == "cispo":
            raise ValueError("has no effect with loss_type=cispo, whose weights are bounded by 1 + epsilon_high")
        return value

    @property
    def sampling(self) -> Sampling:
        """Sampling settings for rollouts."""
        return Sampling(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Sampling)})

    @property
    def prompts_per_step(self) -> int:
        """Number of prompts per optimizer step, across all processes."""
        return self.rollouts_per_step // self.num_generations

    def for_rows(self, rows: int) -> Self:
        """Return these settings with `num_train_epochs` converted to `max_steps`, for `rows` training rows."""
        if self.num_train_epochs is None:
            return self
        batches = self.num_train_epochs * (rows // max(1, self.prompts_per_step))
        steps = max(1, math.ceil(round(batches, 6))) * self.num_iterations
        return self.model_copy(
            update={"max_steps": steps, "num_train_epochs": None, "warmup_steps": self._warmup(steps)}
        )

    @property
    def max_seq_len(self) -> int:
        """Maximum number of tokens in a prompt plus its completion."""
        return self.max_prompt_length + self.max_tokens

    def accumulation(self, processes: int) -> int:
        """Return the number of micro-batches per step on each process. Raises `InputError` if a step cannot be divided
        into complete groups and micro-batches."""
        for key, message in batch_problems(self, processes):
            raise InputError(f"{key}: {message}")
        return self.rollouts_per_step // (self.micro_batch(processes) * processes)

    def micro_batch(self, processes: int) -> int:
        """Return the number of rollouts per micro-batch on each of the `processes` processes:
        `per_device_train_batch_size`, or a process's share of a step if the share is smaller."""
        return max(1, min(self.per_device_train_batch_size, self.rollouts_per_step // processes))


class GRPOConfig(GRPOSettings):
    """Arguments of `GRPOTrainer`: the settings, the seed and the checkpoints."""

    output_dir: Text | None = None
    """Output folder. In a config file, set `output.dir` instead."""
    save_steps: Count = 0
    """Number of steps between checkpoints. 0 saves only at the end. In a config file, set `output.save_every`
    instead."""
    save_total_limit: Positive | None = None
    """Maximum number of checkpoints to keep. Default: all. In a config file, set `output.save_total_limit` instead."""
    seed: Seed = 0
    """Seed for the row order, sampling and newly initialized weights. In a config file, set `seed` instead."""

    def __init__(self, output_dir: str | None = None, **values: Any) -> None:  # by position, as in TRL and Verifiers
        if output_dir is not None:
            values["output_dir"] = output_dir
        super().__init__(**values)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def batch_problems(args: GRPOSettings, processes: int) -> Iterator[tuple[str, str]]:
    """Yield the name of a field that is inconsistent with other fields, and an error message. Yield nothing if all
    fields are consistent."""
    rollouts, group, micro = args.rollouts_per_step, args.num_generations, args.micro_batch(processes)
    for divisor, name in ((group, f"num_generations={group}"), (processes, f"{processes} processes")):
        if rollouts % divisor:
            sizes = _near(rollouts, args, processes)
            yield "rollouts_per_step", f"{rollouts} rollouts are not divisible by {name}; try {sizes}"
            return
    if (share := rollouts // processes) % micro:
        size = next(size for size in range(micro, 0, -1) if share % size == 0)
        message = f"{micro} does not divide each process's {share} rollouts per step; try {size}"
        yield "per_device_train_batch_size", message


def _near(rollouts: int, args: GRPOSettings, processes: int) -> str:
    """Return the numbers nearest to `rollouts` that divide into complete groups, and into complete micro-batches on
    each process. If none of these numbers is within a factor of 2 of `rollouts`, the micro-batch size is ignored."""
    # Up to this number of rollouts, each process has a single micro-batch.
    at_once = processes * args.per_device_train_batch_size
    small, large = math.lcm(args.num_generations, processes), math.lcm(args.num_generations, at_once)
    below = max(min(rollouts, at_once) // small * small, rollouts // large * large)
    above = rollouts // small * small + small
    if above > at_once:
        above = rollouts // large * large + large
    near = [size for size in (below, above) if rollouts <= 2 * size <= 4 * rollouts]
    sizes = near or [rollouts // small * small, rollouts // small * small + small]
    return " or ".join(str(size) for size in sizes if size)


def default_config(policy: "Policy", output_dir: str | Path, **overrides: Any) -> GRPOConfig:
    """Return a `GRPOConfig` with good starting values for `policy`. `overrides` are values for fields of `GRPOConfig`,
    where None keeps the default.

    The values for the tiny policy were found by experiment and lead to a visible improvement in about a minute. The
    values for other models are common starting points for fine-tuning an instruction-tuned model on one GPU, with 16
    prompts x 8 rollouts per step.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    fields = {**TRAINING, "save_steps": 0} if policy.is_tiny else {"save_steps": 100}
    return GRPOConfig(**{**fields, "output_dir": str(output_dir), **given})
