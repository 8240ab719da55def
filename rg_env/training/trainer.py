"""`GRPOTrainer` trains a language model on an environment with group-relative policy optimization.

    env = ReasoningGym("leg_counting")
    trainer = GRPOTrainer(model, env, GRPOConfig(output_dir="outputs/run"), tokenizer, engine="embedded")
    trainer.train()

The constructor has the parameters of `vf.GRPOTrainer` (Verifiers 0.1.6), plus `engine` and `curriculum`. The entire
algorithm can be read from top to bottom, starting with `train`. In addition to checkpoints (`checkpointing`) and
transformers callbacks, a trainer has four parts:

- an engine that samples (`inference.protocol`)
- a sampler that turns rows into scored rollouts (`rollouts`)
- an objective that computes the loss (`objective`)
- a strategy that distributes the model over processes and takes the optimizer steps (`strategy`)

`run.train` adds evaluations, files, trackers and Ctrl-C handling.

Callbacks receive every event except `on_predict`, `on_prediction_step` and `on_push_begin`. `on_evaluate` receives an
evaluation's metrics. Of the flags in `control`, only `should_training_stop` and `should_save` have an effect. Each of
these flags must have the same value on all processes.
"""

import gc
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState

from rg_env.adapters import as_environment
from rg_env.core.environment import Environment
from rg_env.core.run_folder import free_folder
from rg_env.errors import InputError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.machine import return_freed_memory
from rg_env.inference.models import processes
from rg_env.inference.protocol import Engine, PromptEncoder, prompt_lengths
from rg_env.training.algorithms.logprobs import can_share_prompts
from rg_env.training.algorithms.loss import group_advantages
from rg_env.training.algorithms.objective import Objective
from rg_env.training.algorithms.optimizers import learning_rate, make_optimizer
from rg_env.training.algorithms.policy import ReferencePolicy, check_liger, prepare_policy, unwrapped
from rg_env.training.checkpointing.checkpoints import Checkpoints, check_savable, rows_hash
from rg_env.training.collectives import on_main, same_everywhere
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.load import contradictions
from rg_env.training.config.schema import EngineConfig
from rg_env.training.curriculum import Curriculum
from rg_env.training.memory_estimate import activations_fit
from rg_env.training.monitors import StepGuard
from rg_env.training.preflight import check_prompts
from rg_env.training.reporting.metrics import StepMetrics, step_costs
from rg_env.training.rollouts import BatchOrder, GroupFilter, Rollouts, RolloutSampler, repeated
from rg_env.training.strategy import StepResult, check_engine, make_strategy
from rg_env.training.vllm_engine import Vllm


