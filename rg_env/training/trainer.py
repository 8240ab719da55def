"""`GRPOTrainer`: group-relative policy optimization of a language model on an environment.

    env = ReasoningGym("leg_counting")
    trainer = GRPOTrainer(model, env, GRPOConfig(output_dir="outputs/run"), tokenizer, engine="embedded")
    trainer.train()

The constructor is that of `vf.GRPOTrainer` (verifiers 0.1.6) with an `engine` and a `curriculum`. `train` is the whole
algorithm, top to bottom. It has an engine that samples (`engines`), a sampler that turns rows into scored rollouts
(`rollouts`), an objective that computes their loss (`objective`), a strategy that spreads the model over processes and
makes the optimizer step (`strategy`), and `checkpointing`; transformers' callbacks watch. `run.train` adds evaluations,
files, trackers and Ctrl-C.

Callbacks see every event but `on_predict` and `on_prediction_step`; `on_evaluate` comes with the metrics of an
evaluation. `control.should_training_stop` and `control.should_save` have an effect, and must be the same on all
processes.
"""

import dataclasses
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState

from rg_env.adapters import as_environment
from rg_env.core.environment import Environment
from rg_env.core.run_folder import removed_on_error
from rg_env.errors import InputError
from rg_env.inference.models import processes
from rg_env.inference.prompts import PromptEncoder
from rg_env.inference.protocol import Sampling
from rg_env.training.algorithms.loss import group_advantages
from rg_env.training.algorithms.objective import Objective
from rg_env.training.algorithms.optimizers import make_optimizer
from rg_env.training.algorithms.policy import PreviousPolicy, prepare_policy, reference_of
from rg_env.training.checkpointing.checkpoints import Checkpoints, rows_hash
from rg_env.training.checks import (
    check_engine,
    check_liger,
    check_options,
    check_prompts,
    fitting_rows,
    longest_prompt,
)
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.schema import EngineConfig
from rg_env.training.data.batches import BatchOrder, TokenBatch, micro_batches, repeated
from rg_env.training.data.curriculum import Curriculum
from rg_env.training.distributed import on_main, same_everywhere
from rg_env.training.engines import Embedded, Engine
from rg_env.training.reporting.metrics import Phases, StepMeter, StepMetrics, batch_metrics, learning_rate
from rg_env.training.rollouts import GroupFilter, Rollouts, RolloutSampler
from rg_env.training.strategy import StepGuard, make_strategy


