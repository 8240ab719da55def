"""`GRPOTrainer`: verifiers' trainer with what is broken or slow in it mended. Same constructor, same `GRPOConfig`.

    trainer = GRPOTrainer(model=model, env=env, args=args, processing_class=tokenizer, engine="embedded")
    trainer.train()

What differs from `vf.GRPOTrainer` 0.1.6, each with a test that fails on the parent:

- The model sees the prompt. The parent hands its loss mask, in which prompts are 0, to the model as attention mask, so
  that every log-probability but the first is computed without the question.
- Logits are made for the positions that carry loss, in chunks, and the log-probabilities "before the update" are not
  computed a second time when there is one update a batch.
- Rollouts without advantage are left out of forward and backward when `beta` is 0: their gradient is exactly zero.
- Rows of similar length go through the model together; on a CPU, a prompt goes once for several of its completions.
- An error in a rollout or a reward ends the run with that error; the parent waits for a batch that never comes.
- Prompts that are too long are an error; the parent drops them in silence.
- Groups of equal rewards have no advantage; the parent scales their rounding errors up.
- Each process has its own rows of a batch, and no row is lost when an epoch ends (see `order`).
- Checkpoints are written aside, checked and renamed, and a run goes on from one exactly (see `resumable`).
- A step whose loss or gradient is not finite changes nothing; three in a row end the run (see `step_guard`).
- Metrics have the field's names; a system prompt is folded into the question where the chat template has no system
  role.
- `engine="embedded"` samples from the very model being trained, in this process, without vLLM.
"""

import gc
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from verifiers import Environment

from rg_env.core.prompts import rejects_system_role
from rg_env.training import metrics
from rg_env.training.advantages import group_advantages
from rg_env.training.arguments import GRPOConfig
from rg_env.training.batches import RolloutBatch, micro_batches, truncated
from rg_env.training.checks import (
    EngineName,
    check_engine,
    check_liger,
    check_options,
    check_prompt_lengths,
    fitting_rows,
    fold_system_prompts,
)
from rg_env.training.collective import on_main
from rg_env.training.curriculum import Curriculum
from rg_env.training.engines import Embedded, Engine, Vllm, WeightsGuard
from rg_env.training.generated_batch import GeneratedBatch
from rg_env.training.group_filter import EmptyBatches, fill
from rg_env.training.objective import ObjectiveTrainer
from rg_env.training.output import nothing_left_of
from rg_env.training.phases import Phases
from rg_env.training.previous_policy import PreviousPolicy
from rg_env.training.resources import StepMeter
from rg_env.training.resumable import check_start
from rg_env.training.rollouts import RolloutGenerator
from rg_env.training.seams import no_reference_model, no_weight_client