class GRPOTrainer:
    """Trainer for group-relative policy optimization (Shao et al., 2024, arXiv:2402.03300).

    Args:
        model: a causal language model from transformers, trained in place.
        env: a `ReasoningGym` or other rg_env `Environment`, a `ReasoningGymEnv`, or a single-turn Verifiers
            environment.
        args: training settings.
        processing_class: the model's tokenizer.
        callbacks: transformers callbacks (`TrainerCallback`).
        optimizers: your own optimizer and learning rate scheduler. None selects the optimizer and the schedule that
            `args` describes. Without a scheduler, your optimizer's learning rates become the peaks of the schedule in
            `args`.
        peft_config: a PEFT `LoraConfig`, to train adapters instead of all weights.
        engine: `"embedded"` to sample from the model in this process, `"vllm"` to sample from a server, or an
            `EngineConfig`.
        curriculum: curriculum that changes task levels in `env` during training.

    Raises:
        InputError: settings contradict each other, a prompt is longer than `args.max_prompt_length`, the tokenizer has
            no chat template, or `args.output_dir` is not writable.
        ServerError: the vLLM server does not respond within `engine.connect_timeout` seconds, or is unusable.
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
        engine: Literal["embedded", "vllm"] | EngineConfig = "embedded",
        curriculum: Curriculum | None = None,
    ) -> None:
        self.env: Environment = as_environment(env)
        self.args = args = on_this_machine(args).for_rows(len(self.env.train_rows))
        self.processing_class, self.curriculum = processing_class, curriculum
        self.engine_config = engine if isinstance(engine, EngineConfig) else EngineConfig(kind=engine)
        self.sampling = args.sampling
        self.output_dir = Path(args.output_dir or "outputs")
        if args.output_dir is not None:
            free_folder(args.output_dir, "", may_have_files=True)  # fail now rather than when training begins
        self.accelerator = make_accelerator(args)
        check_options(args, self.engine_config, self.env, curriculum)
        check_liger(args, self.accelerator.device)
        encoder = PromptEncoder(processing_class, self.env.prompt_options.chat_template_kwargs)
        longest_prompt = self._check_rows(encoder)
        self._prepare_policy(model, peft_config, optimizers, longest_prompt)
        self.engine = self._make_engine(encoder, longest_prompt)
        self.sampler = RolloutSampler(self.env, self.engine, encoder)
        self.guard = StepGuard(self.accelerator, args.learning_rate, bool(args.bf16))
        self.checkpoints = Checkpoints(self, self.output_dir)
        self.rollouts: Rollouts | None = None
        """Batch being trained on. Only the main process has this batch."""
        self.callbacks: list[TrainerCallback] = []
        """Callbacks, in calling order."""
        for callback in callbacks or []:
            self.add_callback(callback)
        self._reset()
        if curriculum is not None:
            on_main(self.accelerator, curriculum.check)
        self.checkpoints.take_snapshot()
        self.notify("on_init_end")

    def _check_rows(self, encoder: PromptEncoder) -> int:
        """Check that all processes have the same rows and that no prompt is too long, and set the order of the rows.
        Return the number of tokens in the longest prompt."""
        args, curriculum = self.args, self.curriculum
        limit, lengths = args.max_prompt_length, prompt_lengths(self.env, encoder)
        check_prompts(self.env, lengths, limit)
        self.rows_hash = rows_hash(self.env)
        same_everywhere(
            self.accelerator,
            str(self.rows_hash),
            "the processes do not train on the same rows (each must build its rows from the same data and seed)",
        )
        self._order = BatchOrder(
            len(self.env.train_rows), prompts=args.prompts_per_step, seed=args.seed if args.shuffle_dataset else None
        )
        if curriculum is None:
            return max(map(max, lengths.values()))
        curriculum.prepare = lambda rows: [
            row for row in curriculum.env.to_examples(rows) if len(encoder(row["prompt"])) <= limit
        ]
        return limit

    def _prepare_policy(
        self, model: PreTrainedModel, peft_config: Any, optimizers: tuple[Any, Any], longest_prompt: int
    ) -> None:
        """Prepare the policy, the reference policy and the optimizer, distribute them, and set the objective."""
        args, accelerator, engine = self.args, self.accelerator, self.engine_config
        self.strategy = make_strategy(accelerator, args)
        if args.gradient_checkpointing is None:
            self.args = args = args.model_copy(
                update={"gradient_checkpointing": not self._activations_fit(model, longest_prompt)}
            )
        check_engine(engine, self.strategy.sharding)
        set_seed(args.seed)  # seeds newly initialized adapters
        policy = prepare_policy(model, args, peft_config)
        check_savable(policy, self.processing_class)
        optimizer = optimizers[0] or make_optimizer(args, policy)
        self.scheduler = optimizers[1]
        self._peak_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.model, self.optimizer = self.strategy.prepare(policy, optimizer)
        self.reference = ReferencePolicy(policy, previous=args.kl_reference == "previous") if args.beta else None
        self.metrics = StepMetrics()
        self.objective = Objective(
            args,
            accelerator,
            self.model,
            self.metrics,
            reference=self.reference,
            sampler_cap=engine.importance_sampling_cap if engine.importance_sampling_correction else None,
        )

    def _activations_fit(self, model: PreTrainedModel, longest_prompt: int) -> bool:
        """Whether the activations of a micro-batch fit in this process's share of a CPU's free memory. On a GPU and
        with sharded weights, the result is False."""
        args, processes = self.args, self.accelerator.num_processes
        if not args.use_cpu or self.strategy.sharding != "none":
            return False
        rows = args.micro_batch(processes)
        prompts = math.ceil(rows / args.num_generations) if processes == 1 and can_share_prompts(model) else rows
        tokens = prompts * longest_prompt + rows * args.max_tokens
        return activations_fit(model.config, tokens, psutil.virtual_memory().available // processes)

    def _reset(self) -> None:
        """Reset the trainer's state for the start of a run."""
        args, main, local = self.args, self.accelerator.is_main_process, self.accelerator.is_local_main_process
        self.state = TrainerState(is_world_process_zero=main, is_local_process_zero=local)
        self.control = TrainerControl()
        self.updating = False
        """True while a step mutates state that must stay consistent. Interrupts are deferred until this attribute is
        False."""
        self.consistent = True
        """Whether weights, step and random state match. After an interrupted update, this attribute is False, and the
        state cannot be saved."""
        filters = args.filter_groups
        self._group_filter = GroupFilter(args.num_generations, args.filter_groups_rounds) if filters else None
        self.micro_batches: list[dict[str, Any]] | None = None
        """This process's micro-batches for the next update, or None if a new batch is needed."""
        self._synced_at: int | None = None
        self._in_epoch = False
        self._batch_tokens = 0

    # --- the algorithm ------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Train up to step `args.max_steps`, or until a callback ends the run.

        Args:
            resume_from_checkpoint: checkpoint folder that `check_fit` has accepted. The run continues as if it had
                never stopped.

        Raises:
            TrainingError, RewardError, EngineError: the run failed. With several processes, `StoppedTogether` is raised
                instead.
        """
        args, state = self.args, self._begin(resume_from_checkpoint)
        with self._quiet_garbage_collector():
            self.notify("on_train_begin")
            while state.global_step < args.max_steps and not self.control.should_training_stop:
                self.guard.end_if_hopeless(self.model, state.global_step)
                if not self._in_epoch:
                    self._in_epoch = True
                    self.notify("on_epoch_begin")
                self.notify("on_step_begin")
                began = time.perf_counter()
                # This phase includes everything that does not have a phase of its own.
                with self.metrics.phase("backward"):
                    parts = self._next_micro_batches()
                    self._add_reference_logps(parts)
                    result = self.strategy.step(self._loss, parts, self._learning_rates(), self._updating)
                self._end_step(result, began)
            self.guard.end_if_hopeless(self.model, state.global_step)
            self.notify("on_train_end")

    def _next_micro_batches(self) -> list[dict[str, Any]]:
        """Return this process's micro-batches for the next update, from a new batch every `num_iterations` updates."""
        if self.micro_batches is None:
            number = self.state.global_step // self.args.num_iterations
            if self.accelerator.device.type == "cpu":
                return_freed_memory()
            self.sync_weights()
            with self.metrics.phase("waiting"):
                batch = on_main(self.accelerator, lambda: self._next_batch(number))
            self.micro_batches = self._split(batch)
        return self.micro_batches

    def _next_batch(self, number: int) -> dict[str, torch.Tensor]:
        """Return the tensors of batch `number`, which is sampled now or was sampled in advance (`num_batches_ahead`).
        Call this method only on the main process."""
        if self.curriculum is not None:
            self.curriculum.update_levels(self.state.global_step)
        self._batch_tokens = 0
        if ahead := self.engine_config.num_batches_ahead:
            last = (self.args.max_steps - 1) // self.args.num_iterations
            for batch in range(number, min(number + ahead, last) + 1):
                if not self.sampler.submitted(batch):
                    self.sampler.submit(batch, self._rows(batch), self.sampling)
            rollouts = self._count_tokens(self.sampler.get(number))
        else:
            rollouts = self._count_tokens(self.sampler.sample(self._rows(number), self.sampling))
        if self.curriculum is not None:
            correct = torch.tensor(rollouts.accuracies, dtype=torch.float64)
            self.curriculum.measure(number, correct.view(-1, self.args.num_generations).mean(dim=1).tolist())
            self.metrics.update(self.curriculum.metrics())
        self.metrics.update(rollouts.metrics(self.args.num_generations))  # measured before groups are filtered
        self.metrics.update(self.engine.metrics())
        left_out: list[int] = []
        if self._group_filter is not None:
            rollouts, left_out, counts = self._group_filter(rollouts, partial(self._sample_replacements, number))
            self.metrics.update(counts)
        if self.args.mask_truncated_completions:
            left_out += [row for row, rollout in enumerate(rollouts.rollouts) if rollout.truncated]
        self.rollouts = rollouts
        return rollouts.tensors(self._pad_token(), set(left_out))

    def _rows(self, number: int) -> list[Any]:
        """Return the rows of batch `number`, each repeated `num_generations` times."""
        rows = [dict(self.env.train_rows[index]) for index in self._order.batch(number)]
        if self.curriculum is not None:
            rows = self.curriculum.replace(number, rows)
        return repeated(rows, self.args.num_generations)

    def _sample_replacements(self, number: int, round_: int, prompts: int) -> Rollouts:
        """Sample rollouts for prompts outside batch `number`."""
        rows = [self.env.train_rows[index] for index in self._order.more(number, round_, prompts)]
        return self._count_tokens(self.sampler.sample(repeated(rows, self.args.num_generations), self.sampling))

    def _count_tokens(self, rollouts: Rollouts) -> Rollouts:
        """Add the tokens in `rollouts` to the token counts, and return `rollouts`."""
        tokens = sum(map(len, rollouts.prompt_ids)) + sum(len(rollout.token_ids) for rollout in rollouts.rollouts)
        self._batch_tokens += tokens
        self.state.num_input_tokens_seen += tokens
        return rollouts

    def _split(self, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        """Return this process's part of a batch, split for gradient accumulation. Rollouts keep their order, so that a
        group's rollouts share as few micro-batches, and thus forward passes over their prompt, as possible."""
        processes, device = self.accelerator.num_processes, self.accelerator.device
        share = len(batch["rewards"]) // processes
        part = slice(self.accelerator.process_index * share, (self.accelerator.process_index + 1) * share)
        parts = self.args.accumulation(processes)
        advantages = group_advantages(batch["rewards"], self.args.num_generations, self.args.scale_rewards)
        whole = {**batch, "advantages": advantages}
        tensors: dict[str, Any] = {name: whole[name][part].to(device) for name in whole if name != "rewards"}
        tokens = int(batch["loss_mask"].sum())
        tensors["batch_tokens"] = torch.full((share,), tokens / (parts * processes), device=device)
        tensors["old_logps"] = self.objective.old_logps(tensors)
        split = {name: [None] * parts if value is None else value.chunk(parts) for name, value in tensors.items()}
        return [{name: values[number] for name, values in split.items()} for number in range(parts)]

    def _add_reference_logps(self, parts: list[dict[str, Any]]) -> None:
        """Compute the reference policy's log-probabilities for the KL term, with its weights swapped into the model."""
        self.updating = self.reference is not None
        self.consistent = not self.updating
        self.objective.add_reference_logps(parts)
        self.updating, self.consistent = False, True

    def _loss(self, part: dict[str, Any]) -> torch.Tensor:
        if self.micro_batches and part is not self.micro_batches[0]:
            self.notify("on_substep_end")  # this event belongs to the previous micro-batch
        return self.objective(part)

    def _learning_rates(self) -> list[float]:
        """Return the learning rates of the optimizer's parameter groups for the next update. Skipped steps do not
        advance the schedule."""
        if self.scheduler is not None:
            return [float(rate) for rate in self.scheduler.get_last_lr()]
        rate = learning_rate(self.args, self.state.global_step - self.guard.skipped)
        return [peak * (rate / self.args.learning_rate) for peak in self._peak_rates]

    def _end_step(self, result: StepResult, began: float) -> None:
        """Count and log the step, and save a checkpoint if one is due."""
        state, rate = self.state, self._learning_rates()[0]
        if self.scheduler is not None and result.skipped is None:
            self.scheduler.step()
        state.global_step += 1
        if state.global_step % self.args.num_iterations == 0:
            self.micro_batches = None
        state.epoch = state.global_step / self.args.num_iterations / self._order.batches
        self.guard.count(result, state.global_step)
        if self.reference is not None and result.skipped is None:
            self.reference.advance()
        costs = step_costs(time.perf_counter() - began, self._batch_tokens)
        self.checkpoints.take_snapshot()
        self.consistent = True
        self.notify("on_step_end")
        self.log({"loss": result.loss, "grad_norm": result.grad_norm, "learning_rate": rate, **costs})
        self.updating = False
        if result.skipped is None and not self.engine_config.num_batches_ahead and self.sampling.is_plain:
            # With the same weights, the engine's log-probabilities must be close to the trainer's.
            difference = state.log_history[-1].get("sampling/logp_difference", 0.0)
            on_main(self.accelerator, lambda: self.engine.check_parity(difference))
        every = self.args.save_steps
        if self.control.should_save or (every and state.global_step % every == 0):
            self.control.should_save = False
            self.save_checkpoint()
            self.notify("on_save")
        ends = state.global_step == self.args.max_steps or self.control.should_training_stop
        if ends or state.global_step % (self._order.batches * self.args.num_iterations) == 0:
            self._in_epoch = False
            self.notify("on_epoch_end")

    # --- supporting methods -------------------------------------------------------------------------------------------

    def sync_weights(self) -> None:
        """Update the engine with the model's current weights, at most once per step. This is a collective operation."""
        if self._synced_at == self.state.global_step:
            return
        on_main(self.accelerator, self.sampler.wait_idle)  # no group may mix two policies
        with self.metrics.phase("sync"):
            self.engine.sync()
        self._synced_at = self.state.global_step

    def log(self, logs: dict[str, float]) -> None:
        """Log a step's metrics, including all metrics collected since the last call."""
        counts = {"skipped_steps": float(self.guard.skipped), "num_tokens": float(self.state.num_input_tokens_seen)}
        counts |= {"rollouts": float(self.rollouts_so_far), "epoch": self.state.epoch or 0.0}
        self.report({**logs, **self.metrics.take(), **counts})

    def report(self, logs: dict[str, float]) -> None:
        """Add metrics to the trainer's state and pass them to the callbacks."""
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.notify("on_log", logs=logs)

    def notify(self, event: str, **details: Any) -> None:
        """Call the method named by `event` on every callback (see transformers' `TrainerCallback`)."""
        details |= {"model": self.model, "processing_class": self.processing_class}
        details |= {"optimizer": self.optimizer, "lr_scheduler": self.scheduler}
        for callback in list(self.callbacks):
            act = getattr(callback, event)
            self.control = act(self.args, self.state, self.control, **details) or self.control

    @property
    def rollouts_so_far(self) -> int:
        """Number of rollouts trained on so far, across all processes."""
        return self.state.global_step * self.args.rollouts_per_step // self.args.num_iterations

    def save_checkpoint(self) -> Path:
        """Save a checkpoint at the current step, as described in `Checkpoints.save`."""
        return self.checkpoints.save()

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Append a callback. A callback class is instantiated first."""
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def remove_callback(self, callback: TrainerCallback) -> None:
        """Remove a callback, if it is registered."""
        self.callbacks = [each for each in self.callbacks if each is not callback]

    @property
    def model_name(self) -> str:
        """Name or folder of the model."""
        return str(unwrapped(self.model).config._name_or_path)

    def _begin(self, checkpoint: str | Path | None) -> TrainerState:
        self.accelerator.step = 0  # an interrupted step may have left a count of micro-batches
        self.model.zero_grad()  # an interrupted step may have left gradients, which accelerate's optimizer keeps
        self.metrics.take()
        self.guard.set_counts([0, 0])
        self.checkpoints.saved_at = None
        if self.curriculum is not None:
            self.curriculum.start()
        self._reset()
        if self.state.is_world_process_zero:
            self.output_dir.mkdir(parents=True, exist_ok=True)  # fail now rather than at the first checkpoint
        if checkpoint is not None:
            self.checkpoints.load(Path(checkpoint))
        self.state.max_steps = self.args.max_steps
        self.model.train()
        self.checkpoints.take_snapshot()
        return self.state

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Mark the trainer's state as inconsistent before the optimizer's update, and notify the callbacks before and
        after the update."""
        self.updating, self.consistent = True, False
        if self.reference is not None:
            self.reference.keep()
        self.notify("on_pre_optimizer_step")
        yield
        self.notify("on_optimizer_step")

    @contextmanager
    def _quiet_garbage_collector(self) -> Iterator[None]:
        # Exempt the libraries' objects, about a million, from garbage collection. Otherwise, a full collection would
        # visit all of them every other step and take about 0.2 s.
        gc.collect()
        freezes = gc.get_freeze_count() == 0  # otherwise, the program has already exempted them
        if freezes:
            gc.freeze()
        try:
            yield
        finally:
            if freezes:
                gc.unfreeze()
            self.engine.cancel()
            self.sampler.stop()
            self.engine.resume()

    def _pad_token(self) -> int:
        tokenizer = self.processing_class  # any token can pad on the right
        return next((each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), 0)

    def _make_engine(self, encoder: PromptEncoder, longest_prompt: int) -> Engine:
        config, args = self.engine_config, self.args
        model = unwrapped(self.model)
        if config.kind == "embedded":
            batch = config.max_batch_size
            half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision)
            return EmbeddedEngine(
                model,
                self.processing_class,
                seed=args.seed,
                max_batch_size=batch,
                # ZeRO converts the weights instead.
                autocast=half if self.strategy.sharding == "none" else None,
            )
        first = (self.env.train_rows or self.env.eval_rows)[0]["prompt"]
        vllm = Vllm(
            self.accelerator,
            model,
            self.processing_class,
            config,
            messages=first if isinstance(first, str) else encoder.chat(first),
            proof=encoder(first),
            longest=longest_prompt + args.max_tokens,
            strategy=self.strategy,
        )
        # `generation_timeout` applies to each request, so an evaluation's request must not exceed a training batch.
        vllm.max_batch_size = args.rollouts_per_step
        return vllm


