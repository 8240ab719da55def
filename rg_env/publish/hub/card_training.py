"""The sections of a card on how the model was trained: base, tasks, data, settings, hardware and time, versions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rg_env.core.data.manifest import split_hash
from rg_env.core.data.splits import Split
from rg_env.core.json_values import dict_of, number_of, text_of, whole_of
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.markdown import block, code, listed, table, text
from rg_env.publish.hub.record import Record
from rg_env.publish.hub.subject import Subject

_SETTINGS = (
    "max_steps", "rollouts_per_step", "per_device_train_batch_size", "num_generations", "num_iterations",
    "learning_rate", "lr_scheduler_type", "optim", "loss_type", "scale_rewards", "beta", "epsilon", "temperature",
    "max_prompt_length", "max_tokens", "seed", "bf16",
)  # fmt: skip
_ADAPTER = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora")


def base(subject: Subject) -> str:
    """What it was trained from, and under which licence that is, in sentences."""
    found, licence = subject.base, subject.licence
    if found.name is None:
        return "No file says which model it was trained from, nor under which licence that is."
    if found.name == TINY:
        shown = "the tiny policy that ships with rg\\_env: a demonstration, not a language model"
    elif found.on_hub:
        shown = f"[{text(found.name)}](https://huggingface.co/{found.name})"
    else:
        shown = f"{code(found.name)}, a folder of the machine that it was trained on"
    if licence.id is None:
        return f"Trained from {shown}. Its licence is not known from its files: look it up before you use this model."
    name = f"{code(licence.id)}{f' ({text(licence.name)})' if licence.name else ''}"
    return f"Trained from {shown}. Licence of the base model: {name}, as {licence.told_by} says."


def tasks(record: Record) -> str:
    """Tasks with their weights, options and levels; and what was asked of the model."""
    rows = []
    for task in record.tasks:
        level = task.get("level")
        levels = dict_of(task.get("levels"))
        told = [*([f"level {level}"] if level is not None else []), *(f"{k} {v}" for k, v in levels.items())]
        options = json.dumps(dict_of(task.get("config")), ensure_ascii=False)
        weight = number_of(task.get("weight"))
        rows.append([
            code(task.get("name")),
            "" if weight is None else f"{weight:g}",
            text(", ".join(told)) if told else "",
            code(options, 400) if options != "{}" else "defaults",
        ])  # fmt: skip
    parts = (
        [table(["task", "weight", "levels", "options"], rows, numbers=False)] if rows else ["The run tells no tasks."]
    )
    if curriculum := dict_of(record.config.get("curriculum")):
        named = ", ".join(code(name) for name in dict_of(curriculum.get("tasks")))
        parts.append(f"The levels of {named} changed while it was trained (a curriculum).")
    if prompt := text_of(record.environment.get("system_prompt")):
        parts += ["System prompt:", block(prompt)]
    rewards = dict_of(record.environment.get("rewards"))
    paid = [f"{code(name)} {weight:g}" for name, weight in rewards.items() if number_of(weight)]
    if paid:
        parts.append(f"Rewards, by weight: {', '.join(paid)}.")
    return "\n\n".join(parts)


def data(record: Record) -> str:
    """How many questions, and their hashes."""
    rows = dict_of(record.manifest.get("rows"))
    if not rows:
        return "The questions are not rg\\_env's own: the run has no manifest of them."
    head, cells = ["split", "questions", "seed", "SHA-256 (tasks, seed, questions, version of reasoning-gym)"], []
    named: tuple[tuple[Split, str], ...] = (("train", "training"), ("eval", "evaluation"))
    for split, name in named:
        part = record.split(split)
        cells.append([name, _whole(part.get("size")), _whole(part.get("seed")), _hash(rows, split)])
    others = record.manifest.get("evaluation_rows")
    for entry in map(dict_of, others if isinstance(others, list) else []):
        part = dict_of(dict_of(entry.get("splits")).get("eval"))
        name = f"evaluation, {code(entry['label'])}" if text_of(entry.get("label")) else "evaluation, held out"
        cells.append([name, _whole(part.get("size")), _whole(part.get("seed")), _hash(entry, "eval")])
    more = "\n\n`run/manifest.json` has the hash of each question; no question is in both splits."
    if imports := dict_of(rows.get("imports")):
        files = ", ".join(code(name) for name in imports)
        more += f" Some tasks are the author's own ({files}): their code is not here."
    return table(head, cells, numbers=False) + more


def settings(subject: Subject) -> str:
    """What was set, and to what it came."""
    record = subject.record
    assert record is not None
    training = record.training
    rows = [(code(name), code(training[name])) for name in _SETTINGS if training.get(name) is not None]
    if adapter := subject.adapter:
        rows += [(code(f"lora: {name}"), code(_short(adapter[name]))) for name in _ADAPTER if name in adapter]
    if record.grading is not None:
        rows.append((code("grading"), code(record.grading)))
    if engine := text_of(record.results.get("engine")):
        rows.append((code("engine"), code(engine)))
    return listed(rows) + "\n\nAll of them: `run/config.yaml`." if rows else "The run tells no settings."


def machine(subject: Subject) -> str:
    """Hardware, time, memory and versions."""
    record = subject.record
    assert record is not None
    return listed(list(_machine(record)))


def _machine(record: Record) -> Iterator[tuple[str, str]]:
    hardware = dict_of(record.manifest.get("hardware"))
    gpus = hardware.get("gpus")
    if not hardware:
        yield "hardware", "not recorded"
    else:
        named = [text(name) for name in gpus if text_of(name)] if isinstance(gpus, list) else []
        yield "GPUs", ", ".join(f"{named.count(name)} x {name}" for name in dict.fromkeys(named)) or "none"
        yield "CPU cores", _whole(hardware.get("cpu_count")) or "not recorded"
        yield "processes", _whole(hardware.get("processes")) or "not recorded"
    seconds, resumed = number_of(record.results.get("seconds")), text_of(record.results.get("resumed_from"))
    label = "time since it was resumed" if resumed else "time"
    yield label, f"{seconds:,.0f} s" if seconds is not None else "not known: the run was going on"
    for name, label in (("memory/peak_gpu_gb", "peak memory of a GPU"), ("memory/peak_rss_gb", "peak memory")):
        if (peak := record.peak(name)) is not None:
            yield label, f"{peak:.3f} GB"
    if resumed:
        yield "resumed from", code(resumed.rstrip("/").rpartition("/")[2])
    versions: Mapping[str, Any] = dict_of(record.manifest.get("versions"))
    if told := [f"{text(name)} {text(version)}" for name, version in versions.items()]:
        yield "versions", ", ".join(told)
    for name in ("python", "platform"):
        if value := text_of(record.manifest.get(name)):
            yield name, text(value)


def _hash(rows: Mapping[str, Any], split: Split) -> str:
    try:
        return code(split_hash(rows, split))
    except (KeyError, TypeError):  # edited, or of another version
        return ""


def _whole(value: object) -> str:
    found = whole_of(value)
    return "" if found is None else str(found)


def _short(value: object) -> str:
    if isinstance(value, list):
        names = sorted(map(str, value))
        return ", ".join(names)
    return str(value)
