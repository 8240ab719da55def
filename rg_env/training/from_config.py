"""From a config to what it says: the environment, the arguments of the trainer, and the run.

`environment_arguments` and `training_arguments` are plain mappings that import nothing heavy; `run_config` does it.
"""

from pathlib import Path
from typing import Any

from rg_env.training.config import TrainConfig
from rg_env.training.config_checks import gym, reward_list

_RENAMED = {"shuffle": "shuffle_dataset"}
_ENGINE = {
    "host": "vllm_server_host",
    "port": "vllm_server_port",
    "connect_timeout": "vllm_server_timeout",
    "generation_timeout": "async_generation_timeout",
    "num_batches_ahead": "num_batches_ahead",
    "importance_sampling_correction": "vllm_importance_sampling_correction",
    "importance_sampling_cap": "vllm_importance_sampling_cap",
    "weight_sync_transport": "weight_sync_transport",
    "weight_sync_timeout": "weight_sync_timeout",
    "weight_sync_check_every": "weight_sync_check_every",
}


def environment_arguments(config: TrainConfig) -> dict[str, Any]:
    """Arguments of `load_environment`, without `gym`."""
    splits, prompt = config.splits, config.prompt
    return {
        "num_train_examples": splits.num_train_examples,
        "num_eval_examples": splits.num_eval_examples,
        "seed": config.seed if splits.seed is None else splits.seed,
        "eval_seed": splits.eval_seed,
        "manifest": splits.manifest,
        "system_prompt": prompt.instruction,
        "prompt_placement": prompt.placement,
        "preamble": prompt.system_prompt,
        "rewards": reward_list(config),
        "partial_credit": config.grading == "partial",
        "grading": "upstream" if config.grading == "upstream" else "hardened",
    }


def training_arguments(config: TrainConfig) -> dict[str, Any]:
    """Fields of `GRPOConfig`, without those of the output folder. None: by the machine."""
    training = config.training
    fields = {_RENAMED.get(name, name): value for name, value in training.model_dump().items()}
    fields |= {field: getattr(config.engine, name) for name, field in _ENGINE.items()}
    if training.lr_scheduler_type == "constant":
        fields["warmup_steps"] = 0
    if training.gradient_checkpointing:
        fields["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return fields | {
        "seed": config.seed,
        "max_seq_len": training.max_prompt_length + training.max_tokens,
        "sync_ref_model": False,
        "save_strategy": "steps" if config.output.save_every else "no",
        "save_steps": config.output.save_every or 1,
        "save_total_limit": config.output.save_total_limit,
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def mixture(config: TrainConfig) -> list[dict[str, Any]]:
    """The tasks to train on, as `Mixture.parse` takes them."""
    return gym(config.tasks)


def run_config(config: TrainConfig, *, resume: str | None = None) -> dict[str, Any]:
    """Train as `config` says. What is returned and raised: see `train`."""
    from rg_env.adapters.v0 import load_environment
    from rg_env.training.curriculum import Curriculum
    from rg_env.training.output import run_folder, run_name
    from rg_env.training.policy import load_policy
    from rg_env.training.run import train
    from rg_env.training.trainer import GRPOTrainer

    run_folder(config.output.dir, "check", resume)  # told before the model is loaded
    policy = load_policy(config.model.name, attention=config.model.attention, dtype=config.model.dtype)
    env = load_environment(gym=policy.mixture(mixture(config)), **environment_arguments(config))
    folder = run_folder(config.output.dir, run_name(list(config.tasks), policy.label), resume)
    curriculum = None
    if config.curriculum is not None:
        curriculum = Curriculum(config.curriculum, env, config.seed, gym=mixture(config))
    trainer = GRPOTrainer(
        model=policy.model,
        env=env,
        args=grpo_config(config, folder),
        processing_class=policy.tokenizer,
        peft_config=lora(config),
        engine=config.engine.kind,
        curriculum=curriculum,
    )
    return train(trainer, config=config, logging=config.logging, resume=resume)


def grpo_config(config: TrainConfig, folder: Path) -> Any:
    """The `GRPOConfig` for a run into `folder`."""
    import torch

    from rg_env.training.arguments import GRPOConfig
    from rg_env.training.services import service_settings

    cuda = torch.cuda.is_available()
    fields = training_arguments(config)
    by_machine = {"bf16": cuda, "use_cpu": not cuda}
    fields |= {name: value for name, value in by_machine.items() if fields[name] is None}
    return GRPOConfig(
        output_dir=str(folder),
        **service_settings(config.logging, folder),
        dataloader_pin_memory=cuda,
        **fields,
    )


def lora(config: TrainConfig) -> Any:
    """The `LoraConfig` that `peft` takes; None: all weights are trained."""
    if config.lora is None:
        return None
    from peft import LoraConfig

    targets = config.lora.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora.r,
        lora_alpha=config.lora.alpha,
        lora_dropout=config.lora.dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        use_rslora=config.lora.use_rslora,
    )
