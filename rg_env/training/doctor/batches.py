"""What a run's settings come to: groups in a step, and real prompts against their limit. Imports torch."""

from collections.abc import Mapping
from typing import Any

from rg_env.adapters.v0 import load_environment
from rg_env.core.prompts import rejects_system_role
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.policy import Policy
from rg_env.training.checks import fold_system_prompts, prompt_lengths
from rg_env.training.default_arguments import default_fields
from rg_env.training.doctor.asked_run import AskedRun
from rg_env.training.doctor.check import Check
from rg_env.training.doctor.model import Model
from rg_env.training.doctor.tokens import PromptLengths, evaluated_tokens, sequence_tokens
from rg_env.training.groups import check_groups


def resolved(run: AskedRun, *, is_tiny: bool) -> dict[str, Any]:
    """The fields of `GRPOConfig` that the checks look at, as `default_config` would have them."""
    fields = default_fields(is_tiny)
    given = {name: value for name, value in run.settings.items() if value is not None}
    if {"max_prompt_length", "max_tokens"} & set(given) and "max_seq_len" not in given:
        given["max_seq_len"] = sum({**fields, **given}[name] for name in ("max_prompt_length", "max_tokens"))
    return fields | given


def check_batch(run: AskedRun, settings: Mapping[str, Any]) -> Check:
    """Whether a step's rollouts can be divided into groups."""
    per_device = settings["per_device_train_batch_size"]
    accumulation = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
    group = settings["num_generations"]
    try:
        check_groups(
            per_device=per_device,
            processes=run.processes,
            accumulation=accumulation,
            num_generations=group,
            batch=settings.get("generation_batch_size"),
        )
    except InputError as error:
        finding, _, fix = str(error).partition(" does not divide: ")
        if fix:
            return Check("batch", "failed", f"{finding} does not divide", f"take the {fix}")
        return Check("batch", "failed", finding, "choose numbers that divide each other, with groups of at least 2")
    rollouts = settings.get("generation_batch_size") or per_device * run.processes * accumulation
    return Check("batch", "ok", f"{rollouts} rollouts a step: {rollouts // group} prompts x {group}")


def check_prompts(run: AskedRun, settings: Mapping[str, Any], model: Model) -> tuple[Check, PromptLengths | None]:
    """The prompts that the run would train and evaluate on against their limits, and their lengths."""
    found: list[dict[str, list[int]]] = []
    own = {**run.environment, "gym": run.gym}
    for place, arguments in [("--task", own), *((_place(label), each) for label, each in run.evaluated)]:
        try:
            mixture = Policy(None, model.tokenizer, model.name, model.is_tiny).mixture(arguments["gym"])
            env = load_environment(**{**arguments, "gym": mixture})
        except RGEnvError as error:
            fix = f"change {place}; `rg-env tasks NAME` shows what it offers"
            return Check("prompts", "failed", str(error), fix), None
        if rejects_system_role(model.tokenizer):
            fold_system_prompts(env)
        found.append(prompt_lengths(env, model.tokenizer))
    besides = [length for of_splits in found[1:] for length in of_splits["evaluation"]]
    lengths = PromptLengths(**found[0], besides=besides)
    return judge_prompts(run, settings, model.context, lengths), lengths


def _place(label: str | None) -> str:
    return f"evaluation.tasks.{label}" if label else "evaluation.tasks"


def judge_prompts(run: AskedRun, settings: Mapping[str, Any], context: int, lengths: PromptLengths) -> Check:
    """`context`: tokens of prompt and completion together that the model takes."""
    limit = settings["max_prompt_length"] or settings["max_seq_len"]
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
