"""Verify that an export matches the trained model in its tensors, logits and accuracy.

The exported folder is loaded with `from_pretrained`, as users would load it. The trained model is built in float32 from
the checkpoint's weights. On fixed prompts, the logits of the two models may differ by at most the rounding error of the
export's dtype.

A run's `eval_results/eval_step_N.json` records, for each frozen question, whether the greedy answer after step N was
correct. The first 20 problems of the training tasks are rebuilt from the run's files and checked against the recorded
hash. The exported model answers them, and the numbers of correct answers are compared. Code that a run's config imports
is not executed, so the answers of such a run are not compared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.core.data.manifest import hash_of_rows
from rg_env.core.environment import ReasoningGym
from rg_env.core.run_folder import RunFolder
from rg_env.core.text import reason_of
from rg_env.errors import ExportError, RGEnvError
from rg_env.evaluation.results import Environment, read_results
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import best_device
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.publish.checkpoint import Checkpoint
from rg_env.publish.weights import Weights
from rg_env.training.rollouts import RolloutSampler

PROMPTS = (
    "How many legs are there in total if you have 3 cats and 2 ants?",
    "Think step by step, then give the final answer as <answer>your answer here</answer>.",
    "def f(x):\n    return [y ** 2 for y in x if y % 2 == 0]  # 0.5 + 17 = 17.5",
    "Übung macht den Meister; 練習は裏切らない.",
)
"""Fixed prompts; each is truncated to `PROMPT_TOKENS`."""
PROMPT_TOKENS = 8
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Maximum difference between logits by dtype: RMS of the differences, relative to that of the centered logits."""
PROBLEMS = 20
SLACK = 2
"""Number of verdicts that may differ if the weights were rounded, or if the engine or device differs."""


def prompt_ids(tokenizer: Any, vocabulary: int) -> torch.Tensor:
    """Concatenated token ids of the fixed prompts, `(1, L) int64`.

    Raises:
        ExportError: the tokenizer has token ids without an embedding in the model.
    """
    rows = [tokenizer(prompt, add_special_tokens=False)["input_ids"][:PROMPT_TOKENS] for prompt in PROMPTS]
    ids = torch.tensor([[token for row in rows for token in row]], dtype=torch.long)
    if not ids.numel() or max(int(ids.max()), len(tokenizer) - 1) >= vocabulary:
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for {vocabulary}: the "
            "tokenizer may belong to another model"
        )
    return ids


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Compute the logits, `(L, vocabulary) float32`."""
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return found.float()


def load(folder: Path, dtype: torch.dtype) -> Any:
    """Load the exported model with `from_pretrained`.

    Raises:
        ExportError: the model cannot be loaded, or the files lack some of its weights.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
    except Exception as error:
        raise ExportError(f"the exported model cannot be loaded: {reason_of(error)}") from error
    missing = [name for name in info["missing_keys"] if name not in model.all_tied_weights_keys]
    if wrong := sorted(map(str, (*missing, *info["unexpected_keys"], *info["mismatched_keys"]))):
        raise ExportError(f"in the exported model, {wrong[0]} is missing or unexpected, or has the wrong shape")
    return model.eval()


def check_tensors(trained: Weights, other: Weights, what: str) -> None:
    """Raise an `ExportError` that starts with `what` unless each trained weight, rounded to the dtype of the other
    weight with this name, has the same value."""
    for name, weight in trained.items():
        if not torch.equal(other[name], weight.to(other[name].dtype)):
            raise ExportError(f"{what}: {name} differs")


def trained_model(model: Any, weights: Weights) -> Any:
    """Fill a model without weights, in float32."""
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model


def check_logits(trained: torch.Tensor, written: torch.Tensor, tolerance: float) -> float:
    """Relative difference between two sets of logits (L, vocabulary). Raises `ExportError` if it exceeds
    `tolerance`."""
    # Logits are only defined up to an additive constant.
    one, other = (each - each.mean(dim=-1, keepdim=True) for each in (trained, written))
    difference = float(torch.dist(one, other) / one.norm().clamp(min=1e-30))
    if not difference <= tolerance:
        raise ExportError(
            f"on fixed prompts, the export's logits differ from the trained model's by {difference:.2g} of their "
            f"norm, but rounding explains at most {tolerance:g}"
        )
    return difference


