"""What a run's settings come to: groups in a step, and real prompts against their limit. Imports torch."""

from collections.abc import Mapping
from typing import Any

from rg_env.core.environment import ReasoningGym
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.models import Policy
from rg_env.inference.prompts import PromptEncoder
from rg_env.jobs.doctor.asked_run import AskedRun, Check
from rg_env.jobs.doctor.model import Model
from rg_env.jobs.doctor.tokens import PromptLengths, evaluated_tokens, sequence_tokens
from rg_env.training.checks import prompt_lengths
from rg_env.training.config.grpo import GRPOConfig, batch_problems, default_fields


def resolved(run: AskedRun, *, is_tiny: bool) -> dict[str, Any]:
    """All fields of `GRPOConfig`, as `default_config` would have them."""
    given = {name: value for name, value in run.settings.items() if value is not None}
    fields = {name: field.get_default() for name, field in GRPOConfig.model_fields.items()}
    return fields | default_fields(is_tiny) | given


def check_batch(run: AskedRun, settings: Mapping[str, Any]) -> Check:
    """Whether a step's rollouts can be divided into groups, processes and micro-batches."""
    options = {"rollouts_per_step": "--rollouts-per-step", "per_device_train_batch_size": "--per-device-batch-size"}
    try:
        args = GRPOConfig(**{name: settings[name] for name in (*options, "num_generations")})
    except InputError as error:
        return Check("batch", "failed", str(error), "a step is made of whole groups of at least 2 rollouts")
    for key, message in batch_problems(args, run.processes):
        finding, _, sizes = message.partition("; try ")
        return Check("batch", "failed", f"{key}: {finding}", f"{options[key]} {sizes}")
    parts = args.accumulation(run.processes)
    return Check(
        "batch",
        "ok",
        f"{args.rollouts_per_step} rollouts a step: {args.prompts_per_step} prompts x {args.num_generations}, in "
        f"{parts} micro-batch{'es' if parts > 1 else ''} on each of {run.processes} "
        f"process{'es' if run.processes > 1 else ''}",
    )


def check_prompts(run: AskedRun, settings: Mapping[str, Any], model: Model) -> tuple[Check, PromptLengths | None]:
    """The prompts that the run would train and evaluate on against their limits, and their lengths."""
    found: list[dict[str, list[int]]] = []
    own = {**run.environment, "gym": run.gym}
    for place, arguments in [("--task", own), *((_place(label), each) for label, each in run.evaluated)]:
        try:
            mixture = Policy(None, model.tokenizer, model.name, model.is_tiny).mixture(arguments["gym"])
            env = ReasoningGym(**{**arguments, "gym": mixture})
        except RGEnvError as error:
            fix = f"change {place}; `rg-env tasks NAME` shows what it offers"
            return Check("prompts", "failed", str(error), fix), None
        found.append(prompt_lengths(env, PromptEncoder(model.tokenizer)))
    besides = [length for of_splits in found[1:] for length in of_splits["evaluation"]]
    lengths = PromptLengths(**found[0], besides=besides)
    return judge_prompts(run, settings, model.context, lengths), lengths


def _place(label: str | None) -> str:
    return f"evaluation.tasks.{label}" if label else "evaluation.tasks"


def judge_prompts(run: AskedRun, settings: Mapping[str, Any], context: int, lengths: PromptLengths) -> Check:
    """`context`: tokens of prompt and completion together that the model takes."""
    limit = settings["max_prompt_length"]
    longest, new = max(lengths.own), settings["max_tokens"]
    if too_long := sum(length > limit for length in lengths.own):
        finding = f"{too_long} of {len(lengths.own)} are longer than {limit} tokens, the longest has {longest}"
        return Check("prompts", "failed", finding, f"--max-prompt-length {longest}, or a task config with shorter ones")
    if longest + new > context:
        finding = f"the longest has {longest} tokens, with {new} new ones more than the {context} that the model takes"
        shorter = f"--max-tokens {context - longest}" if longest < context else "another task"
        return Check("prompts", "failed", finding, f"{shorter}, or a model with a longer context")
    text = f"all {len(lengths.own)} within {limit} tokens, the longest has {longest}"
    if not lengths.evaluated:
        return Check("prompts", "ok", text)
    longest, new = max(lengths.evaluated), evaluated_tokens(run, settings)
    finding = f"the longest that evaluations ask has {longest} tokens, with {new} new ones more than the"
    if longest + new > context:
        shorter = f"evaluation.max_tokens={context - longest}" if longest < context else "other evaluation.tasks"
        fix = f"{shorter}, or a model with a longer context"
        return Check("prompts", "failed", f"{finding} {context} that the model takes", fix)
    if run.engine == "vllm" and longest + new > (launched := sequence_tokens(run, settings)):
        finding = f"{finding} {launched} that `rg-env launch` starts a server for"
        fix = f"its option --max-model-len {longest + new}, or --max-prompt-length {longest}"
        return Check("prompts", "warning", finding, fix)
    if lengths.besides:
        text = f"{text}; {len(lengths.besides)} more in evaluations, the longest has {max(lengths.besides)}"
    return Check("prompts", "ok", text)
