"""`GRPOTrainer`: verifiers' trainer with what is broken or slow in it mended. Same constructor, same `GRPOConfig`.

    trainer = GRPOTrainer(model=model, env=env, args=args, processing_class=tokenizer, engine="embedded")
    trainer.train()

What differs from `vf.GRPOTrainer` 0.1.6, each with a test that fails on the parent:

- The model sees the prompt. The parent hands its loss mask, in which prompts are 0, to the model as attention mask, so
  that every log-probability but the first is computed without the question.
- No logits are made for what all prompts of a pass begin with, and the log-probabilities "before the update" are not
  computed a second time when there is one update a batch.
- Rollouts without advantage are left out of forward and backward when `beta` is 0: their gradient is exactly zero.
- Rows of similar length go through the model together; on a CPU, a prompt goes once for several of its completions.
- An error in a rollout or a reward ends the run with that error; the parent waits for a batch that never comes.
- Prompts that are too long are an error; the parent drops them in silence.
- Groups of equal rewards have no advantage; the parent scales their rounding errors up.
- Checkpoints are written aside and renamed; metrics have the field's names; a system prompt is folded into the question
  where the chat template has no system role.
- `engine="embedded"` samples from the very model being trained, in this process, without vLLM.
"""

import gc
import shutil
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import torch
from openai import AsyncOpenAI
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from verifiers import Environment
from verifiers.trainers import GRPOTrainer as VerifiersGRPOTrainer

from rg_env.core.prompts import rejects_system_role
from rg_env.inference.client import InProcessClient
from rg_env.inference.engine import EmbeddedEngine
from rg_env.training.checks import EngineName, check_engine, check_prompt_lengths, fold_system_prompts
from rg_env.training.config import GRPOConfig
from rg_env.training.fixed_eval import accuracies
from rg_env.training.logprobs import Plan, can_share_prompts, completion_logps
from rg_env.training.rollouts import RolloutGenerator
from rg_env.training.seams import SharedWeights, vllm_client, wait_for_server, weight_client


