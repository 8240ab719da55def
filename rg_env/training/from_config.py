"""Run a config as `rg-env train` does: build its trainer, then train or evaluate.

Heavy libraries are imported only after `preflight` has checked the config's requirements and the plan has been printed.
"""

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rg_env.core.processes import print_once
from rg_env.core.run_folder import RunFolder, checkpoint_step
from rg_env.training.config.plan import plan
from rg_env.training.config.schema import EvaluationSettings, TrainConfig
from rg_env.training.preflight import check_start, fitting

if TYPE_CHECKING:
    from rg_env.core.environment import Environment
    from rg_env.evaluation.results import Results
    from rg_env.inference.models import Policy
    from rg_env.training.evaluation import EvaluationPlan
    from rg_env.training.trainer import GRPOTrainer


def run_config(config: TrainConfig, *, resume: str | None = None) -> dict[str, Any]:
    """Train as `config` describes, and return the result of `train`. Raises the same errors as `check_start`,
    `GRPOTrainer` and `train`."""
    start = check_start(config, resume=resume)
    shown = config.model_copy(update={"output": config.output.model_copy(update={"dir": str(start.folder)})})
    print_once("\n".join([*plan(shown, own_rows=start.train_rows), f"loading {config.model.name} ..."]))
    began = time.monotonic()
    from rg_env.inference.models import describe_model, load_policy
    from rg_env.inference.protocol import PromptEncoder
    from rg_env.training.collectives import choose_folder
    from rg_env.training.run import train

    if gc.get_freeze_count() == 0:  # a later run would also exempt what an earlier run left
        gc.freeze()  # garbage collections need not visit the libraries' objects, about a million, which stay
    encoder = PromptEncoder(describe_model(config.model.name).tokenizer, config.prompt.chat_template_kwargs)
    # The trainer also checks prompts, but only after the weights have been loaded, which can take minutes.
    env = fitting(config, start.rows, encoder)
    # This connects the processes. With FSDP2, only connected processes leave the loading of weights to one process.
    folder = choose_folder(start.folder, "run", resume)
    policy = load_policy(config.model.name, attention=config.model.attention, dtype=config.model.dtype)
    trainer = make_trainer(config, policy, env, folder)
    print_once(f"loaded {config.model.name} in {time.monotonic() - began:.1f} s")
    return train(
        trainer,
        config=config,
        evaluation=evaluation_plan(config),
        logging=config.logging,
        monitors=config.monitors,
        hub=config.hub,
        resume=resume,
    )


def evaluate_config(config: TrainConfig, checkpoint: str | None = None) -> "Results":
    """Run only the evaluation described by `config`, on the config's model or on a `checkpoint` (a model folder, or
    adapters for the config's model).

    Raises:
        InputError: the checkpoint does not exist, or there is nothing to evaluate.
    """
    start = check_start(config, checkpoint=checkpoint, evaluates=True)
    print_once(f"loading {checkpoint or config.model.name} ...")
    began = time.monotonic()
    from rg_env.evaluation.questions import own_rows
    from rg_env.inference.models import load_policy, with_adapters
    from rg_env.inference.protocol import PromptEncoder
    from rg_env.training.evaluation import evaluate_only

    adapters = checkpoint if checkpoint and (Path(checkpoint) / "adapter_config.json").is_file() else None
    name = config.model.name if checkpoint is None or adapters else checkpoint
    policy = load_policy(name, attention=config.model.attention, dtype=config.model.dtype)
    if adapters:
        policy = with_adapters(policy, adapters)
    encoder = PromptEncoder(policy.tokenizer, config.prompt.chat_template_kwargs)
    env, evaluation = fitting(config, start.rows, encoder), evaluation_plan(config)
    # An evaluation needs neither a reference model nor new adapters nor a curriculum.
    training = config.training.model_copy(update={"beta": 0.0, "kl_reference": "initial"})
    model = config.model.model_copy(update={"name": name})
    config = config.model_copy(update={"model": model, "training": training, "lora": None, "curriculum": None})
    folder = start.folder
    assert folder is not None  # there is only one process
    trainer = make_trainer(config, policy, env, folder)
    print_once(f"loaded {name} in {time.monotonic() - began:.1f} s")
    result = evaluate_only(trainer, folder, evaluation, step=checkpoint_step(Path(checkpoint or "")) or 0)
    run = RunFolder(folder)
    run.write_config(config.resolved(), {"evaluated": checkpoint or name})
    run.write_manifest(trainer.env.manifest, evaluation.manifests(trainer.env), own_rows=own_rows(trainer.env))
    return result


def make_trainer(config: TrainConfig, policy: "Policy", env: Any, folder: Path) -> "GRPOTrainer":
    """Create the trainer that `config` describes, with the output folder `folder`."""
    from rg_env.training.curriculum import Curriculum
    from rg_env.training.trainer import GRPOTrainer

    curriculum = config.curriculum
    return GRPOTrainer(
        model=policy.model,
        env=env,
        args=config.grpo_config(folder),
        processing_class=policy.tokenizer,
        peft_config=lora(config),
        engine=config.engine,
        curriculum=None if curriculum is None else Curriculum(curriculum, env, config.seed, gym=config.gym),
    )


def evaluation_plan(config: TrainConfig) -> "EvaluationPlan":
    """Create the plan from the `evaluation` section, with one environment for the held-out tasks and one for each
    label."""
    from rg_env.training.evaluation import EvaluationPlan

    labelled: dict[Any, Environment] = dict(config.evaluation_environments())
    held_out = (labelled.pop(None),) if None in labelled else ()
    when_and_how = config.evaluation.model_dump(include=set(EvaluationSettings.model_fields))
    return EvaluationPlan(held_out=held_out, labelled=labelled, **when_and_how)


def lora(config: TrainConfig) -> Any:
    """Return the `peft.LoraConfig` from the `lora` section, or None if all weights are trained."""
    if config.lora is None:
        return None
    from peft import LoraConfig

    targets = config.lora.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora.r,
        lora_alpha=config.lora.alpha,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        use_rslora=config.lora.use_rslora,
    )
