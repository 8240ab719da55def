"""Check a run's requirements before heavy libraries are imported, for `rg-env train` with and without `--dry-run`.

    check_start(config, resume="auto")      # raises InputError or ServerError if a check fails

This module does not import torch. Checks that depend on the model or on a checkpoint's tensors run later, when the
model or the tensors are loaded.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

from rg_env.core.data.generation import check_options
from rg_env.core.data.manifest import check_request, read_manifest
from rg_env.core.data.user_rows import DataConfig, split_rows
from rg_env.core.environment import Environment
from rg_env.core.files import read_bytes
from rg_env.core.hub import LOGIN, note_on_model
from rg_env.core.processes import print_once
from rg_env.core.rewards.rubric import question_of
from rg_env.core.run_folder import RunFolder, gguf_file, model_path_problem, run_name
from rg_env.core.text import counted, one_line, shortened
from rg_env.errors import InputError
from rg_env.inference.protocol import PromptEncoder, prompt_lengths
from rg_env.inference.vllm.client import VllmServer
from rg_env.tiny import TINY
from rg_env.training.config.schema import DataRows, HubConfig, LoggingConfig, TrainConfig

_WANDB_SETTINGS = ("[default]", "project", "entity", "mode")
"""Settings that W&B may read from the working directory."""
AUTO = "auto"
"""Value of `resume` that selects the newest checkpoint."""


@dataclass(frozen=True)
class Start:
    """Result of `check_start`."""

    folder: Path | None = None
    """The output folder on the first process, or None on all other processes."""
    rows: DataRows | None = None
    """Training and evaluation rows from the `data` section, or None if there is no such section or the data has not
    been downloaded yet."""
    notes: list[str] = field(default_factory=list)
    """Messages about requirements that are not met yet but must be met when the run starts."""

    found_model: bool = True
    """False if a dry run could not check whether the model exists."""

    @property
    def train_rows(self) -> int | None:
        """Number of training rows, or None if the number is unknown."""
        return len(self.rows[0]) if self.rows else None


def check_start(
    config: TrainConfig,
    *,
    resume: str | None = None,
    checkpoint: str | None = None,
    evaluates: bool = False,
    wait: bool = True,
) -> Start:
    """Check everything that a run with `config` requires, except the model itself. With several processes, only the
    first process performs the checks, and all other processes only read the rows.

    Args:
        resume: checkpoint to resume from, or "auto".
        checkpoint: checkpoint to evaluate.
        evaluates: whether the run only evaluates.
        wait: whether to create a new output folder if `output.dir` is not set, to wait up to `engine.connect_timeout`
            seconds for a vLLM server, and to download data. If False, an unreachable server, a missing login and tasks
            with too few questions are only reported in `notes`, and the model is looked up on the Hub.

    Raises:
        InputError: the output folder, the model folder, a checkpoint, the manifest, the data or a task's options are
            unusable, or a login is missing.
        ServerError: the vLLM server does not respond.
    """
    data = config.data
    read_data = data is not None and (wait or data.is_file)
    if os.environ.get("RANK", "0") != "0":
        return Start(rows=own_rows(config) if read_data else None)
    model = Path(checkpoint or config.model.name).name
    name = run_name(config.trained_on, f"{model}-evaluation" if evaluates else model)
    folder = RunFolder.choose(config.output.dir, name, resume, "set output.dir to another folder", create=wait)
    is_loaded = checkpoint is None or not (Path(checkpoint) / "config.json").is_file()
    if is_loaded and config.model.name != TINY and (problem := model_path_problem(config.model.name)):
        raise InputError(f"model.name: {problem}")
    if is_loaded and config.engine.kind == "vllm" and gguf_file(config.model.name):
        raise InputError("model.name: vLLM cannot update the weights of a GGUF file: set engine.kind=embedded")
    if resume not in (None, AUTO) and not (Path(str(resume)) / "trainer_state.json").is_file():
        raise InputError(
            f"cannot resume from {resume}: it is not a checkpoint; pass a run's checkpoint-N folder, or "
            f"{AUTO} for the newest checkpoint"
        )
    if checkpoint is not None and (problem := model_path_problem(checkpoint, adapters=True)):
        raise InputError(f"checkpoint: {problem}")
    if config.splits.manifest is not None:
        read_manifest(config.splits.manifest)
    tasks = {f"tasks.{task.name}": task for task in (config.mixture.tasks if config.tasks else ())}
    for label, mixture in config.evaluation_mixtures.items():
        tasks |= {f"evaluation.tasks.{label or task.name}": task for task in mixture.tasks}
    check_options(tasks)
    if resume is not None and config.tasks and config.splits.manifest is None:
        _check_resumed_rows(config, folder if resume == AUTO else Path(resume).parent)
    rows = own_rows(config) if read_data else None
    notes: list[str] = []
    unknown_model = None
    for check in (lambda: check_hub(config.hub), lambda: check_logins(config.logging)):
        try:
            check()
        except InputError as error:
            if wait:
                raise
            notes.append(str(error))
    if not wait:
        notes += dict.fromkeys(line for request in config.row_requests() for line in request.expected_shortage())
    if config.engine.kind == "vllm":
        server = VllmServer(config.engine.host, config.engine.port)
        if wait:
            server.wait(config.engine.connect_timeout)
        elif problem := server.health_problem(timeout_s=2.0):
            notes.append(f"a vLLM server must answer at {server} when the run starts (now: {problem})")
    if not wait and is_loaded and not os.path.exists(config.model.name) and config.model.name != TINY:
        unknown_model = note_on_model(config.model.name)
        notes += [unknown_model] if unknown_model else []
    return Start(folder, rows, notes, found_model=not unknown_model)


def _check_resumed_rows(config: TrainConfig, run: Path) -> None:
    """Raise `InputError` if the tasks or seeds of `run`, which has a checkpoint, are not those of the config."""
    if RunFolder(run).last_checkpoint() and RunFolder(run).manifest().get("rows"):
        train, evaluation = config.row_requests()[:2]
        try:
            check_request(
                RunFolder(run).manifest_file, train.mixture, {"train": train.seed, "eval": evaluation.seed}, train.by
            )
        except InputError as error:
            raise InputError(
                f"cannot resume the run in {run}: {error}; use its tasks and seeds, or start a new run "
                "without --resume in another output.dir"
            ) from error


def own_rows(config: TrainConfig) -> DataRows:
    """Return the training and evaluation rows from the `data` section. Raises `InputError` if the data is unusable or
    has too few questions."""
    data = config.data
    assert data is not None
    rows, num_eval = data.rows(), config.splits.num_eval_examples
    try:
        train, evaluation = split_rows(rows, num_eval, config.splits.eval_seed)
    except InputError as error:
        raise InputError(f"splits.num_eval_examples = {num_eval}: {error}") from error
    if len(train) < (prompts := config.training.prompts_per_step):
        raise InputError(
            f"{data.path}: {counted(len(train), 'question')} left for training, fewer than the "
            f"{counted(prompts, 'prompt')} in a step: "
            "add questions, or lower splits.num_eval_examples or training.rollouts_per_step"
        )
    return train, evaluation


def fitting(config: TrainConfig, rows: DataRows | None, encoder: PromptEncoder) -> Environment:
    """Return the environment with the config's tasks, or with `rows` from its data, whose prompts all fit
    `max_prompt_length`. With `data.too_long: drop`, other rows are omitted and counted.

    Raises `InputError` if a prompt is too long, or if too few rows are left.
    """
    env, limit = config.environment(rows), config.training.max_prompt_length
    lengths = prompt_lengths(env, encoder)
    too_long = sum(length > limit for of_split in lengths.values() for length in of_split)
    if rows is None or config.data is None or not too_long or config.data.too_long == "error":
        check_prompts(env, lengths, limit, config.data)
        return env
    total = len(env.train_rows) + len(env.eval_rows)
    print_once(
        f"{config.data.path}: {too_long} of {counted(total, 'row')} omitted because their prompts are longer than "
        f"max_prompt_length={limit} tokens (data.too_long: drop)"
    )
    fits = [len(encoder(row["prompt"])) <= limit for row in (*env.train_rows, *env.eval_rows)]
    kept = list(compress((*rows[0], *rows[1]), fits))
    count = sum(fits[: len(rows[0])])
    if count < (prompts := config.training.prompts_per_step) or (rows[1] and count == len(kept)):
        left = f"{counted(count, 'training prompt')} and {counted(len(kept) - count, 'evaluation prompt')} left"
        raise InputError(
            f"{config.data.path}: {left} (a step has {counted(prompts, 'prompt')}): raise training.max_prompt_length"
        )
    return config.environment((kept[:count], kept[count:]))


def check_prompts(
    env: Environment, lengths: Mapping[str, Sequence[int]], limit: int, data: DataConfig | None = None
) -> None:
    """Raise `InputError` if a prompt has more than `limit` tokens. `lengths` contains the prompt lengths by split, and
    `data` is the source of the rows, if they are from a config's data."""
    for split, of_split in lengths.items():
        if too_long := sum(length > limit for length in of_split):
            number = max(range(len(of_split)), key=of_split.__getitem__)
            row = (env.train_rows if split == "training" else env.eval_rows)[number]
            question, task = question_of(row), row["info"].get("rg_task")
            where = data.place(question) if data else f"task {task!r}" if task else f"row {row['example_id']}"
            drop = ", or drop such rows (data.too_long=drop)" if data else ""
            raise InputError(
                f"{too_long} of {len(of_split)} {split} prompts are longer than max_prompt_length={limit} tokens (the "
                f"longest has {of_split[number]}: {where}, {shortened(question)}): raise max_prompt_length, or choose "
                f"easier tasks or shorter questions{drop}"
            )