class GRPOTrainer:
    """Group-relative policy optimization (Shao et al., 2024, arXiv:2402.03300).

    Args:
        model: a causal language model of transformers; its weights are trained in place.
        env: a `ReasoningGym` or other `Environment` of rg_env, a `ReasoningGymEnv`, or a single-turn environment of
            Verifiers.
        args: the settings of training.
        processing_class: the model's tokenizer.
        callbacks: `TrainerCallback`s of transformers.
        optimizers: an optimizer and a learning rate scheduler of your own; None for those that `args` describe. The
            learning rates of an optimizer without a scheduler follow the schedule of `args`, from their own peak.
        peft_config: a PEFT `LoraConfig`, to train adapters instead of all weights.
        engine: `"embedded"`, the model itself samples in this process; `"vllm"`, a server does; or an `EngineConfig`.
        curriculum: changes the levels of tasks of `env` during training.

    Raises:
        InputError: a combination that cannot work; prompts longer than `args.max_prompt_length`; no chat template.
        ServerError: no usable server within `engine.connect_timeout` seconds.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        env: Any,
        args: GRPOConfig,
        processing_class: PreTrainedTokenizerBase,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
        *,
        engine: str | EngineConfig = "embedded",
        curriculum: Curriculum | None = None,
    ) -> None:
        self.env: Environment = as_environment(env)
        self.args = args = on_this_machine(args).for_rows(len(self.env.train_rows))
        self.processing_class, self.curriculum = processing_class, curriculum
        self.engine_config = engine if isinstance(engine, EngineConfig) else EngineConfig.of(engine)
        self.sampling = Sampling(**{each.name: getattr(args, each.name) for each in dataclasses.fields(Sampling)})
        self.accelerator = make_accelerator(args)
        main = self.accelerator.is_main_process
        check_options(args, self.engine_config, self.env, curriculum)
        check_liger(args, self.accelerator.device)
        encoder = PromptEncoder(processing_class)
        check_prompts(self.env, encoder, args.max_prompt_length)
        self.rows_hash = rows_hash(self.env)
        same_everywhere(
            self.accelerator,
            str(self.rows_hash),
            "the processes do not train on the same rows: each must build them from the same data and seed",
        )
        if curriculum is not None:
            limit = args.max_prompt_length
            curriculum.prepare = lambda rows: fitting_rows(curriculum.env.to_examples(rows), encoder, limit)
        self.output_dir = Path(args.output_dir or "outputs")
        self.state, self.control = self._new_state(), TrainerControl()
        self._order = BatchOrder(
            len(self.env.train_rows),
            prompts=args.prompts_per_step,
            seed=args.seed if args.shuffle_dataset else None,
        )
        with removed_on_error(self.output_dir):
            if main:
                self.output_dir.mkdir(parents=True, exist_ok=True)
            self.strategy = make_strategy(self.accelerator, args)
            check_engine(self.engine_config, self.strategy.sharding)
            set_seed(args.seed)  # for new adapters, and the order of rollouts in a step
            policy = prepare_policy(model, args, peft_config, training=True)
            reference = reference_of(policy, args)
            optimizer = optimizers[0] or make_optimizer(args, policy)
            self.scheduler = optimizers[1]
            self._peak_rates = [float(group["lr"]) for group in optimizer.param_groups]
            self.model, self.optimizer = self.strategy.prepare(policy, optimizer)
            if reference is not None:
                reference = self.strategy.prepare_reference(reference)
            self.engine: Engine = self._make_engine(encoder)
        self.sampler = RolloutSampler(self.env, self.engine, encoder)
        self.previous_policy = PreviousPolicy(policy) if args.kl_reference == "previous" else None
        self.phases, self.meter, self.metrics = Phases(), StepMeter(), StepMetrics()
        self.guard = StepGuard(self.accelerator, args.learning_rate, bool(args.bf16))
        correction = self.engine_config.importance_sampling_correction
        self.objective = Objective(
            args,
            self.accelerator,
            self.model,
            reference=reference,
            previous=self.previous_policy,
            sampler_cap=self.engine_config.importance_sampling_cap if correction else None,
            phases=self.phases,
        )
        self.checkpoints = Checkpoints(self, self.output_dir)
        self.rollouts: Rollouts | None = None
        """The batch in training, on the main process."""
        self.updating = False
        """True while a step mutates state that must stay consistent: interrupts are deferred until it is False."""
        self.consistent = True
        """Whether weights, step and random numbers belong together: an interrupted update cannot be saved."""
        self.callbacks: list[TrainerCallback] = []
        """Called in this order."""
        for callback in callbacks or []:
            self.add_callback(callback)
        self._group_filter = self._make_filter()
        self._batch_tokens = 0
        self._micro_batches: list[dict[str, Any]] | None = None
        self._synced_at: int | None = None
        self._in_epoch = False
        if curriculum is not None:
            on_main(self.accelerator, curriculum.check)
        self.checkpoints.note()
        self.notify("on_init_end")

    # --- the algorithm ------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Train for `args.max_steps` optimizer steps, or until a callback ends the run.

        Args:
            resume_from_checkpoint: a folder that `check_fit` has accepted: continue as if the run had never stopped.

        Raises:
            TrainingError, RewardError, EngineError: what ended the run; on several processes `StoppedTogether`.
        """
        args, state = self.args, self._begin(resume_from_checkpoint)
        with self._quiet_garbage_collector():
            self.notify("on_train_begin")
            while state.global_step < args.max_steps and not self.control.should_training_stop:
                self.guard.end_if_hopeless(self.model, state.global_step)
                self._begin_step()
                with self.phases("backward"):  # and everything else that is not a phase
                    parts = self._next_micro_batches()
                    self._look_back(parts)
                    result = self.strategy.step(self._loss, parts, self._learning_rates(), self._updating)
                self._end_step(result)
            self.guard.end_if_hopeless(self.model, state.global_step)
            self.notify("on_train_end")

    def _next_micro_batches(self) -> list[dict[str, Any]]:
        """The micro-batches of this process for the next update; every `num_iterations` updates a new batch."""
        step, iterations = self.state.global_step, self.args.num_iterations
        if step % iterations == 0 or self._micro_batches is None:
            self.sync_weights()
            with self.phases("waiting"):
                batch = on_main(self.accelerator, lambda: self._next_batch(step // iterations))
            self._micro_batches = self._split(batch)
        return self._micro_batches

    def _next_batch(self, number: int) -> TokenBatch:
        """Batch `number` of rollouts, sampled now or before ("ahead"). On the main process only."""
        if self.curriculum is not None:
            self.curriculum.update_levels(self.state.global_step)
        self._batch_tokens = 0
        ahead = self.engine_config.num_batches_ahead
        if ahead:
            last = (self.args.max_steps - 1) // self.args.num_iterations
            for each in range(number, min(number + ahead, last) + 1):
                if not self.sampler.submitted(each):
                    self.sampler.submit(each, self._rows(each), self.sampling)
            rollouts = self._counted(self.sampler.get(number))
        else:
            rollouts = self._counted(self.sampler.sample(self._rows(number), self.sampling))
        if self.curriculum is not None:
            correct = torch.tensor(rollouts.accuracies, dtype=torch.float64)
            self.curriculum.measure(number, correct.view(-1, self.args.num_generations).mean(dim=1).tolist())
            self.metrics.update(self.curriculum.metrics())
        self.metrics.update(batch_metrics(rollouts, self.args.num_generations))  # filtered out or not
        self.metrics.update(self.engine.metrics())
        empty: list[int] = []
        if self._group_filter is not None:
            filtered = self._group_filter(rollouts, lambda round_, prompts: self._more(number, round_, prompts))
            self.metrics.update(filtered.metrics())
            rollouts, empty = filtered.batch, filtered.empty
        if self.args.mask_truncated_completions:
            empty = empty + rollouts.truncated
        self.meter.batch(self._batch_tokens)
        self.rollouts = rollouts
        return rollouts.tokens().without_loss(empty)

    def _rows(self, number: int) -> list[Any]:
        """The rows of batch `number`, each once for each of its rollouts."""
        rows = [dict(self.env.train_rows[index]) for index in self._order.batch(number)]
        if self.curriculum is not None:
            rows = self.curriculum.replace(number, rows)
        return repeated(rows, self.args.num_generations)

    def _more(self, number: int, round_: int, prompts: int) -> Rollouts:
        """Rollouts of prompts other than those of batch `number`."""
        rows = [self.env.train_rows[index] for index in self._order.more(number, round_, prompts)]
        return self._counted(self.sampler.sample(repeated(rows, self.args.num_generations), self.sampling))

    def _counted(self, rollouts: Rollouts) -> Rollouts:
        """The same rollouts, once their tokens are counted."""
        tokens = sum(map(len, rollouts.prompt_ids)) + sum(len(rollout.token_ids) for rollout in rollouts.rollouts)
        self._batch_tokens += tokens
        self.state.num_input_tokens_seen += tokens
        return rollouts

    def _split(self, batch: TokenBatch) -> list[dict[str, Any]]:
        """This process's part of a batch, shuffled and split for gradient accumulation."""
        processes, device = self.accelerator.num_processes, self.accelerator.device
        share = len(batch.rewards) // processes
        part = slice(self.accelerator.process_index * share, (self.accelerator.process_index + 1) * share)
        parts = self.args.accumulation(processes)
        rewards = torch.tensor(batch.rewards, device=device)
        advantages = group_advantages(rewards, self.args.num_generations, self.args.scale_rewards)
        tensors: dict[str, Any] = batch.tensors(part, pad_token=self._pad_token(), device=device)
        tensors["advantages"] = advantages[part]
        tensors["batch_tokens"] = torch.full((share,), batch.tokens() / (parts * processes), device=device)
        tensors["old_logps"] = self.objective.old_logps(tensors)
        return micro_batches(tensors, parts)

    def _look_back(self, parts: list[dict[str, Any]]) -> None:
        """Compute what the KL term needs of the previous policy, with its weights in the model."""
        self.updating = self.previous_policy is not None
        self.consistent = not self.updating
        self.objective.look_back(parts)
        self.updating, self.consistent = False, True

    def _loss(self, part: dict[str, Any]) -> torch.Tensor:
        if self._micro_batches and part is not self._micro_batches[0]:
            self.notify("on_substep_end")  # for the one before
        return self.objective(part, self.metrics)

    def _learning_rates(self) -> list[float]:
        """Learning rates of the optimizer's groups in the next update; a step that was skipped does not count."""
        if self.scheduler is not None:
            return [float(rate) for rate in self.scheduler.get_last_lr()]
        rate = learning_rate(self.args, self.state.global_step - self.guard.skipped)
        return [peak * (rate / self.args.learning_rate) for peak in self._peak_rates]

    def _begin_step(self) -> None:
        if not self._in_epoch:
            self._in_epoch = True
            self.notify("on_epoch_begin")
        self.notify("on_step_begin")
        self.meter.begin_step()

    def _end_step(self, result: Any) -> None:
        """Count the step, log it, and save it if that is due."""
        state, rate = self.state, self._learning_rates()[0]
        if self.scheduler is not None and result.skipped is None:
            self.scheduler.step()
        state.global_step += 1
        state.epoch = state.global_step / self.args.num_iterations / self._order.batches
        self.guard.count(result, state.global_step)
        if self.previous_policy is not None and result.skipped is None:
            self.previous_policy.advance()
        costs = self.meter.end_step()
        self.checkpoints.note()
        self.consistent = True
        self.notify("on_step_end")
        self.log({"loss": result.loss, "grad_norm": result.grad_norm, "learning_rate": rate, **costs})
        self.updating = False
        self._check_parity()
        every = self.args.save_steps
        if self.control.should_save or (every and state.global_step % every == 0):
            self.control.should_save = False
            self.save_checkpoint()
            self.notify("on_save")
        ends = state.global_step == self.args.max_steps or self.control.should_training_stop
        if ends or state.global_step % (self._order.batches * self.args.num_iterations) == 0:
            self._in_epoch = False
            self.notify("on_epoch_end")

    def _check_parity(self) -> None:
        """End the run if rollouts of the current weights were not sampled at the log-probabilities they have here."""
        if not self.engine_config.num_batches_ahead and self.sampling.is_plain:
            difference = self.state.log_history[-1].get("sampling/logp_difference", 0.0)
            on_main(self.accelerator, lambda: self.engine.check_parity(difference))

    # --- what the loop needs ------------------------------------------------------------------------------------------

    def sync_weights(self) -> None:
        """Bring the engine's weights up to those of the model, once a step. A collective operation."""
        if self._synced_at == self.state.global_step:
            return
        on_main(self.accelerator, self.sampler.wait_idle)  # no group mixes two policies
        with self.phases("sync"):
            self.engine.sync()
        self._synced_at = self.state.global_step

    def log(self, logs: dict[str, float]) -> None:
        """Log a step's metrics, with what has been measured since the last one."""
        counts = {
            "skipped_steps": float(self.guard.skipped),
            "num_tokens": float(self.state.num_input_tokens_seen),
            "rollouts": float(self.rollouts_so_far),
            "epoch": self.state.epoch or 0.0,
        }
        self.report({**logs, **self.metrics.take(), **self.phases.take(), **counts})

    def report(self, logs: dict[str, float]) -> None:
        """Hand metrics to the callbacks and to the trainer's state."""
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.notify("on_log", logs=logs)

    def notify(self, event: str, **details: Any) -> None:
        """Let the callbacks see an event of transformers' `TrainerCallback`."""
        shared = {
            "model": self.model,
            "processing_class": self.processing_class,
            "optimizer": self.optimizer,
            "lr_scheduler": self.scheduler,
        }
        for callback in list(self.callbacks):
            act = getattr(callback, event)
            self.control = act(self.args, self.state, self.control, **shared, **details) or self.control

    @property
    def rollouts_so_far(self) -> int:
        """Rollouts that the updates so far were made from, of all processes."""
        return self.state.global_step * self.args.rollouts_per_step // self.args.num_iterations

    def save_checkpoint(self) -> Path:
        """Save the present step; see `Checkpoints.save`."""
        return self.checkpoints.save()

    def batch_in_use(self) -> list[dict[str, Any]] | None:
        """The micro-batches for the next updates; None if they need a new batch."""
        return self._micro_batches if self.state.global_step % self.args.num_iterations else None

    def use_batch(self, parts: list[dict[str, Any]]) -> None:
        """Make the next updates from the micro-batches of a checkpoint."""
        self._micro_batches = parts

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Call a callback after the others."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def remove_callback(self, callback: TrainerCallback) -> None:
        """Stop calling it, if it is called."""
        self.callbacks = [each for each in self.callbacks if each is not callback]

    @property
    def model_name(self) -> str:
        """The model's name or folder."""
        return str(self.accelerator.unwrap_model(self.model).config._name_or_path)

    def _begin(self, checkpoint: str | Path | None) -> TrainerState:
        self.accelerator.step = 0  # micro-batches of a step that was interrupted ...
        self.model.zero_grad()  # ... and their gradients: accelerate's optimizer keeps them between two updates
        self.sampler.stop()
        self.engine.resume()
        self.metrics.take()
        self.phases.take()
        self._micro_batches, self._synced_at, self._in_epoch = None, None, False
        self.updating, self.consistent = False, True
        self._group_filter = self._make_filter()
        self.control = TrainerControl()
        self.guard.set_counts([0, 0])
        self.checkpoints.saved_at = None
        if self.curriculum is not None:
            self.curriculum.start()
        self.state = self._new_state()
        if checkpoint is not None:
            self.checkpoints.load(Path(checkpoint))
        self.state.max_steps = self.args.max_steps
        self.model.train()
        self.checkpoints.note()
        return self.state

    def _make_filter(self) -> GroupFilter | None:
        args = self.args
        return GroupFilter(args.num_generations, args.filter_groups_rounds) if args.filter_groups else None

    def _new_state(self) -> TrainerState:
        main, local = self.accelerator.is_main_process, self.accelerator.is_local_main_process
        return TrainerState(is_world_process_zero=main, is_local_process_zero=local)

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Around the optimizer's update."""
        self.updating, self.consistent = True, False
        if self.previous_policy is not None:
            self.previous_policy.keep()
        self.notify("on_pre_optimizer_step")
        yield
        self.notify("on_optimizer_step")

    @contextmanager
    def _quiet_garbage_collector(self) -> Iterator[None]:
        # The libraries' million objects stay: without this, each full garbage collection walks them all, about 0.2 s
        # every other step.
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            self.engine.cancel()
            self.sampler.stop()
            self.engine.resume()

    def _pad_token(self) -> int:
        pad = self.processing_class.pad_token_id
        return int(self.processing_class.eos_token_id if pad is None else pad)

    def _make_engine(self, encoder: PromptEncoder) -> Engine:
        config, args = self.engine_config, self.args
        unwrapped = self.accelerator.unwrap_model(self.model)
        if config.kind == "embedded":
            return Embedded(unwrapped, self.processing_class, args.seed, config.max_batch_size)
        from rg_env.training.vllm_engine import Vllm

        first = (self.env.train_rows or self.env.eval_rows)[0]["prompt"]
        longest = args.max_prompt_length if self.curriculum else longest_prompt(self.env, encoder)
        return Vllm(
            self.accelerator,
            unwrapped,
            self.processing_class,
            config,
            messages=first,
            proof=encoder(first),
            longest=longest + args.max_tokens,
            strategy=self.strategy,
        )


def on_this_machine(args: GRPOConfig) -> GRPOConfig:
    """The same arguments, with those set that depend on the machine: the CPU without a GPU, bf16 with one."""
    cpu = not torch.cuda.is_available() if args.use_cpu is None else args.use_cpu
    return args.model_copy(update={"use_cpu": cpu, "bf16": not cpu if args.bf16 is None else args.bf16})


def make_accelerator(args: GRPOConfig) -> Accelerator:
    """accelerate's view of this process, on the device and in the precision that `args` name.

    Raises:
        InputError: the batch cannot be divided among the processes, or the process has another precision already.
    """
    state = processes(cpu=args.use_cpu)
    precision = "bf16" if args.bf16 else None  # None: that of the launcher's configuration
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    try:
        return Accelerator(
            cpu=bool(args.use_cpu) and not deepspeed,  # with cpu=True accelerate ignores DeepSpeed
            mixed_precision=precision,
            # As a plugin: a plain number gives way to a variable that `accelerate launch` sets.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=args.accumulation(state.num_processes)),
        )
    except ValueError as error:
        if "already been initialized" not in str(error):
            raise
        raise InputError(
            f"bf16={args.bf16}: this process has a trainer of another precision already, and accelerate takes one a "
            "process: start a new one"
        ) from error