class GRPOTrainer(ObjectiveTrainer):
    """Group-relative policy optimisation (Shao et al., 2024, arXiv:2402.03300) over a Verifiers environment.

    Args:
        model, env, args, processing_class, callbacks, optimizers, peft_config: as `vf.GRPOTrainer`.
        engine: `"vllm"`, a running `vf-vllm` server at `args.vllm_server_host:vllm_server_port`, as in the parent; or
            `"embedded"`, the model itself.
        curriculum: changes the levels of tasks of `env` while training goes on.

    Raises:
        InputError: a combination that cannot work; prompts longer than `args.max_prompt_length`; no chat template.
        ServerError: no server within `args.vllm_server_timeout` seconds.
        MissingExtraError: weights would travel by NCCL, and vLLM is not installed beside the trainer.
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
        curriculum: Curriculum | None = None,
        **kwargs: Any,
    ):
        check_engine(engine, args, env)
        check_liger(args)
        check_options(args, env, curriculum)
        folds = env.message_type == "chat" and rejects_system_role(processing_class)
        if folds:
            fold_system_prompts(env)
        limit = args.max_seq_len if args.max_prompt_length is None else args.max_prompt_length
        longest = check_prompt_lengths(env, processing_class, limit)
        if curriculum is not None:
            longest = limit or longest  # prompts of later levels may be as long
            curriculum.prepare = lambda rows: fitting_rows(env.put_rows(rows), processing_class, limit, fold=folds)
        self.rows_hash = check_start(env, args)
        with nothing_left_of(args.output_dir):  # transformers makes the folder before it can be known who is there
            with no_weight_client(), no_reference_model(args):
                super().__init__(model, env, args, processing_class, callbacks, optimizers, peft_config, **kwargs)
            if engine == "embedded":
                self.sampler: Engine = Embedded(self.model, processing_class, self._get_model_name(), self.args.seed)
            else:
                self.sampler = Vllm(self.accelerator, self.model, env, processing_class, args, longest)
        self.async_generator = RolloutGenerator(
            env=env,
            client_config=self.client_config,
            model_name=self.sampler.model_name,
            sampling_args=self._get_sampling_args(),
            num_batches_ahead=self.num_batches_ahead,
            max_queue_size=args.async_max_queue_size,
            generation_timeout=args.async_generation_timeout,
            client_factory=self.sampler.client,
            on_cancel=self.sampler.cancel,
            health=self.sampler.health_problem,
        )
        self.beta = args.beta
        if args.kl_reference == "previous":
            self.previous_policy = PreviousPolicy(self.accelerator.unwrap_model(self.model))
        self.updating = False
        """From where a step changes what the next one needs whole, to its end: `train` lets no interrupt in there."""
        self._empty_batches = EmptyBatches()
        self._weights_guard = WeightsGuard(self.sampler)
        self.add_callback(self._weights_guard)
        self.rollouts: Any = None
        """verifiers' `GenerateOutputs` of the batch that is trained on; on the main process."""
        self.phases = Phases()
        self.meter = StepMeter()
        self.add_callback(self.meter)
        self._synced_at: int | None = None
        if curriculum is not None:
            on_main(self.accelerator, curriculum.check)
        self._can_resume(curriculum)

    def sync_weights(self) -> None:
        """Bring the engine's weights up to those of the model, once a step. All processes take part."""
        if self._synced_at == self.state.global_step:
            return
        on_main(self.accelerator, self.async_generator.wait_idle)  # no group mixes two policies
        with self.phases("sync"):
            self.sampler.sync()
        self._synced_at = self.state.global_step

    def _prepare_inputs(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The micro-batch of this pass; every `generate_every` passes a new batch of rollouts is fetched for it.

        Batches are asked for `num_batches_ahead` before they are needed. An error in one is raised on all processes.
        """
        generate_every = self.gradient_accumulation_steps * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self.sync_weights()
            with self.phases("waiting"):
                batch = on_main(self.accelerator, lambda: self._fetch(self._step // generate_every, generate_every))
            self._buffered_inputs = self._train_inputs(batch, len(inputs))
        number = self._step % self.gradient_accumulation_steps
        if self.previous_policy is not None:
            self.updating = True  # an interrupt would leave its weights in the model, or a copy without its update
            if number == 0:
                self._look_back(self.previous_policy, self._buffered_inputs)
            if number == self.gradient_accumulation_steps - 1:  # DeepSpeed makes the update in the backward pass
                self.previous_policy.keep()
        micro_batch = self._buffered_inputs[number]
        self._step += 1
        return micro_batch

    def _fetch(self, number: int, generate_every: int) -> RolloutBatch:
        """Ask for the batches up to `number + num_batches_ahead`, as far as the run goes, wait for batch `number`, and
        log what it is like. On the main process only."""
        if self.curriculum is not None:
            self.curriculum.look(self.state.global_step)
        last = (self.state.max_steps * self.gradient_accumulation_steps - 1) // generate_every
        for ahead in range(self._next_batch_id, min(number + self.num_batches_ahead, last) + 1):
            self.async_generator.submit(self, ahead, *self._gather_batch_data(ahead - number))
            self._next_batch_id = ahead + 1
        result = self.async_generator.get_batch(number)
        batch = RolloutBatch.of(result.processed_results)
        if self.curriculum is not None:
            correct = torch.tensor(result.all_reward_dict["accuracy"], dtype=torch.float64)
            self.curriculum.measure(number, correct.view(-1, self.num_generations).mean(dim=1).tolist())
        metrics.log_batch(self, result, batch)  # what the policy does, whatever of it is trained on
        if self.args.filter_groups:
            result, batch = self._filtered(number, result)
        if self.mask_truncated_completions:
            batch = batch.without_loss(truncated(result.outputs.state, batch, self.processing_class.eos_token_id))
        self.rollouts = result.outputs
        return batch

    def _filtered(self, number: int, result: GeneratedBatch) -> tuple[GeneratedBatch, RolloutBatch]:
        """Batch `number` with other groups in the place of those that teach nothing."""

        def ask(round_: int, prompts: int) -> GeneratedBatch:
            columns = self._more_batch_data(number, round_, prompts)
            more = self.async_generator.extra(self, columns)
            metrics.count_tokens(self, RolloutBatch.of(more.processed_results))
            return more

        filtered = fill(result, self.num_generations, ask, self.args.filter_groups_rounds)
        for name, value in filtered.metrics().items():
            self._metrics["train"][name].append(value)
        self._empty_batches.look(filtered)
        return filtered.batch, RolloutBatch.of(filtered.batch.processed_results).without_loss(filtered.empty)

    def _train_inputs(self, batch: RolloutBatch, rows: int) -> list[dict[str, Any]]:
        """This process's part of a batch, `rows` rows, shuffled and split for gradient accumulation."""
        device, first = self.accelerator.device, self.accelerator.process_index * rows
        part = slice(first, first + rows)
        rewards = torch.tensor(batch.rewards, device=device)
        advantages = group_advantages(rewards, self.num_generations, self.args.scale_rewards)
        tensors: dict[str, Any] = batch.tensors(
            part, pad_token=self.processing_class.pad_token_id, max_length=self.max_seq_len, device=device
        )
        tensors["advantages"] = advantages[part]
        passes = self.gradient_accumulation_steps * self.accelerator.num_processes
        tensors["batch_tokens"] = torch.full((rows,), batch.tokens() / passes, device=device)
        tensors["old_per_token_logps"] = None
        if self.num_iterations > 1:  # otherwise the same as those that the loss computes itself
            with torch.no_grad():
                tensors["old_per_token_logps"] = self._get_per_token_logps(
                    self.model,
                    tensors["input_ids"],
                    tensors["attention_mask"],
                    batch_size=self.per_device_train_batch_size,
                )
        return micro_batches(tensors, self.gradient_accumulation_steps)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.meter.begin_step()
        with self.phases("backward"):  # and all that is no phase of its own
            return self._noting_loss(super().training_step(model, inputs, num_items_in_batch))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """The parent's log, and what the steps since the last one took; of times, too, the mean of a step."""
        steps, costs = self.meter.take()
        if steps:
            times = {name: seconds / steps for name, seconds in self.phases.take().items()}
            logs = {**logs, **times, **costs, "skipped_steps": self.step_guard.skipped}
        super().log({**logs, "rollouts": self.rollouts_so_far}, start_time)

    @property
    def rollouts_so_far(self) -> int:
        """That the updates so far were made from, of all processes."""
        batch = self._train_batch_size * self.gradient_accumulation_steps * self.accelerator.num_processes
        return self.state.global_step * batch // self.num_iterations

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        # The libraries' million objects are here to stay: without this, each full garbage collection walks them all,
        # some 0.2 s every other step.
        gc.collect()
        gc.freeze()
        self._synced_at = None
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            gc.unfreeze()
            self._weights_guard.release()
            self.async_generator.stop()  # also where only an evaluation started it
