"""What the files of a run say, and which run it is.

A card is written from this alone. What a file does not say is None here, and not in the card.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.json_values import dict_of, json_lines, number_of, read_json, text_of, whole_of
from rg_env.errors import InputError

_OWN_FOLDERS = (("output", "dir"), ("training", "output_dir"), ("training", "logging_dir"))
"""Where the run wrote on its machine, in its config."""
_PATH = re.compile(r"/[^/\s]+/\S+")
"""Not "/", which is an operator, nor "/no_think", which is a prompt."""
_TEXTS = ("prompt", "environment", "system_prompt", "preamble")


@dataclass(frozen=True)
class Record:
    """A run, by its files."""

    folder: Path
    model: str | None
    """What was trained, as the config names it: a name on the hub, "tiny", a folder."""
    config: dict[str, Any]
    """config.yaml, as it is published (see `publishable`)."""
    arguments: dict[str, Any]
    """What it came to: model, environment, training. In arguments.yaml of runs from a config, else in config.yaml."""
    manifest: dict[str, Any]
    results: dict[str, Any]
    """train_results.json; empty while the run goes on."""
    evaluations: list[dict[str, Any]]
    """Those in eval_results, by step, each with its rollouts."""
    notes: list[str] = field(default_factory=list)
    """What is damaged, and was left out."""

    @cached_property
    def id(self) -> str:
        """The same for a run wherever its folder is, and while it goes on; another one for each run.

        Hex SHA-256 of its config, its rows and the first line of its metrics, which has times in it.
        """
        try:
            with (self.folder / "metrics.jsonl").open("rb") as lines:
                first = lines.readline()
        except OSError:
            first = b""
        told = json.dumps([self.config, self.manifest.get("rows")], sort_keys=True, ensure_ascii=True).encode()
        return hashlib.sha256(hashlib.sha256(told).digest() + hashlib.sha256(first).digest()).hexdigest()

    @property
    def training(self) -> dict[str, Any]:
        return dict_of(self.arguments.get("training"))

    @property
    def environment(self) -> dict[str, Any]:
        return dict_of(self.arguments.get("environment"))

    @property
    def grading(self) -> str | None:
        """ "hardened", "partial" or "upstream"."""
        return text_of(self.config.get("grading")) or text_of(self.environment.get("grading"))

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """Those it was trained on, with weight, config and levels, as the manifest has them."""
        tasks = dict_of(self.manifest.get("rows")).get("tasks")
        return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []

    def split(self, name: str) -> dict[str, Any]:
        """Seed, size and hash of the "train" or the "eval" rows."""
        return dict_of(dict_of(dict_of(self.manifest.get("rows")).get("splits")).get(name))

    @property
    def before(self) -> dict[str, Any] | None:
        """The evaluation before the first step."""
        first = self.evaluations[0] if self.evaluations else None
        return first if first and first["step"] == 0 else None

    def at(self, step: int | None) -> dict[str, Any] | None:
        """The evaluation after that step."""
        return next((each for each in self.evaluations if each["step"] == step), None)

    def peak(self, name: str) -> float | None:
        """The largest value of a metric; None: it was not logged."""
        lines = json_lines(self.folder / "metrics.jsonl") if (self.folder / "metrics.jsonl").is_file() else iter(())
        values = [value for line in lines if (value := number_of(dict_of(line).get(name))) is not None]
        return max(values, default=None)


def read_record(folder: Path) -> Record:
    """The record of the run in `folder`.

    Raises:
        InputError: its config or manifest is damaged, or a file cannot be read.
    """
    notes: list[str] = []
    config = _required(folder / "config.yaml", read_yaml)
    manifest = _required(folder / "manifest.json", read_json) if (folder / "manifest.json").exists() else {}
    arguments = read_yaml(folder / "arguments.yaml") if (folder / "arguments.yaml").is_file() else config
    results: dict[str, Any] | None = {}
    if (folder / "train_results.json").is_file():
        results = read_json(folder / "train_results.json")
    for name, value in (("arguments.yaml", arguments), ("train_results.json", results)):
        if value is None:
            notes.append(f"{name} is damaged: left out of the card")
    evaluations = []
    for file in sorted(folder.glob("eval_results/eval_step_*.json")):
        found = read_json(file)
        if found is None or whole_of(found.get("step")) is None or not isinstance(found.get("tasks"), dict):
            notes.append(f"eval_results/{file.name} is damaged: left out of the card")
        else:
            evaluations.append(found)
    named = config.get("model")
    return Record(
        folder=folder,
        model=text_of(named) or text_of(dict_of(named).get("name")),
        config=publishable(config),
        arguments=publishable(arguments or config),
        manifest=manifest,
        results=results or {},
        evaluations=sorted(evaluations, key=lambda each: each["step"]),
        notes=notes,
    )


def publishable(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config, or of results, without folders of this machine: those it wrote to are left out, of others
    the last part stays. Without uploads, too: who trains by the config of another does not publish in their place."""
    plain: dict[str, Any] = _without_paths({key: value for key, value in values.items() if key != "hub"})
    for section, key in _OWN_FOLDERS:
        if isinstance(part := plain.get(section), dict):
            part.pop(key, None)
    return plain


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: each if key in _TEXTS else _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if isinstance(value, str) and _PATH.fullmatch(value):
        return os.path.basename(value.rstrip("/"))
    return value


def read_yaml(file: Path) -> dict[str, Any] | None:
    """The mapping in a file; None: damaged. Raises `InputError`: it cannot be read."""
    try:
        values = yaml12.load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError):
        return None
    return values if isinstance(values, dict) else None


def _required(file: Path, reader: Callable[[Path], dict[str, Any] | None]) -> dict[str, Any]:
    found = reader(file)
    if found is None:
        raise InputError(f"{file} is damaged: without it nothing can be said of the run; copy the run's folder again")
    return found
