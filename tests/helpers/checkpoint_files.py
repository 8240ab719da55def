"""Model folders and DeepSpeed checkpoints, written by one process and without a trainer.

`tests/publish/test_real_shards.py` reads files that were actually written by DeepSpeed.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rg_env.tiny import POLICY_DIR

State = Mapping[str, torch.Tensor]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class Bomb:
    """Object whose pickle creates the file `target` when it is loaded."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self) -> Any:
        return (os.system, (f"touch '{self.target}'",))


def with_config(folder: Path, model: Any) -> Path:
    """Add the model's configuration and the tiny policy's tokenizer to `folder`, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    values |= {"architectures": [type(model).__name__], "dtype": str(model.dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(values))
    for name in TOKENIZER:
        shutil.copyfile(POLICY_DIR / name, folder / name)
    return folder


def save_whole(folder: Path, model: Any, changed: Mapping[str, Any] | None = None) -> Path:
    """Save a model folder with all weights in one file; `changed` weights replace the model's weights, and None removes
    them."""
    state = {**weights(model), **(changed or {})}
    with_config(folder, model)
    torch.save({name: value for name, value in state.items() if value is not None}, folder / "pytorch_model.bin")
    return folder


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all parameters, including tied parameters only once."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def tied(model: nn.Module) -> dict[str, str]:
    """Return a mapping from each tied name to the name of the shared parameter."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            found[name] = first[id(parameter)]
    return found


def write_zero(
    folder: Path,
    state: State,
    *,
    stage: int,
    processes: int,
    shared: Mapping[str, str] | None = None,
    frozen: Sequence[str] = (),
) -> Path:
    """Write `global_step5` and `latest` in `folder`, and return the former."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    shards = folder / "global_step5"
    shards.mkdir(parents=True)
    (folder / "latest").write_text("global_step5")
    trained = {name: value.float() for name, value in state.items() if name not in frozen}
    kept = {**state, **{name: state[of] for name, of in (shared or {}).items()}}
    head = {
        "module": {name: torch.empty(0) if stage == 3 else value for name, value in kept.items()},
        "buffer_names": [],
        "param_shapes": [{name: value.shape for name, value in trained.items()}],
        "frozen_param_shapes": {name: state[name].shape for name in frozen},
        "shared_params": dict(shared or {}),
        "mp_world_size": 1,
        "dp_world_size": processes,
        "ds_version": "0.19.8",
    }
    for rank in range(processes if stage == 3 else 1):
        fragments = {n: _split(state[n].flatten(), processes)[rank] if stage == 3 else state[n] for n in frozen}
        name = f"zero_pp_rank_{rank}_mp_rank_00" if stage == 3 else "mp_rank_00"
        torch.save({**head, "frozen_param_fragments": fragments}, shards / f"{name}_model_states.pt")
    flat = [value.flatten() for value in trained.values()]
    padding = torch.full((-sum(map(len, flat)) % (2 * processes),), math.nan)
    for rank in range(processes):
        optimizer: dict[str, Any] = {"zero_stage": ZeroStageEnum(stage), "loss_scaler": LossScaler()}
        if stage == 3:  # a part of each parameter
            part = torch.cat([_split(value, processes)[rank] for value in flat])
            optimizer |= {"partition_count": processes, "fp32_flat_groups": [part]}
        else:  # a part of all parameters, concatenated
            part = _split(torch.cat([*flat, padding]), processes)[rank]
            optimizer |= {"partition_count": [processes], "single_partition_of_fp32_groups": [part]}
        optimizer["base_optimizer_state"] = {"state": {0: {"exp_avg": torch.zeros_like(part)}}}
        path = shards / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer, "ds_version": "0.19.8"}, path)
    return shards


def _split(vector: torch.Tensor, processes: int) -> list[torch.Tensor]:
    share = -(-vector.numel() // processes)
    padded = torch.cat([vector, vector.new_full((share * processes - vector.numel(),), math.nan)])
    return [part.clone() for part in padded.split(share)]
