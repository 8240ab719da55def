"""Steps that count rollouts (`training.rollouts_as_steps`), so that runs with different batches stand side by side.

A step of optimization is an update: with twice the batch, a hundred updates are twice the rollouts, and curves over
updates compare unequal things. Imports neither torch nor verifiers.
"""

from rg_env.training.config.schema import TrainConfig


def in_updates(config: TrainConfig) -> TrainConfig:
    """The same run with all steps counted in updates; where they do not divide, one update more than too few."""
    training = config.training
    if not training.rollouts_as_steps:
        return config
    batch = training.rollouts_per_step

    def updates(rollouts: int) -> int:
        return -(-rollouts * training.num_iterations // batch)

    changes = {
        "training": training.model_copy(
            update={
                "rollouts_as_steps": False,
                "max_steps": updates(training.max_steps),
                "warmup_steps": updates(training.warmup_steps),
            }
        ),
        "output": config.output.model_copy(update={"save_every": updates(config.output.save_every)}),
        "hub": config.hub.model_copy(update={"every": updates(config.hub.every)}),
        "logging": config.logging.model_copy(update={"examples_every": updates(config.logging.examples_every)}),
    }
    if (every := config.evaluation.every) is not None:
        changes["evaluation"] = config.evaluation.model_copy(update={"every": updates(every)})
    if (curriculum := config.curriculum) is not None:
        # The latest last: it wins where several begin with the same update.
        starts = sorted((int(start), level) for start, level in (curriculum.schedule or {}).items())
        schedule = {str(updates(start)): level for start, level in starts} or None
        changes["curriculum"] = curriculum.model_copy(
            update={"check_every": updates(curriculum.check_every), "schedule": schedule}
        )
    return config.model_copy(update=changes)


def evaluation_steps(every: int | None, max_steps: int) -> int:
    """Steps between two evaluations, a fifth of the run if `every` is None; 0: none on the way."""
    return max(1, max_steps // 5) if every is None else every
