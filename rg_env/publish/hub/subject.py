"""What a card is about: the model that is published, the run that left it, and where it will be."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rg_env.core.hub_names import repo_problem
from rg_env.core.json_values import dict_of, read_json, text_of, whole_of
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.licence import UNKNOWN, Licence
from rg_env.publish.hub.record import Record
from rg_env.publish.hub.source import Source
from rg_env.tiny import POLICY_DIR
from rg_env.training.hub_uploads import OptimizerState


@dataclass(frozen=True)
class Base:
    """The model that training began with."""

    name: str | None
    """As a card shows it; None: nothing says."""
    on_hub: bool = False
    """Whether that is a name on the Hub."""
    folder: Path | None = None
    """Where it lies, of a model on this machine."""


@dataclass(frozen=True)
class Subject:
    """What a card is about."""

    repo_id: str
    source: Source
    record: Record | None
    """None: no run left it."""
    optimizer_state: OptimizerState
    revision: str | None = None
    licence: Licence = UNKNOWN

    @property
    def name(self) -> str:
        return self.repo_id.partition("/")[2]

    @cached_property
    def base(self) -> Base:
        return _base_of(self.source, self.record)

    @property
    def adapter(self) -> dict[str, Any]:
        """adapter_config.json; empty if all weights are there."""
        file = self.source.folder / "adapter_config.json"
        return dict_of(read_json(file)) if file.is_file() else {}

    @property
    def after(self) -> dict[str, Any] | None:
        """The evaluation of the published weights."""
        return self.record.at(self.source.step) if self.record else None

    @property
    def last_step(self) -> int | None:
        """Where the run ended; None while it goes on."""
        return whole_of(self.record.results.get("steps")) if self.record else None


def _base_of(source: Source, record: Record | None) -> Base:
    """The model that the weights of `source` were trained from, as far as files say."""
    raw = record.model if record else None
    if raw is None and (source.folder / "adapter_config.json").is_file():
        raw = text_of(dict_of(read_json(source.folder / "adapter_config.json")).get("base_model_name_or_path"))
    if not raw:
        return Base(None)
    if raw in (TINY, str(POLICY_DIR)):
        return Base(TINY)
    folder = Path(raw).expanduser()
    if folder.is_dir() or os.path.isabs(raw) or repo_problem(raw):
        return Base(folder.name or raw, folder=folder)
    return Base(raw, on_hub=True)
