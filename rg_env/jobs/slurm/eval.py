"""An evaluation as a job of Slurm: which configs are one, and what `rg-env eval` is told. Imports no torch.

is_evaluation(SlurmJob("configs/eval/seven_tasks.yaml", gpus=8, time="02:00:00"))
"""

from rg_env.core.config.files import read_config
from rg_env.errors import InputError
from rg_env.evaluation.config import EvalConfig, load_eval_config
from rg_env.jobs.slurm.job import SlurmJob

_OF_TRAINING = ("array", "sweep", "vllm_gpus")
"""Options that say how runs train."""


def is_evaluation(job: SlurmJob) -> bool:
    """Whether the job's config is of an evaluation, by its keys: that asks `models`, and a run trains its `model`.

    Raises:
        InputError: the config cannot be read, or is of neither, or of both.
    """
    swept = {axis.split("=")[0].split(".")[0] for axis in job.sweep}
    kinds = {"model", "models"} & (swept | set(read_config(job.config, job.overrides).values))
    if not kinds:
        raise InputError(f"{job.config} has neither model, as training has it, nor models, as an evaluation")
    if len(kinds) > 1:
        raise InputError(f"{job.config} has model, as training has it, and models, as an evaluation: leave one out")
    return "models" in kinds


def evaluation_settings(job: SlurmJob) -> tuple[str, list[str]]:
    """The folder of the job's evaluations, and what `rg-env eval` is given besides the folder of its own.

    Raises:
        InputError: the job asks for what an evaluation cannot do, or its config has mistakes (`ConfigError`).
    """
    for name in _OF_TRAINING:
        if getattr(job, name):
            raise InputError(f"--{name.replace('_', '-')} is for training: leave it out, as {job.config} has models")
    if job.nodes > 1:
        raise InputError(f"--nodes {job.nodes}: an evaluation runs on one node, with a vLLM server on each of its GPUs")
    config = load_eval_config(job.config, job.overrides)
    _check(job, config)
    settings = [job.config, *job.overrides]
    if config.serving.kind == "auto":  # where vLLM does not start that is an error, and no evaluation on the CPU
        settings.append("serving.kind=vllm")
    return config.output.dir or "outputs", settings


def _check(job: SlurmJob, config: EvalConfig) -> None:
    if all(model.url for model in config.models.values()):
        raise InputError(f"{job.config}: all models have a url, and need no GPU here: run rg-env eval itself")
    if config.serving.gpus is not None:
        raise InputError(
            "serving.gpus: a job uses all that Slurm gives it, and --gpus says how many: leave the key out"
        )
    if config.serving.kind == "embedded" and job.gpus > 1:
        raise InputError(f"--gpus {job.gpus}: serving.kind=embedded uses one: take --gpus 1, or serving.kind=vllm")
