"""The head of a card: what the Hub reads, `model-index` included."""

from collections.abc import Iterator
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from rg_env.core.json_values import dict_of, number_of, text_of, whole_of
from rg_env.core.text import one_line
from rg_env.publish.hub.card_results import named_scores
from rg_env.publish.hub.subject import Subject

_TAGS = ["rg-env", "reasoning-gym", "reinforcement-learning"]


def head(subject: Subject) -> str:
    """The YAML between the lines of three dashes."""
    licence, record = subject.licence, subject.record
    values: dict[str, Any] = {
        "license": licence.id,
        "license_name": licence.name,
        "license_link": licence.link,
        "library_name": "peft" if subject.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*_TAGS, *(["grpo"] if record and record.training else [])],
    }
    if subject.base.on_hub:
        values |= {"base_model": subject.base.name}
        values |= {"base_model_relation": "adapter" if subject.adapter else "finetune"}
    if found := list(_results(subject)):
        values |= {"model_name": one_line(subject.name), "eval_results": found}
    return str(ModelCardData(**{key: value for key, value in values.items() if value is not None}).to_yaml())


def _results(subject: Subject) -> Iterator[EvalResult]:
    after = subject.after
    if after is None or subject.source.rounded_to:  # then they are figures of other weights
        return
    sampling = dict_of(after.get("sampling"))
    for part, name, scores in named_scores(after):
        for field, label in (("accuracy", "accuracy, sampled"), ("greedy_accuracy", "accuracy, greedy")):
            if (value := number_of(scores.get(field))) is None:
                continue
            temperature = number_of(sampling.get("temperature")) if field == "accuracy" else 0.0
            arguments = {
                "n": whole_of(scores.get("n")),
                "standard_error": number_of(scores.get(f"{field}_se")),
                "temperature": temperature,
                "max_tokens": whole_of(sampling.get("max_tokens")),
            }
            hashes = [text_of(dict_of(entry).get("manifest_sha256")) for entry in _asked(after, part, name)]
            yield EvalResult(
                task_type="text-generation",
                dataset_type="reasoning-gym",
                dataset_name=f"Reasoning Gym, {one_line(name)}",
                dataset_config=one_line(name),
                dataset_split="eval",
                dataset_args={"manifest_sha256": hashes[0]} if hashes and hashes[0] else None,
                metric_type="accuracy",
                metric_value=value,
                metric_name=label,
                metric_args={key: each for key, each in arguments.items() if each is not None},
            )


def _asked(evaluation: dict[str, Any], part: str, name: str) -> list[Any]:
    """The entry on what was asked that the task, or the label, belongs to."""
    asked = evaluation.get("questions")
    entries = [dict_of(entry) for entry in asked] if isinstance(asked, list) else []
    found = [entry for entry in entries if entry.get("part") == part]
    if part == "labelled":
        return [entry for entry in found if entry.get("label") == name]
    return [e for e in found if isinstance(tasks := e.get("tasks"), list | dict) and name in tasks]
