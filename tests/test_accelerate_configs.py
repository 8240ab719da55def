"""The accelerate files in configs/, through accelerate's own loader."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("accelerate", reason="extra 'train'")
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = ["zero3.yaml", "zero3_cpu.yaml"]

# What `accelerate launch` otherwise guesses or asks for.
REQUIRED = {
    "compute_environment",
    "debug",
    "deepspeed_config",
    "distributed_type",
    "downcast_bf16",
    "machine_rank",
    "main_training_function",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "rdzv_backend",
    "same_network",
    "use_cpu",
}


def load(name: str) -> ClusterConfig:
    return load_config_from_file(str(CONFIGS / name))


@pytest.mark.parametrize("name", FILES)
def test_it_is_complete_and_loads_as_written(name: str) -> None:
    written: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    assert set(written) >= REQUIRED
    loaded = load(name).to_dict()
    assert {key: loaded[key] for key in written} == written


@pytest.mark.parametrize("name", FILES)
def test_the_launcher_asks_for_zero_3(name: str) -> None:
    config = load(name)
    assert str(config.distributed_type) in ("DEEPSPEED", "DistributedType.DEEPSPEED")
    assert config.deepspeed_config["zero_stage"] == 3
    assert config.deepspeed_config["zero3_save_16bit_model"] is True, "else a save writes shards only"


@pytest.mark.parametrize("name", FILES)
def test_accumulation_and_clipping_are_left_to_the_training_arguments(name: str) -> None:
    """A number that differs from the arguments' ends the run; 'auto' makes accelerate's int() fail."""
    assert not {"gradient_accumulation_steps", "gradient_clipping"} & set(load(name).deepspeed_config)


def test_the_cpu_file_differs_only_in_what_a_cpu_needs() -> None:
    gpu, cpu = (yaml.safe_load((CONFIGS / name).read_text()) for name in FILES)
    assert {key for key in gpu.keys() | cpu.keys() if gpu.get(key) != cpu.get(key)} == {
        "mixed_precision",
        "num_processes",
        "use_cpu",
    }
    assert (cpu["use_cpu"], cpu["num_processes"], cpu["mixed_precision"]) == (True, 2, "no")