def check_options(args: GRPOConfig, engine: EngineConfig, env: Environment, curriculum: Any) -> None:
    """Raise `InputError` if options contradict each other, or if `env` lacks something that the options need."""
    if not env.train_rows:
        raise InputError("the environment has no training rows: set num_train_examples above 0")
    for problem in contradictions(args, engine, curriculum):
        raise InputError(f"{'.'.join(problem.path)}: {problem.message}")
    for option, needed in (("a curriculum", curriculum is not None), ("filter_groups", args.filter_groups)):
        if needed and not env.has_accuracy:
            raise InputError(f"{option} needs accuracy, which this environment does not measure: remove this option")


def on_this_machine(args: GRPOConfig) -> GRPOConfig:
    """Return a copy of `args` with machine-dependent defaults resolved. By default, `use_cpu` is True if there is no
    GPU, and `bf16` is True unless `use_cpu` is True."""
    cpu = not torch.cuda.is_available() if args.use_cpu is None else args.use_cpu
    return args.model_copy(update={"use_cpu": cpu, "bf16": not cpu if args.bf16 is None else args.bf16})


def make_accelerator(args: GRPOConfig) -> Accelerator:
    """Create this process's `Accelerator`, with the device and the precision that `args` select.

    Raises:
        InputError: the batch cannot be divided among the processes, or this process already uses another precision.
    """
    state = processes(cpu=args.use_cpu)
    precision = "bf16" if args.bf16 else None  # None keeps the launcher's setting
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    try:
        return Accelerator(
            cpu=bool(args.use_cpu) and not deepspeed,  # with cpu=True, accelerate ignores DeepSpeed
            mixed_precision=precision,
            # Pass a plugin because an environment variable that `accelerate launch` sets would override a plain number.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=args.accumulation(state.num_processes)),
        )
    except ValueError as error:
        if "already been initialized" not in str(error):
            raise
        raise InputError(
            f"bf16={args.bf16}: this process already has a trainer with another precision, and accelerate allows "
            "only one precision per process; start a new process"
        ) from error
