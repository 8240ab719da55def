"""Whether an exported model answers frozen problems as the run recorded: greedily, the same ones.

A run's `eval_results/eval_step_N.json` says of each frozen problem whether its greedy answer was right after step N.
The first 20 problems of the training tasks are built again from what the run wrote down, their hash is compared with
the recorded one, and the export answers them. Code that a run's config names is not imported: such a run is not asked.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config.files import read_config
from rg_env.core.config.parsing import parse_config
from rg_env.core.config.yaml12 import load as load_yaml
from rg_env.core.data.manifest import split_by_of
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import reason_of
from rg_env.errors import ExportError, InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import TINY, best_device, tiny_mixture
from rg_env.training.config.schema import TrainConfig

PROBLEMS = 20
SLACK = 2
"""Verdicts by which the accuracy may differ where the weights were rounded, or another engine or device generated."""


@dataclass(frozen=True)
class Recorded:
    """What a run recorded of its model after a step."""

    file: Path
    correct: list[bool]
    """Of the greedy answers to the first problems."""
    questions: list[str]
    prompts_sha256: str
    """Of all problems of that environment."""
    size: int
    sampling: dict[str, Any]
    settings: dict[str, Any]
    """The run's config.yaml."""
    exact: bool
    """Whether the embedded engine answered in float32 on a CPU, so that the same weights give the same answers here."""


class _CannotAsk(Exception):
    """Why nothing can be compared, in words: the export is as good as the other checks say."""


def compared(run: Path, step: int | None, load: Callable[[], Any], tokenizer: Any, *, lossless: bool) -> str:
    """Ask the exported model what its run asked after that step; returns what to tell, or why nothing is compared.

    Args:
        load: gives the model, which takes memory, when it is asked.
        lossless: whether no weight was rounded.

    Raises:
        ExportError: the accuracy is not the recorded one.
    """
    try:
        of = _recorded(run, step)
        env = _problems(of, run)
    except _CannotAsk as reason:
        return f"not compared with the run's accuracy: {reason}"
    return f"verified: {_ask(of, env, load(), tokenizer, lossless)}"


def _recorded(run: Path, step: int | None) -> Recorded:
    if step is None:
        raise _CannotAsk("its step is not known")
    file = RunFolder(run).evaluation_file(step)
    if not file.is_file():
        raise _CannotAsk(f"the run has no evaluation of step {step}")
    try:
        found = RunFolder(run).evaluation(step)
        entry = next(entry for entry in found["questions"] if entry["part"] == "training")
        first: dict[int, dict[str, Any]] = {}
        for record in found["rollouts"]:
            if record["part"] == "training" and record["draw"] == "greedy":
                first.setdefault(record["problem"], record)
        asked = [first[problem] for problem in sorted(first)][:PROBLEMS]
        if not asked or any(record["correct"] is None for record in asked):
            raise _CannotAsk(f"the run recorded no greedy answers at step {step}")
        settings = load_yaml((run / "config.yaml").read_text(encoding="utf-8"))
        return Recorded(
            file=file,
            correct=[record["correct"] for record in asked],
            questions=[record["question"] for record in asked],
            prompts_sha256=entry["prompts_sha256"],
            size=entry["n"],
            sampling=found["sampling"],
            settings=settings,
            exact=_on_cpu(run, settings),
        )
    except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError):
        raise _CannotAsk(f"{file.name} or config.yaml of the run cannot be read") from None


def _problems(of: Recorded, run: Path) -> Any:
    """The environment whose evaluation rows were asked, built again."""
    from rg_env.core.data.manifest import hash_of_rows
    from rg_env.core.environment import ReasoningGym

    try:
        env = ReasoningGym(**_arguments(of, run))
    except (RGEnvError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _CannotAsk(f"its problems cannot be built again: {reason_of(error)}") from error
    if hash_of_rows(env.eval_rows) != of.prompts_sha256:
        raise _CannotAsk("its problems cannot be built again: those of today are others, by their hash")
    return env


def _ask(of: Recorded, env: Any, model: Any, tokenizer: Any, lossless: bool) -> str:
    from rg_env.inference.prompts import PromptEncoder
    from rg_env.inference.protocol import Sampling
    from rg_env.training.rollouts import RolloutSampler

    device = best_device()
    engine = EmbeddedEngine(model.to(device), tokenizer, model_name="export", seed=0)
    names = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    penalties = {name: of.sampling[name] for name in names if of.sampling.get(name) is not None}
    sampling = Sampling(temperature=0.0, max_tokens=of.sampling["max_tokens"], **penalties)
    sampler = RolloutSampler(env, engine, PromptEncoder(tokenizer))
    answers = sampler.sample(env.eval_rows[: len(of.correct)], sampling).records()
    if [answer["question"] for answer in answers] != of.questions:
        raise ExportError(f"{of.file} names other questions than its hash: it was edited")
    right, before, n = sum(bool(answer["correct"]) for answer in answers), sum(of.correct), len(answers)
    slack = 0 if of.exact and lossless and device == "cpu" else SLACK
    if abs(right - before) > slack:
        raise ExportError(
            f"of {n} frozen problems the export solves {right}, and the run recorded {before} in {of.file}"
            + (f"; up to {slack} may differ by rounding: --dtype fp32 rounds nothing" if slack else "")
        )
    return f"{right} of {n} frozen problems right, answered greedily; the run recorded {before}"


def _arguments(of: Recorded, run: Path) -> dict[str, Any]:
    """Of `ReasoningGym`. A run from a config is told by it; a script's by its mixture, prompt and manifest."""
    rows = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["rows"]
    if isinstance(of.settings.get("model"), dict):
        config = parse_config(read_config(run / "config.yaml"), TrainConfig)
        if config.imports:
            raise _CannotAsk("its problems need code of its own (imports), which is not run here")
        arguments = config.environment_arguments()
        asked = config.gym
        mixture = tiny_mixture(asked) if config.model.name == TINY else asked
        fixed = {"num_train_examples": 0, "manifest": None, "split_by": split_by_of(rows)}  # older configs have no `by`
        return {**arguments, "gym": mixture, **fixed}
    environment = of.settings["environment"]
    return {
        "gym": environment["gym"],
        "system_prompt": environment["system_prompt"],
        "num_train_examples": 0,
        "num_eval_examples": of.size,
        "eval_seed": rows["splits"]["eval"]["seed"],
        "split_by": split_by_of(rows),
        "grading": "upstream" if environment.get("grading") == "upstream" else "hardened",  # else right is right
    }


def _on_cpu(run: Path, settings: dict[str, Any]) -> bool:
    try:
        engine = json.loads((run / "train_results.json").read_text(encoding="utf-8"))["engine"]
        training = settings["training"]
        if isinstance(settings["model"], dict):
            training = load_yaml((run / "arguments.yaml").read_text(encoding="utf-8"))["training"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError, yaml.YAMLError):
        return False
    return bool(engine == "embedded" and training.get("use_cpu") and not (training.get("bf16") or training.get("fp16")))
