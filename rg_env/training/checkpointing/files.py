"""Names of a checkpoint's files, and its weights, inspected through their safetensors headers.

Importing this module does not import torch, so commands that publish or inspect a folder start quickly.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rg_env.core.run_folder import read_json
from rg_env.core.text import is_count, one_line, reason_of
from rg_env.errors import InputError

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
OPTIMIZER_FILE, SCALER_FILE = "optimizer.pt", "scaler.pt"
OPTIMIZER_FOLDER = "optimizer"
"""Folder with the optimizer's state under FSDP2, written by torch.distributed.checkpoint."""

Shapes = dict[str, tuple[int, ...]]


def saved_step(folder: Path) -> int | None:
    """Return the step recorded in trainer_state.json in `folder`, or None if the file or the step is missing.

    Raises:
        InputError: the file is damaged or unreadable.
    """
    file = folder / "trainer_state.json"
    step = read_json(file).get("global_step") if file.is_file() else None
    return step if is_count(step) else None


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return a list containing the file `name` in `folder`, or the files listed in its index. The list is empty if
    neither exists.

    If the file and its index both exist, the index is ignored, as in transformers.

    Raises:
        InputError: the index is damaged, or lists files that are not in `folder`.
    """
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index} cannot be read, or is not a weight index: copy it again") from error
    if missing:
        raise InputError(f"{folder} lacks {one_line(missing[0])}, which is listed in {index.name}: copy the file again")
    return [folder / name for name in names]


def read_shapes(folder: Path, name: str) -> Shapes:
    """Return the shapes of the weights in the file `name`, or in the files in its index. Empty if neither exists.

    Raises:
        InputError: the weights cannot be read.
    """
    found: Shapes = {}
    for file in weight_files(folder, name):
        try:
            with safe_open(file, framework="np") as weights:  # opening the file checks its length against its header
                found |= {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} cannot be read: {reason_of(error)}") from error
    return found


def weights_problem(folder: Path, model: Any) -> str | None:
    """Return the reason the files in `folder` are not the complete, unsharded weights of `model`, or None if they are.

    For a model with an adapter, only the adapter's weights are required. Tied weights need to be stored only once.
    `model` may be sharded.
    """
    name = weights_name(model)
    try:
        found = read_shapes(folder, name)
    except InputError as error:
        return str(error)
    if not found:
        return f"it does not contain {name}"
    if empty := [key for key, shape in found.items() if 0 in shape]:
        return f"{empty[0]} is empty"
    parameters = stored_parameters(model)
    present = {id(parameter) for key, parameter in parameters.items() if key in found}
    for key, parameter in parameters.items():
        if id(parameter) not in present:
            return f"{key} is missing"
        if key in found and found[key] != (shape := full_shape(parameter)):
            return f"{key} has the shape {found[key]} in {name}, but {shape} in the model"
    return None


def weights_name(model: Any) -> str:
    """Return the name of the checkpoint file that contains `model`'s weights."""
    return WEIGHTS if getattr(model, "peft_config", None) is None else ADAPTER


def full_shape(parameter: Any) -> tuple[int, ...]:
    """Return the full shape of a parameter, even if the parameter is sharded."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def stored_parameters(model: Any) -> dict[str, Any]:
    """Return the weights in a checkpoint of `model` by their names in the file. Tied adapters appear under each of
    their names.

    With adapters, the values are the parameters. Otherwise, they are tensors without data, because transformers saves
    models in the Hub's layout: it renames, splits and merges weights when it saves a model, and converts them back when
    it loads one. `model` may be sharded.
    """
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    if getattr(model, "peft_config", None) is None:
        ignored = {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}
        state = {name: each for name, each in model.state_dict(keep_vars=True).items() if name not in ignored}
        empty = {name: torch.empty(full_shape(each), dtype=each.dtype, device="meta") for name, each in state.items()}
        return dict(revert_weight_conversion(model, empty))
    from peft import get_peft_model_state_dict

    parameters = dict(model.named_parameters(remove_duplicate=False))
    marks = {name: torch.empty(0, device="meta") for name in parameters}
    by_mark = {id(mark): parameters[name] for name, mark in marks.items()}
    saved = get_peft_model_state_dict(model, state_dict=marks, save_embedding_layers=False)
    # Prompt learning saves embeddings that PEFT computes from its parameters.
    return {name: by_mark.get(id(value), value) for name, value in saved.items()}