def check_answers(checkpoint: Checkpoint, load: Callable[[], Any], tokenizer: Any, *, lossless: bool) -> str:
    """Repeat part of the run's evaluation of this step with the exported model. Returns a description of the result, or
    the reason why the answers cannot be compared.

    Args:
        load: loads the model; called only if the model is needed.
        lossless: whether the export merged no adapters and rounded no weights.

    Raises:
        ExportError: the number of correct answers differs from the recorded one by more than the tolerance.
        InputError: a file of the run is damaged.
    """
    run, step, skipped = checkpoint.run, checkpoint.step, "not compared with the run's accuracy"
    if run is None or step not in run.evaluation_steps():
        return f"{skipped}: no known run evaluated these weights"
    results = read_results(run.evaluation_file(step))
    greedy = [each for each in results.rollouts if (each["part"], each["draw"]) == ("training", "greedy")]
    recorded = sorted(greedy, key=lambda each: each["problem"])[:PROBLEMS]
    if not recorded or any(each["correct"] is None for each in recorded):
        return f"{skipped}: the run recorded no greedy answers at step {step}"
    env = _environment(run, next(each for each in results.environments if each.part == "training"))
    if isinstance(env, str):
        return f"{skipped}: {env}"
    device, n = best_device(), len(recorded)
    engine = EmbeddedEngine(load().to(device), tokenizer, model_name="export", seed=0)
    names = ("max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty")
    sampling = Sampling(temperature=0.0, **{name: getattr(results.sampling, name) for name in names})
    answers = RolloutSampler(env, engine, PromptEncoder(tokenizer)).sample(env.eval_rows[:n], sampling)
    right, before = (sum(bool(each["correct"]) for each in records) for records in (answers.records(), recorded))
    slack = 0 if lossless and device == "cpu" and _is_exact(run) else SLACK
    if abs(right - before) > slack:
        rounding = f"; rounding may change up to {slack} answers; --dtype fp32 avoids rounding" if slack else ""
        raise ExportError(
            f"the export solves {right} of {n} frozen questions, but the run recorded {before} at step {step}{rounding}"
        )
    return f"verified: {right} of {n} frozen questions right, answered greedily; the run recorded {before}"


def _environment(run: RunFolder, recorded: Environment) -> ReasoningGym | str:
    """Rebuild the environment that the run's evaluation rows came from, or return the reason why that is impossible."""
    if run.config().get("imports"):
        return "its problems need custom code (imports), which is not executed here"
    settings, rows = run.arguments()["environment"], run.manifest().get("rows")
    if rows is None or "gym" not in settings:
        return "its problems are not rg_env's, or the run has no manifest of them"
    try:
        env = ReasoningGym(
            gym=settings["gym"],
            num_train_examples=0,
            num_eval_examples=recorded.n,
            eval_seed=rows["splits"]["eval"]["seed"],
            split_by=rows["split_by"],
            system_prompt=settings["system_prompt"],
            prompt_placement=settings["placement"],
            preamble=settings["preamble"],
            grading="upstream" if settings["grading"] == "upstream" else "hardened",  # same accuracy
        )
    except RGEnvError as error:
        return f"its problems cannot be rebuilt: {reason_of(error)}"
    if hash_of_rows(env.eval_rows) != recorded.prompts_sha256:
        return "its problems cannot be rebuilt: their hash differs from the recorded one"
    return env


def _is_exact(run: RunFolder) -> bool:
    """Whether the run's answers are reproducible on a CPU, because the embedded engine generated them there in
    float32."""
    training, outcome = run.arguments()["training"], run.results() or {}
    on_cpu = outcome.get("engine") == "embedded" and training.get("use_cpu")
    return bool(on_cpu and not (training.get("bf16") or training.get("fp16")))