def check_hub(config: HubConfig) -> None:
    """Raise `InputError` if uploads are enabled but no Hugging Face token is available."""
    from huggingface_hub import get_token

    if config.enabled and not get_token():
        raise InputError(f"hub.enabled: no Hugging Face token found; {LOGIN}, or set hub.enabled=false")


def check_logins(config: LoggingConfig) -> None:
    """Raise `InputError` if wandb is configured and would prompt for a login, or would read settings such as the
    server's address from the working directory, which may have been downloaded."""
    if "wandb" not in config.report_to:
        return
    for file in map(Path, ("wandb/settings", ".wandb/settings")):
        for line in read_bytes(file).decode(errors="replace").splitlines() if os.path.lexists(file) else ():
            name, _, value = map(str.strip, line.partition("="))
            own = value in ("https://api.wandb.ai", os.environ.get("WANDB_BASE_URL"))
            if name and name not in _WANDB_SETTINGS and not (name == "base_url" and own):
                raise InputError(
                    f"{file} in this folder sets {one_line(name, 40)}, which may send your key to another server: "
                    "remove the line, set an environment variable such as WANDB_BASE_URL, or run in another folder"
                )
    import wandb

    try:
        offline = wandb.setup().settings.mode in ("offline", "dryrun", "disabled")
        known = offline or wandb.run or wandb.login(prompt=False, verify=False)
        problem = "" if known else "not logged in"
    except wandb.Error as error:  # for example, if the key has the wrong length
        problem = one_line(error).rstrip(".")
    if problem:
        raise InputError(
            f"cannot report to wandb: {problem}: set WANDB_API_KEY in .env, run `wandb login`, or set "
            "WANDB_MODE=offline (or remove wandb from logging.report_to)"
        )
