"""What the trainer checks and prepares before it starts: engine and settings, prompt lengths, system prompts."""

import importlib
from typing import Any, Literal, get_args

from transformers import PreTrainedTokenizerBase
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import is_liger_kernel_available
from verifiers import Environment

from rg_env.core.prompts import fold_system, rejects_system_role
from rg_env.errors import InputError, MissingExtraError
from rg_env.training.arguments import GRPOConfig

EngineName = Literal["embedded", "vllm"]
LIGER = "liger_kernel.transformers.monkey_patch"
"""What transformers will import of it."""


def check_engine(engine: str, args: GRPOConfig, env: Environment) -> None:
    """Raise `InputError` where `engine` cannot work with `args` and `env`."""
    if engine not in get_args(EngineName):
        raise InputError(f"unknown engine {engine!r}: there are {', '.join(get_args(EngineName))}")
    check_message_type(engine, env)
    if engine == "embedded" and is_deepspeed_zero3_enabled():
        raise InputError(
            "the embedded engine cannot generate from ZeRO-3's shards: start a vf-vllm server and use engine='vllm', "
            "or train without ZeRO-3"
        )
    if engine == "embedded" and args.num_batches_ahead > 0:
        raise InputError(
            f"num_batches_ahead={args.num_batches_ahead} generates while the model trains, and the embedded engine is "
            "that model: set num_batches_ahead=0, or use engine='vllm'"
        )


def check_options(args: GRPOConfig, env: Environment, curriculum: Any) -> None:
    """Raise `InputError` where options exclude each other, or `env` lacks what they look at."""
    if not args.filter_groups:
        return
    if curriculum is not None:
        raise InputError(
            "filter_groups asks other prompts than the curriculum's, which keeps tasks at the right level by itself: "
            "leave out one of them"
        )
    if "accuracy" not in env.rubric.get_reward_func_names():
        raise InputError("filter_groups looks at accuracy, which this environment does not measure: set it to False")


def check_liger(args: GRPOConfig) -> None:
    """Raise where `use_liger_kernel` cannot work: its kernels fail in the first step, or its import does.

    Raises:
        InputError: no GPU, or a liger-kernel that does not go with this transformers.
        MissingExtraError: not installed.
    """
    if not args.use_liger_kernel:
        return
    if not is_liger_kernel_available():
        raise MissingExtraError(
            "use_liger_kernel=True needs liger-kernel: pip install 'rg-env[train]', or leave it out"
        )
    if args.device.type != "cuda":
        raise InputError(f"use_liger_kernel=True: its kernels need a GPU, and this run is on {args.device.type}")
    try:
        importlib.import_module(LIGER)
    except ImportError as error:  # releases from 0.8 on want a later transformers
        raise InputError(f"use_liger_kernel=True: {' '.join(str(error).split())}") from error


def check_prompt_lengths(env: Environment, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> int:
    """Tokens of the longest prompt.

    Raises:
        InputError: it has more than `limit`: the parent drops such training prompts in silence.
    """
    longest = 0
    for split, lengths in prompt_lengths(env, tokenizer).items():
        longest = max([longest, *lengths])
        if limit is not None and (too_long := sum(length > limit for length in lengths)):
            raise InputError(
                f"{too_long} of {len(lengths)} {split} prompts are longer than max_prompt_length={limit} tokens (the "
                f"longest has {max(lengths)}): raise it (in a config training.max_prompt_length; in GRPOConfig "
                "max_seq_len too), or choose an easier task config"
            )
    return longest


def prompt_lengths(env: Environment, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Tokens of each prompt, of the splits ("training", "evaluation") that there are."""
    splits = (("training", env.dataset), ("evaluation", env.eval_dataset))
    return {split: _lengths(env, dataset, tokenizer) for split, dataset in splits if dataset is not None}


def _lengths(env: Environment, dataset: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    prompts = list(dataset["prompt"])
    if env.message_type == "chat":
        ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True)
    else:
        ids = tokenizer(prompts)["input_ids"]
    return [len(prompt) for prompt in ids]


def check_eval_env(
    env: Environment, tokenizer: PreTrainedTokenizerBase, *, engine: str, max_tokens: int, max_context: int
) -> None:
    """Make the evaluation rows of `env` fit the model's chat template, and check that they can be asked.

    Raises:
        InputError: no evaluation rows; no chat; prompt and `max_tokens` together are more than `max_context` tokens.
    """
    if env.eval_dataset is None:
        raise InputError("an environment to evaluate on has no evaluation rows: give it num_eval_examples above 0")
    check_message_type(engine, env)
    if env.message_type == "chat" and rejects_system_role(tokenizer):
        fold_system_prompts(env)
    longest = max(_lengths(env, env.eval_dataset, tokenizer))
    if (needed := longest + max_tokens) > max_context:
        raise InputError(
            f"the longest evaluation prompt ({longest} tokens) and max_tokens={max_tokens} make {needed}, and the "
            f"{engine} engine takes {max_context}: lower max_tokens of the evaluation, or choose an easier task config"
        )


def check_message_type(engine: str, env: Environment) -> None:
    """Raise `InputError` where `engine` cannot answer what `env` asks."""
    if engine == "embedded" and env.message_type != "chat":
        raise InputError("the embedded engine speaks chat only, and this environment asks for plain completions")


def fitting_rows(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, limit: int | None, *, fold: bool
) -> list[dict[str, Any]]:
    """Rows with a chat as prompt, those left out that have more than `limit` tokens. `fold`: system prompts go into the
    user's turn."""
    if fold:
        rows = [{**row, "prompt": fold_system(row["prompt"])} for row in rows]
    if limit is None or not rows:
        return rows
    ids = tokenizer.apply_chat_template([row["prompt"] for row in rows], add_generation_prompt=True)
    return [row for row, prompt in zip(rows, ids, strict=True) if len(prompt) <= limit]


def fold_system_prompts(env: Environment) -> None:
    """Put system prompts into the user's turn: the model's chat template has no system role."""
    for split in ("dataset", "eval_dataset"):
        dataset = getattr(env, split)
        if dataset is not None:
            setattr(env, split, dataset.map(lambda row: {"prompt": fold_system(row["prompt"])}))
