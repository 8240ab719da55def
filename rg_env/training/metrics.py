"""What the trainer logs, under the field's names. The parent logs `rewards/<name>` and loops over tokens in Python."""

import statistics
from typing import Any

import torch

from rg_env.training.advantages import equal_rewards
from rg_env.training.batches import RolloutBatch
from rg_env.training.records import task_of


def log_batch(trainer: Any, result: Any, batch: RolloutBatch) -> None:
    """Rewards, accuracies, lengths and texts of a batch of rollouts. On the main process only."""
    values = trainer._metrics["train"]
    groups = torch.tensor(batch.rewards, dtype=torch.float32).view(-1, trainer.num_generations)
    found = {
        "reward": groups.mean().item(),
        "reward_std": groups.std(dim=1).mean().item(),
        "frac_reward_zero_std": equal_rewards(groups).float().mean().item(),
        "entropy": batch.entropy(),
        "time/generation": result.generation_time,  # rewards included; before the step, where batches are made ahead
        **trainer.sampler.metrics(),
        **_accuracies(result.outputs),
        **_lengths(trainer, batch),
        **(trainer.curriculum.metrics() if trainer.curriculum else {}),
    }
    for name, rewards in result.all_reward_dict.items():
        if name != "reward" and not name.startswith("accuracy"):
            column = torch.as_tensor(rewards, dtype=torch.float32)
            found |= {f"rewards/{name}/mean": column.mean().item(), f"rewards/{name}/std": column.std().item()}
    for name, value in found.items():
        values[name].append(value)
    count_tokens(trainer, batch)
    trainer._log_textual_data_primary(result.prompts, result.completions, result.all_reward_dict)


def count_tokens(trainer: Any, batch: RolloutBatch) -> None:
    """Count the tokens of rollouts that were made. On the main process only."""
    tokens = sum(map(len, [*batch.prompt_ids, *batch.completion_ids]))
    trainer.meter.batch(tokens)
    trainer.state.num_input_tokens_seen += tokens
    trainer._metrics["train"]["num_tokens"] = [trainer.state.num_input_tokens_seen]


def log_loss(
    trainer: Any,
    keep: torch.Tensor,
    clipped: torch.Tensor,
    kl: torch.Tensor | None,
    log_ratio: torch.Tensor | None,
    lost: torch.Tensor | None,
) -> None:
    """Clipping, KL and the sampler's mismatch over the tokens (B, T) that carry loss, and the share of rows (B,) that
    are off-policy. A collective act."""
    tokens = keep.sum().clamp(min=1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (values * keep).sum() / tokens

    found = {"clip_ratio/low": mean(clipped < 0), "clip_ratio/high": mean(clipped > 0)}
    found["clip_ratio/region"] = mean(clipped != 0)
    if kl is not None:
        found["kl"] = mean(kl.detach())
    if lost is not None:
        found["off_policy_masked"] = lost.float().mean()
    if log_ratio is not None:
        ratio = torch.exp(log_ratio)
        found |= {
            "sampling/importance_sampling_ratio/mean": mean(ratio),
            "sampling/importance_sampling_ratio/max": (ratio * keep).max(),
            "sampling/mismatch_kl": mean(ratio - log_ratio - 1),
            "sampling/logp_difference": mean(log_ratio.abs()),
        }
    everywhere = trainer.accelerator.gather(torch.stack([value.float() for value in found.values()]))
    everywhere = everywhere.view(-1, len(found)).cpu()
    values = trainer._metrics["train"]
    for name, column in zip(found, everywhere.T, strict=True):
        if not name.startswith("clip_ratio/"):
            values[name].append(column.max().item() if name.endswith("/max") else column.mean().item())
            continue
        values[f"{name}_mean"].append(column.mean().item())
        if name != "clip_ratio/region":
            extreme, word = (column.min(), "min") if name == "clip_ratio/low" else (column.max(), "max")
            values[f"{name}_{word}"].append(extreme.item())


def _accuracies(outputs: Any) -> dict[str, float]:
    """`accuracy` and, for mixtures, `accuracy/<task>` of verifiers' `GenerateOutputs`; empty if the rubric has none."""
    correct = outputs.metrics.get("accuracy")
    if not correct:
        return {}
    by_task: dict[str, list[float]] = {}
    for info, value in zip(outputs.info, correct, strict=True):
        by_task.setdefault(task_of(info), []).append(value)
    result = {"accuracy": sum(correct) / len(correct)}
    if len(by_task) > 1:
        result |= {f"accuracy/{task}": sum(values) / len(values) for task, values in sorted(by_task.items())}
    return result


def _lengths(trainer: Any, batch: RolloutBatch) -> dict[str, float]:
    lengths = [sum(mask) for mask in batch.loss_masks]
    whole = batch.ended(trainer.processing_class.eos_token_id)
    ended = [length for length, is_whole in zip(lengths, whole, strict=True) if is_whole]
    found = {"completions/clipped_ratio": 1 - len(ended) / len(lengths)}
    for name, some in (("", lengths), ("_terminated", ended or [0])):
        found[f"completions/mean{name}_length"] = statistics.fmean(some)
        found[f"completions/min{name}_length"] = float(min(some))
        found[f"completions/max{name}_length"] = float(max(some))
    return found
