"""Tests of the accelerate files in configs/, with accelerate's own loader."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("accelerate", reason="needs the train extra")
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from rg_env.inference.vllm.command import serve_command

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = ["zero3.yaml", "zero3_cpu.yaml", "zero3_multinode.yaml", "ddp.yaml", "fsdp2.yaml", "fsdp2_cpu.yaml",
         "single_gpu.yaml"]  # fmt: skip

# Settings that `accelerate launch` otherwise guesses or asks for.
REQUIRED = {
    "compute_environment",
    "debug",
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
def test_files_are_complete_and_load_as_written(name: str) -> None:
    written: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    assert set(written) >= REQUIRED
    loaded = load(name).to_dict()
    assert {key: loaded[key] for key in written} == written


def test_every_file_is_tested() -> None:
    """base.yaml is not an accelerate file; tests/training/test_configs.py covers it."""
    assert {path.name for path in CONFIGS.glob("*.yaml")} - {"base.yaml"} == set(FILES)


def test_the_commands_in_the_heads_start_a_server_that_takes_weights() -> None:
    """Only servers started with rg_env's own command accept weights."""
    for name in ("zero3.yaml", "zero3_multinode.yaml"):
        head = " ".join((CONFIGS / name).read_text().replace("#", " ").replace("\\", " ").split())
        for host in ("127.0.0.1", "10.0.0.1"):
            head = head.replace(host, "HOST")
        assert f".venv/bin/{' '.join(serve_command('Qwen/Qwen2.5-7B-Instruct')).replace('127.0.0.1', 'HOST')}" in head


def test_the_launcher_asks_for_zero_3() -> None:
    """Accumulation and clipping are left to the training arguments: a number that differs from them ends the run, and
    'auto' fails in accelerate's int()."""
    config = load("zero3.yaml")
    assert str(config.distributed_type) in ("DEEPSPEED", "DistributedType.DEEPSPEED")
    assert config.deepspeed_config["zero_stage"] == 3
    assert config.deepspeed_config["zero3_save_16bit_model"] is True, "else a save writes shards only"
    assert not {"gradient_accumulation_steps", "gradient_clipping"} & set(config.deepspeed_config)


CPU = {"use_cpu": True, "num_processes": 2, "mixed_precision": "no"}
NODES = {"num_machines": 2, "num_processes": 14, "main_process_ip": "10.0.0.1", "main_process_port": 29500}
FSDP = {"distributed_type": "FSDP", "deepspeed_config": None, "fsdp_config": {"fsdp_version": 2}}


def differences(name: str) -> dict[str, Any]:
    """Return the settings of a file that differ from zero3.yaml."""
    gpu, other = (yaml.safe_load((CONFIGS / file).read_text()) for file in ("zero3.yaml", name))
    return {key: other.get(key) for key in gpu.keys() | other.keys() if gpu.get(key) != other.get(key)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero3_cpu.yaml", CPU),
        ("zero3_multinode.yaml", NODES),
        ("ddp.yaml", {"distributed_type": "MULTI_GPU", "deepspeed_config": None}),
        ("fsdp2.yaml", FSDP),
        ("fsdp2_cpu.yaml", FSDP | CPU),
        ("single_gpu.yaml", {"distributed_type": "NO", "deepspeed_config": None, "num_processes": 1}),
    ],
)
def test_the_other_files_differ_only_where_they_must(name: str, expected: dict[str, Any]) -> None:
    """zero3.yaml is the reference, and explains the settings."""
    assert differences(name) == expected
