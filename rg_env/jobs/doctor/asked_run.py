"""One finding of the doctor, and how it is shown.

The run that the doctor is asked about.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rg_env.training.config.schema import TrainConfig

_KEYS = {
    "model": "model.name",
    "task": "tasks",
    "engine": "engine.kind",
    "vllm-host": "engine.host",
    "vllm-port": "engine.port",
    "per-device-batch-size": "training.per_device_train_batch_size",
    "rollouts-per-step": "training.rollouts_per_step",
    "max-prompt-length": "training.max_prompt_length",
    "max-tokens": "training.max_tokens",
}
"""By option of the command: what says the same in a config."""
_OPTION = re.compile(rf"--({'|'.join(_KEYS)})\b(?: (\d+|embedded|vllm)\b)?")


@dataclass(frozen=True)
class AskedRun:
    """What decides whether a run would start. All defaults are those of `examples/train_ultra_minimal.py`."""

    model: str | None = None
    """Folder, name on the hub, or "tiny"; None: the default for this machine."""
    gym: Any = "leg_counting"
    """Anything `Mixture.parse` takes."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of `load_environment`."""
    engine: str = "embedded"
    vllm_host: str = "127.0.0.1"
    vllm_port: int = 8000
    processes: int = 1
    """That train together: one a GPU."""
    output_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GRPOConfig` that differ from those of `default_config`; None is no difference."""
    evaluated: Sequence[tuple[str | None, Mapping[str, Any]]] = ()
    """What is evaluated beside the training tasks: label and arguments of `load_environment` of each environment."""
    evaluated_tokens: int = 0
    """New ones at most in evaluations, where those have a limit of their own."""
    evaluated_answers: int = 2
    """To each question of an evaluation; 0: none is made."""
    lora_rank: int = 0
    """Of the adapters that are trained instead of all weights; 0: all weights are."""
    frozen_bytes: int = 4
    """Of a weight beside adapters."""
    uploads: str | None = None
    """The repository on the Hub that the run is published in; None: nowhere."""
    asked: bool = True
    """Whether training was asked for at all: without the `train` extra the environment alone is no failure."""
    from_config: bool = False
    """Whether it is a config's run: fixes then name its keys, not the command's options."""

    @classmethod
    def of(cls, config: TrainConfig, processes: int) -> "AskedRun":
        """The run that a config describes."""
        evaluation = config.evaluation
        made = evaluation.before or evaluation.after or evaluation.every != 0
        return cls(
            model=config.model.name,
            gym=config.gym,
            environment=config.environment_arguments(),
            engine=config.engine.kind,
            vllm_host=config.engine.host,
            vllm_port=config.engine.port,
            processes=processes,
            output_dir=config.output.dir,
            settings={**config.grpo_config().model_dump(), "report_to": config.logging.report_to},
            evaluated=config.evaluation_environments(),
            evaluated_tokens=evaluation.max_tokens or 0,
            evaluated_answers=evaluation.rollouts_per_example + evaluation.greedy if made else 0,
            lora_rank=config.lora.r if config.lora else 0,
            frozen_bytes=2 if config.model.dtype == "bfloat16" else 4,
            uploads=config.hub.repo_id if config.hub.enabled else None,
            from_config=True,
        )

    def worded(self, fix: str) -> str:
        """A fix in the words in which this run was given."""
        if not self.from_config:
            return fix
        return _OPTION.sub(lambda found: _KEYS[found[1]] + (f"={found[2]}" if found[2] else ""), fix)

    @property
    def zero3(self) -> bool:
        """With a server, several processes share the state as `configs/zero3.yaml` has it; the embedded engine cannot
        generate from shards."""
        return self.engine == "vllm" and self.processes > 1

    @property
    def server_is_here(self) -> bool:
        return self.vllm_host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")


Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it.

    "failed" would stop the run, "warning" would let it go on worse than it could, or not as meant.
    """

    name: str
    status: Status
    finding: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.status == "failed" and not self.fix:
            raise ValueError(f"the failed check {self.name!r} has no fix")

    def line(self) -> str:
        """One line, whatever an error's text holds."""
        text = f"{self.finding}; fix: {self.fix}" if self.fix else self.finding
        return f"{self.status:<8} {self.name:<13} {' '.join(text.split())}"


def closing_line(checks: Sequence[Check]) -> str:
    """How many there are of each kind."""
    count = {status: sum(check.status == status for check in checks) for status in ("ok", "warning", "failed")}
    plural = "" if count["warning"] == 1 else "s"
    return f"{count['ok']} ok, {count['warning']} warning{plural}, {count['failed']} failed"


def as_json(checks: Iterable[Check]) -> str:
    return json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False)


def gigabytes(size: float) -> str:
    """Bytes as text: 10^9 each, as GPUs and disks are sold."""
    if size < 9.5e8:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"
