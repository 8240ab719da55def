"""The run that the doctor is asked about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunPlan:
    """What decides whether a run would start. All defaults are those of `examples/train_ultra_minimal.py`."""

    model: str | None = None
    """Folder, name on the hub, or "tiny"; None: the default for this machine."""
    gym: Any = "leg_counting"
    """Anything `Mixture.parse` takes."""
    num_train_examples: int = 2000
    num_eval_examples: int = 200
    seed: int = 0
    engine: str = "embedded"
    vllm_host: str = "127.0.0.1"
    vllm_port: int = 8000
    processes: int = 1
    """That train together: one a GPU."""
    output_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GRPOConfig` that differ from those of `default_config`; None is no difference."""
    asked: bool = True
    """Whether training was asked for at all: without the `train` extra the environment alone is no failure."""

    @property
    def zero3(self) -> bool:
        """With a server, several processes share the state as `configs/zero3.yaml` has it; the embedded engine cannot
        generate from shards."""
        return self.engine == "vllm" and self.processes > 1

    @property
    def server_is_here(self) -> bool:
        return self.vllm_host in ("127.0.0.1", "localhost", "::1", "0.0.0.0")
