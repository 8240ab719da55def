"""Whether an exported model answers frozen problems as the run recorded, greedily.

A run's `eval_results/eval_step_N.json` has, for each frozen problem, whether the greedy answer after step N was right.
The first 20 problems of the training tasks are built again from the run's files, their hash is compared with the
recorded one, and the export answers them. Code that a run's config names is not imported: nothing is compared then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rg_env.core.config.files import read_config
from rg_env.core.config.parsing import parse_config
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import reason_of
from rg_env.errors import ExportError, InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import TINY, best_device, tiny_mixture
from rg_env.training.config.schema import TrainConfig

PROBLEMS = 20
SLACK = 2
"""Verdicts that may differ if the weights were rounded, or another engine or device generated."""


@dataclass(frozen=True)
class Recorded:
    """What a run recorded of its model after a step."""

    file: Path
    correct: list[bool]
    """Of the greedy answers to the first problems."""
    questions: list[str]
    prompts_sha256: str
    """Hash of all problems of that environment."""
    size: int
    sampling: dict[str, Any]
    exact: bool
    """Whether the embedded engine answered in float32 on a CPU, so that the same weights give the same answers here."""


class _NotComparable(Exception):
    """Why nothing can be compared, in words."""


def compared(run: Path, step: int | None, load: Callable[[], Any], tokenizer: Any, *, lossless: bool) -> str:
    """Ask the exported model what its run asked after that step; returns the result, or why nothing is compared.

    Args:
        load: returns the model, which takes memory only then.
        lossless: whether no weight was rounded.

    Raises:
        ExportError: the accuracy is not the recorded one.
    """
    folder = RunFolder(run)
    try:
        recorded = _recorded(folder, step)
        env = _problems(recorded, folder)
    except _NotComparable as reason:
        return f"not compared with the run's accuracy: {reason}"
    return f"verified: {_ask(recorded, env, load(), tokenizer, lossless)}"


def _recorded(run: RunFolder, step: int | None) -> Recorded:
    if step is None:
        raise _NotComparable("its step is not known")
    file = run.evaluation_file(step)
    if not file.is_file():
        raise _NotComparable(f"the run has no evaluation of step {step}")
    try:
        found = run.evaluation(step)
        entry = next(entry for entry in found["questions"] if entry["part"] == "training")
        first: dict[int, dict[str, Any]] = {}
        for record in found["rollouts"]:
            if record["part"] == "training" and record["draw"] == "greedy":
                first.setdefault(record["problem"], record)
        asked = [first[problem] for problem in sorted(first)][:PROBLEMS]
        if not asked or any(record["correct"] is None for record in asked):
            raise _NotComparable(f"the run recorded no greedy answers at step {step}")
        training, outcome = run.arguments()["training"], run.results() or {}
        on_cpu = outcome.get("engine") == "embedded" and training.get("use_cpu")
        return Recorded(
            file=file,
            correct=[record["correct"] for record in asked],
            questions=[record["question"] for record in asked],
            prompts_sha256=entry["prompts_sha256"],
            size=entry["n"],
            sampling=found["sampling"],
            exact=bool(on_cpu and not (training.get("bf16") or training.get("fp16"))),
        )
    except (InputError, KeyError, TypeError, StopIteration) as error:
        raise _NotComparable(f"{file.name} or config.yaml of the run cannot be read ({reason_of(error)})") from error


def _problems(recorded: Recorded, run: RunFolder) -> Any:
    """The environment whose evaluation rows were asked, built again."""
    from rg_env.core.data.manifest import hash_of_rows
    from rg_env.core.environment import ReasoningGym

    try:
        env = ReasoningGym(**_arguments(recorded, run))
    except (RGEnvError, OSError, KeyError, TypeError, ValueError) as error:
        raise _NotComparable(f"its problems cannot be built again: {reason_of(error)}") from error
    if hash_of_rows(env.eval_rows) != recorded.prompts_sha256:
        raise _NotComparable("its problems cannot be built again: those of today have another hash")
    return env


def _arguments(recorded: Recorded, run: RunFolder) -> dict[str, Any]:
    """Arguments of `ReasoningGym`: from the run's config, or for a script's run from its environment and manifest."""
    rows, settings = run.manifest()["rows"], run.config()
    if isinstance(settings.get("model"), dict):
        config = parse_config(read_config(run.config_file), TrainConfig)
        if config.imports:
            raise _NotComparable("its problems need code of its own (imports), which is not run here")
        mixture = tiny_mixture(config.gym) if config.model.name == TINY else config.gym
        fixed = {"num_train_examples": 0, "manifest": None, "split_by": rows["split_by"]}  # older configs have no `by`
        return {**config.environment_arguments(), "gym": mixture, **fixed}
    environment = settings["environment"]
    return {
        "gym": environment["gym"],
        "system_prompt": environment["system_prompt"],
        "num_train_examples": 0,
        "num_eval_examples": recorded.size,
        "eval_seed": rows["splits"]["eval"]["seed"],
        "split_by": rows["split_by"],
        "grading": "upstream" if environment.get("grading") == "upstream" else "hardened",  # accuracy is the same
    }


def _ask(recorded: Recorded, env: Any, model: Any, tokenizer: Any, lossless: bool) -> str:
    from rg_env.inference.prompts import PromptEncoder
    from rg_env.inference.protocol import Sampling
    from rg_env.training.rollouts import RolloutSampler

    device = best_device()
    engine = EmbeddedEngine(model.to(device), tokenizer, model_name="export", seed=0)
    names = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    penalties = {name: recorded.sampling[name] for name in names if recorded.sampling.get(name) is not None}
    sampling = Sampling(temperature=0.0, max_tokens=recorded.sampling["max_tokens"], **penalties)
    sampler = RolloutSampler(env, engine, PromptEncoder(tokenizer))
    answers = sampler.sample(env.eval_rows[: len(recorded.correct)], sampling).records()
    if [answer["question"] for answer in answers] != recorded.questions:
        raise ExportError(f"{recorded.file} has other questions than its hash: it was edited")
    right, before, n = sum(bool(answer["correct"]) for answer in answers), sum(recorded.correct), len(answers)
    slack = 0 if recorded.exact and lossless and device == "cpu" else SLACK
    if abs(right - before) > slack:
        raise ExportError(
            f"of {n} frozen problems the export solves {right}, but the run recorded {before} in {recorded.file}"
            + (f"; up to {slack} may differ by rounding: --dtype fp32 rounds nothing" if slack else "")
        )
    return f"{right} of {n} frozen problems right, answered greedily; the run recorded {before}"
