"""The trainer's checks before it starts: settings, engine, kernels and prompt lengths."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.utils import is_liger_kernel_available

from rg_env.core.environment import Environment
from rg_env.core.text import reason_of
from rg_env.errors import InputError, MissingExtraError, install_command
from rg_env.inference.prompts import PromptEncoder
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.load import contradictions
from rg_env.training.config.sections import EngineConfig
from rg_env.training.strategy import SHARDED_WEIGHTS, Sharding

LIGER = "liger_kernel.transformers.monkey_patch"
"""The module of liger-kernel that transformers imports."""


def check_options(args: GRPOConfig, engine: EngineConfig, env: Environment, curriculum: Any) -> None:
    """Raise `InputError` if options exclude each other, or `env` lacks what they need."""
    if not env.train_rows:
        raise InputError("the environment has no training rows: set num_train_examples above 0")
    for problem in contradictions(args, engine, curriculum):
        raise InputError(f"{'.'.join(problem.path)}: {problem.message}")
    if curriculum is not None and not env.has_accuracy:
        raise InputError("a curriculum follows accuracy, which this environment does not measure: leave it out")
    if args.filter_groups and not env.has_accuracy:
        raise InputError("filter_groups needs accuracy, which this environment does not measure: set it to False")


def check_engine(engine: EngineConfig, sharding: Sharding) -> None:
    """Raise `InputError` if the engine cannot sample from a model with this kind of sharding."""
    if engine.kind == "embedded" and sharding in SHARDED_WEIGHTS:
        name = {"zero3": "ZeRO-3", "fsdp2": "FSDP2"}[sharding]
        raise InputError(
            f"the embedded engine cannot generate from the shards of {name}: start a vLLM server and use "
            "engine.kind=vllm (in Python: engine='vllm'), or train with configs/ddp.yaml"
        )


def check_liger(args: GRPOConfig, device: torch.device) -> None:
    """Raise if `use_liger_kernel` is set and cannot work here, rather than fail in the first step.

    Raises:
        InputError: the run is not on a GPU, or liger-kernel is incompatible with the installed transformers.
        MissingExtraError: liger-kernel is not installed.
    """
    if not args.use_liger_kernel:
        return
    if device.type != "cuda":
        raise InputError(f"use_liger_kernel=True: its kernels need a GPU, and this run is on {device.type}")
    if not is_liger_kernel_available():
        raise MissingExtraError(
            f"use_liger_kernel=True needs liger-kernel: `{install_command('train')}`, or leave it out"
        )
    try:
        importlib.import_module(LIGER)
    except ImportError as error:
        raise InputError(f"use_liger_kernel=True: {reason_of(error)}") from error


def check_prompts(env: Environment, encoder: PromptEncoder, limit: int) -> None:
    """Raise `InputError` if a prompt has more than `limit` tokens."""
    for split, lengths in prompt_lengths(env, encoder).items():
        if too_long := sum(length > limit for length in lengths):
            raise InputError(
                f"{too_long} of {len(lengths)} {split} prompts are longer than max_prompt_length={limit} tokens (the "
                f"longest has {max(lengths)}): raise max_prompt_length, or choose an easier task config"
            )


def prompt_lengths(env: Environment, encoder: PromptEncoder) -> dict[str, list[int]]:
    """Number of tokens in each prompt, for each non-empty split ("training", "evaluation")."""
    splits = (("training", env.train_rows), ("evaluation", env.eval_rows))
    return {split: [len(encoder(row["prompt"])) for row in rows] for split, rows in splits if rows}


def longest_prompt(env: Environment, encoder: PromptEncoder) -> int:
    """Number of tokens in the longest prompt of either split."""
    return max(length for lengths in prompt_lengths(env, encoder).values() for length in lengths)


def fitting_rows(rows: Sequence[Mapping[str, Any]], encoder: PromptEncoder, limit: int) -> list[dict[str, Any]]:
    """Rows with prompts of at most `limit` tokens."""
    return [dict(row) for row in rows if len(encoder(row["prompt"])) <= limit]
