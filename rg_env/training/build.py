"""What `rg-env train` does with a config: build the trainer that it describes, and train or evaluate.

Heavy libraries are imported after the config has been read.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rg_env.training.config.schema import EvaluationSettings, TrainConfig

if TYPE_CHECKING:
    from rg_env.evaluation.results import Results
    from rg_env.inference.models import Policy
    from rg_env.training.evaluation.plan import EvaluationPlan
    from rg_env.training.trainer import GRPOTrainer


def run_config(config: TrainConfig, *, resume: str | None = None) -> dict[str, Any]:
    """Train the run that `config` describes. Returns and raises as `train`."""
    from rg_env.core.processes import print_once
    from rg_env.inference.models import load_policy
    from rg_env.training.config.dry_run import without_effect
    from rg_env.training.distributed import run_folder
    from rg_env.training.hub_uploads import check_hub
    from rg_env.training.run import train

    given, config = config, config.in_updates()
    run_folder(config.output.dir, "check", resume)  # raises before the model is loaded
    check_hub(config.hub)
    if line := without_effect(given):
        print_once(line)
    policy = load_policy(config.model.name, attention=config.model.attention, dtype=config.model.dtype)
    trainer = make_trainer(config, policy, resume=resume)
    return train(
        trainer,
        config=given,
        evaluation=evaluation_plan(config, policy),
        logging=config.logging,
        monitors=config.monitors,
        hub=config.hub,
        resume=resume,
    )


def evaluate_config(config: TrainConfig, checkpoint: str | None = None) -> "Results":
    """Only the evaluation that `config` describes, of its model or of a `checkpoint`: a model folder, or adapters
    that were trained on that model.

    Raises:
        InputError: there is no such checkpoint, or nothing to evaluate.
    """
    from rg_env.core.run_folder import RunFolder, run_name
    from rg_env.inference.models import TINY, load_policy, with_adapters
    from rg_env.training.distributed import run_folder
    from rg_env.training.evaluation.runner import evaluate_only, step_of_model

    run_folder(config.output.dir, "check")
    is_tiny = config.model.name == TINY
    adapters = checkpoint if checkpoint and (Path(checkpoint) / "adapter_config.json").is_file() else None
    name = config.model.name if checkpoint is None or adapters else checkpoint
    config = config.model_copy(
        update={
            "model": config.model.model_copy(update={"name": name}),
            "training": config.training.model_copy(update={"beta": 0.0, "kl_reference": "initial"}),  # no reference
            "lora": None,
            "curriculum": None,
        }
    )
    policy = load_policy(name, attention=config.model.attention, dtype=config.model.dtype)
    policy = replace(policy, is_tiny=is_tiny)  # a checkpoint of the tiny policy gets the tiny policy's questions
    if adapters:
        policy = with_adapters(policy, adapters)
    folder = run_folder(config.output.dir, run_name(list(config.tasks), f"{policy.label}-evaluation"))
    trainer = make_trainer(config, policy, folder=folder)
    plan = evaluation_plan(config, policy)
    result = evaluate_only(trainer, folder, plan, step=step_of_model(checkpoint or ""))
    run = RunFolder(folder)
    run.write_config(config.resolved(), {"evaluated": checkpoint or name})
    run.write_manifest(trainer.env.manifest, plan.manifests(trainer.env))
    return result


def make_trainer(
    config: TrainConfig, policy: "Policy", *, folder: Path | None = None, resume: str | None = None
) -> "GRPOTrainer":
    """The trainer that `config` describes. `folder`: for its output; default: the config's."""
    from rg_env.core.environment import ReasoningGym
    from rg_env.core.run_folder import run_name
    from rg_env.training.data.curriculum import Curriculum
    from rg_env.training.distributed import run_folder
    from rg_env.training.trainer import GRPOTrainer

    env = ReasoningGym(gym=policy.mixture(config.gym), **config.environment_arguments())
    if folder is None:
        folder = run_folder(config.output.dir, run_name(list(config.tasks), policy.label), resume)
    curriculum = None
    if config.curriculum is not None:
        curriculum = Curriculum(config.curriculum, env, config.seed, gym=config.gym)
    return GRPOTrainer(
        model=policy.model,
        env=env,
        args=config.grpo_config(folder),
        processing_class=policy.tokenizer,
        peft_config=lora(config),
        engine=config.engine,
        curriculum=curriculum,
    )


def evaluation_plan(config: TrainConfig, policy: "Policy") -> "EvaluationPlan":
    """The section `evaluation` as a plan, with an environment for the held-out tasks and one for each label."""
    from rg_env.core.environment import ReasoningGym
    from rg_env.training.evaluation.plan import EvaluationPlan

    environments = {
        label: ReasoningGym(**{**arguments, "gym": policy.mixture(arguments["gym"])})
        for label, arguments in config.evaluation_environments()
    }
    held_out = [env for label, env in environments.items() if label is None]
    labelled = {label: env for label, env in environments.items() if label is not None}
    when_and_how = config.evaluation.model_dump(include=set(EvaluationSettings.model_fields))
    return EvaluationPlan(held_out=held_out, labelled=labelled, **when_and_how)


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