class GRPOTrainer(VerifiersGRPOTrainer):
    """Group-relative policy optimisation (Shao et al., 2024, arXiv:2402.03300) over a Verifiers environment.

    Args:
        model, env, args, processing_class, callbacks, optimizers, peft_config: as `vf.GRPOTrainer`.
        engine: `"vllm"`, a running `vf-vllm` server at `args.vllm_server_host:vllm_server_port`, as in the parent; or
            `"embedded"`, the model itself.

    Raises:
        InputError: a combination that cannot work; prompts longer than `args.max_prompt_length`; no chat template.
        ServerError: no server within `args.vllm_server_timeout` seconds.
        MissingExtraError: `engine="vllm"` without vLLM.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        env: Environment,
        args: GRPOConfig,
        processing_class: PreTrainedTokenizerBase,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
        *,
        engine: EngineName = "vllm",
        **kwargs: Any,
    ):
        check_engine(engine, args, env)
        if env.message_type == "chat" and rejects_system_role(processing_class):
            fold_system_prompts(env)
        limit = args.max_seq_len if args.max_prompt_length is None else args.max_prompt_length
        if limit is not None:
            check_prompt_lengths(env, processing_class, limit)
        if engine == "vllm":
            wait_for_server(args.vllm_server_host, args.vllm_server_port, args.vllm_server_timeout)
            client_class: Callable[..., Any] = vllm_client()
        else:
            client_class = SharedWeights
        with weight_client(client_class):
            super().__init__(model, env, args, processing_class, callbacks, optimizers, peft_config, **kwargs)
        self.engine: EmbeddedEngine | None = None
        if engine == "embedded":
            self.engine = EmbeddedEngine(
                self.model, processing_class, model_name=self._get_model_name(), seed=self.args.seed
            )
        self.async_generator = RolloutGenerator(
            env=env,
            client_config=self.client_config,
            model_name=self._get_model_name(),
            sampling_args=self._get_sampling_args(),
            num_batches_ahead=self.num_batches_ahead,
            max_queue_size=args.async_max_queue_size,
            generation_timeout=args.async_generation_timeout,
            client_factory=self._make_client,
            on_cancel=self.engine.cancel if self.engine else lambda: None,
        )
        self._weights_guard = _WeightsGuard(self.engine)
        self.add_callback(self._weights_guard)
        self._preparing = False
        self._saving_aside: Path | None = None

    def _make_client(self) -> Any:
        if self.engine:
            self.engine.resume()
            return InProcessClient(self.engine)
        limits = httpx.Limits(max_connections=self.args.max_concurrent)
        http = httpx.AsyncClient(limits=limits, timeout=self.args.async_generation_timeout)
        return AsyncOpenAI(base_url=self.client_config["base_url"], api_key="EMPTY", http_client=http)

    def sync_weights(self) -> None:
        """Bring the engine's weights up to those of the model. Nothing to do for the embedded engine."""
        if self.engine is None:
            super()._move_model_to_vllm()

    def _move_model_to_vllm(self) -> None:
        self.sync_weights()

    def _compute_advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        # Equal rewards can differ from their mean by a rounding error, which scaling by their spread would blow up.
        groups = rewards.float().view(-1, self.num_generations)
        same = (groups.amax(dim=1) - groups.amin(dim=1)) < 1e-6
        advantages: torch.Tensor = super()._compute_advantages(rewards)
        return advantages.masked_fill(same.repeat_interleave(self.num_generations), 0.0)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        self._preparing = True
        try:
            return super()._prepare_inputs(inputs)
        finally:
            self._preparing = False

    def _get_per_token_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
    ) -> torch.Tensor | None:
        """Log-probabilities `(B, L - 1) float32` of `input_ids (B, L)[:, 1:]`, 0 at positions that carry no loss.

        `attention_mask (B, L)` is what verifiers calls so: 1 where a token carries loss. It is no attention mask, and
        the model does not get it: rows are padded on the right, where causal attention never looks. None stands for
        "as the model is now", which `compute_loss` takes to mean the log-probabilities that it computes itself: with
        one update a batch they are the same.
        """
        if self._preparing and self.num_iterations == 1:
            return None
        plan: Plan = "shared" if can_share_prompts(self.model) else "by_length"
        return completion_logps(
            model,
            input_ids,
            attention_mask[:, 1:].bool(),
            temperature=self.temperature,
            max_rows=batch_size,
            plan=plan if self.accelerator.num_processes == 1 else "in_order",
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """The parent's loss, over the rows that have a gradient.

        With `beta = 0` a row's loss is its advantage times something, so that rows of advantage 0 (whole groups, where
        all rollouts got the same reward) change neither loss nor gradient, except through the loss type's normaliser,
        which is put back. One row always stays, so that every rank runs forward and backward the same number of times
        whatever its data: no rank can wait for another, and an optimizer step without any signal stays what it was.
        """
        if self.beta != 0.0:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        mask, advantages = inputs["attention_mask"], inputs["advantages"]
        useful = ((advantages != 0) & mask[:, 1:].any(dim=1)).nonzero().squeeze(1)
        rows = useful if len(useful) else useful.new_zeros(1)
        kept = {name: None if value is None else value[rows] for name, value in inputs.items()}
        loss = super().compute_loss(model, kept, return_outputs, num_items_in_batch)
        if self.loss_type == "bnpo":  # normalised by the tokens of the micro-batch
            share = mask[rows, 1:].sum().clamp(min=1) / mask[:, 1:].sum().clamp(min=1)
        else:  # grpo and dr_grpo: by its rows
            share = len(rows) / len(mask)
        return loss * share

    def _log_reward_metrics_primary(
        self, mode: str, all_reward_dict: dict[str, Any], all_rewards: torch.Tensor, generation_batch_size: int
    ) -> None:
        # The parent logs `rewards/<name>`; the field's names have mean and std, and the share of groups without signal.
        metrics = self._metrics[mode]
        groups = all_rewards.float().view(-1, self.num_generations)
        metrics["reward"].append(groups.mean().item())
        metrics["reward_std"].append(groups.std(dim=1).mean().item())
        metrics["frac_reward_zero_std"].append((groups.amax(dim=1) - groups.amin(dim=1) < 1e-6).float().mean().item())
        for name, values in all_reward_dict.items():
            if name != "reward" and not name.startswith("accuracy"):
                column = torch.as_tensor(values, dtype=torch.float32)
                metrics[f"rewards/{name}/mean"].append(column.mean().item())
                metrics[f"rewards/{name}/std"].append(column.std().item())
        for name, value in accuracies(self.async_generator.last_rollouts).items():
            metrics[name].append(value)

    def _log_completion_metrics_primary(
        self,
        mode: str,
        all_completion_mask: list[list[int]],
        all_completion_ids: list[list[int]],
        all_prompt_mask: list[list[int]],
    ) -> None:
        # The parent looks the end token up again for each token of the batch, which takes longer than its logging.
        lengths = [sum(mask) for mask in all_completion_mask]
        if mode == "train":
            self.state.num_input_tokens_seen += sum(map(len, [*all_prompt_mask, *all_completion_mask]))
        end = self.processing_class.eos_token_id
        ended = [
            length
            for length, ids, mask in zip(lengths, all_completion_ids, all_completion_mask, strict=True)
            if any(token == end and kept for token, kept in zip(ids, mask, strict=True))
        ]
        metrics = self._metrics[mode]
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        metrics["completions/clipped_ratio"].append(1 - len(ended) / len(lengths))
        for name, values in (("", lengths), ("_terminated", ended or [0])):
            metrics[f"completions/mean{name}_length"].append(statistics.fmean(values))
            metrics[f"completions/min{name}_length"].append(float(min(values)))
            metrics[f"completions/max{name}_length"].append(float(max(values)))

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        # The libraries' million objects are here to stay: without this, each full garbage collection walks them all,
        # some 0.2 s every other step.
        gc.collect()
        gc.freeze()
        # Batches are numbered from 0 in each loop: an interrupted one may have left some behind.
        self._step = self._next_batch_id = 0
        self._buffered_inputs = None
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            gc.unfreeze()
            self._weights_guard.release()
            self.async_generator.stop()  # also where only an evaluation started it

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Written aside and renamed: a folder named checkpoint-N is always whole.
        folder = Path(self.args.output_dir)
        self._saving_aside = folder / "checkpoint.part"
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                name = f"checkpoint-{self.state.global_step}"
                (self._saving_aside / name).rename(folder / name)
                self._rotate_checkpoints(use_mtime=False, output_dir=str(folder))
        finally:
            if self.args.should_save:
                shutil.rmtree(self._saving_aside, ignore_errors=True)
            self._saving_aside = None

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving_aside or super()._get_output_dir(trial))


class _WeightsGuard(TrainerCallback):
    """Keeps the embedded engine from generating while the optimizer writes the weights."""

    def __init__(self, engine: EmbeddedEngine | None):
        self._engine = engine
        self._held: ExitStack | None = None

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if self._engine:
            self._held = ExitStack()
            self._held.enter_context(self._engine.weights_fixed())

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.release()

    def release(self) -> None:
        if self._held:
            self._held.close()
            self._held = None
