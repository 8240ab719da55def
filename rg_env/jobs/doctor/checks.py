"""Input and output of the doctor: a `PlannedRun`, and one `Check` per aspect."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rg_env.core.config.files import Document, overridden
from rg_env.core.config.parsing import parse_config
from rg_env.core.text import counted
from rg_env.training.config.grpo import default_fields
from rg_env.training.config.schema import TrainConfig


@dataclass(frozen=True)
class PlannedRun:
    """A training run planned for this machine."""

    config: TrainConfig
    processes: int = 1
    """Number of training processes, one per GPU."""
    given: frozenset[str] | None = None
    """Config keys set by options, for a run without a config file."""

    @classmethod
    def of_options(cls, given: Mapping[str, Any], processes: int = 1) -> "PlannedRun":
        """Make a run from a mapping of config keys to values. Raises `InputError` if they are invalid."""
        document = Document({"model": {"name": "tiny"}, "tasks": ["leg_counting"]}, Path("the options"))
        overrides = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        return cls(parse_config(overridden(document, overrides), TrainConfig), processes, frozenset(given))

    def with_model(self, name: str) -> "PlannedRun":
        """Return a copy of this run that uses the model `name`. The model's training defaults apply to fields that no
        option sets."""
        model = self.config.model.model_copy(update={"name": name})
        defaults = default_fields(name == "tiny") | self.config.training.model_dump(exclude_unset=True)
        training = self.config.training.model_copy(update=defaults)
        return replace(self, config=self.config.model_copy(update={"model": model, "training": training}))

    @property
    def requested(self) -> bool:
        """Whether options or a config describe a run; otherwise, a missing `train` extra is not a failure."""
        return self.given is None or bool(self.given) or self.processes > 1

    @property
    def uses_vllm(self) -> bool:
        return self.config.engine.kind == "vllm"

    @property
    def zero3(self) -> bool:
        """Whether processes shard the model's state as in `configs/zero3.yaml`. This requires a server, because the
        embedded engine cannot generate from shards."""
        return self.uses_vllm and self.processes > 1

    @property
    def server_is_local(self) -> bool:
        return self.config.engine.host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")

    @property
    def evaluation_tokens(self) -> int:
        """Maximum number of new tokens per completion in evaluations."""
        return self.config.evaluation.max_tokens or self.config.training.max_tokens


Status = Literal["ok", "skipped", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """Result of a check, with a finding and a fix. "failed" means that the run would not start; "warning", that it
    would run less efficiently, or not as intended."""

    name: str = field(default="", kw_only=True)
    """Name of the aspect, set by `diagnose`."""
    status: Status
    finding: str
    fix: str = ""

    @classmethod
    def combined(cls, *checks: "Check") -> "Check":
        """Combine the checks with the worst status into one."""
        worst = max((check.status for check in checks), key=get_args(Status).index)
        parts = [check for check in checks if check.status == worst]
        fixes = dict.fromkeys(check.fix for check in parts if check.fix)
        return cls(worst, "; ".join(check.finding for check in parts), "; ".join(fixes))

    def line(self) -> str:
        """Format the check as one line, even if an error's text has several."""
        text = f"{self.finding}; fix: {self.fix}" if self.fix else self.finding
        return f"{self.status:<8} {self.name:<13} {' '.join(text.split())}"


def closing_line(checks: Sequence[Check]) -> str:
    """Format the number of checks with each status as one line."""
    count = {status: sum(check.status == status for check in checks) for status in ("ok", "warning", "failed")}
    return f"{count['ok']} ok, {counted(count['warning'], 'warning')}, {count['failed']} failed"


def as_json(checks: Iterable[Check]) -> str:
    return json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False)


def gigabytes(size: float) -> str:
    """Format bytes in decimal units (1 GB is 10^9 bytes), as GPU and disk vendors do."""
    if size < 9.5e8:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"
