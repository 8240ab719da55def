"""What weights a folder holds, by the heads of its safetensors files, and whether they are a model's.

Imports no torch: what is published is looked at without it.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rg_env.core.run_folder import read_json
from rg_env.core.text import is_count, one_line
from rg_env.errors import InputError


def saved_step(folder: Path) -> int | None:
    """The step in the trainer_state.json of `folder`; None without such a file or step.

    Raises:
        InputError: the file is damaged or unreadable.
    """
    file = folder / "trainer_state.json"
    step = read_json(file).get("global_step") if file.is_file() else None
    return step if is_count(step) else None


WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"

Shapes = dict[str, tuple[int, ...]]


def weight_files(folder: Path, name: str) -> list[Path]:
    """The file `name` in `folder`, or those that its index names; none where neither is there.

    A folder with both is read as transformers does: from the single file.

    Raises:
        InputError: the index is damaged, or names files that are not there, or elsewhere.
    """
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / part for part in sorted(names)]
        missing = [file.name for file in files if not file.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index} cannot be read, or is not an index of weights: copy it again") from error
    if strange := [file for file in files if file.parent != folder]:
        raise InputError(f"{index} names a file elsewhere: {one_line(strange[0])}")
    if missing:
        raise InputError(f"{folder} lacks {one_line(missing[0])}, which {index.name} names: copy it again")
    return files


def weights_damage(folder: Path) -> str | None:
    """Why no weights can be read from `folder`, whatever model they are of; None if they can."""
    names = (ADAPTER, WEIGHTS)
    read = [read_shapes(folder, name) for name in names]
    problem = next((problem for _, problem in read if problem), None)
    return problem or (None if any(shapes for shapes, _ in read) else f"it holds neither {WEIGHTS} nor {ADAPTER}")


def weights_problem(folder: Path, model: Any) -> str | None:
    """Why the safetensors files in `folder` are not all of `model`'s weights, in full; None if they are.

    Of a model with an adapter, the adapter's. Of weights that are tied one is enough. Sharding does not matter.
    """
    adapter = getattr(model, "peft_config", None) is not None
    name = ADAPTER if adapter else WEIGHTS
    found, problem = read_shapes(folder, name)
    if problem or not found:
        return problem or f"it holds no {name}"
    if empty := [name for name, shape in found.items() if 0 in shape]:
        return f"{empty[0]} is empty"
    for names, shape in _adapter_shapes(model) if adapter else _model_shapes(model):
        stored = [found[name] for name in names if name in found]
        if not stored:
            return f"{names[0]} is missing"
        if shape not in stored:
            return f"{names[0]} has the shape {stored[0]} there, and {shape} in the model"
    return None


def full_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of all of it, where this process may have a shard."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def read_shapes(folder: Path, name: str) -> tuple[Shapes, str | None]:
    """Those in the file `name`, none if there is no such file; and why they cannot be read, if they cannot."""
    try:
        return _shapes_in(folder, name), None
    except (OSError, SafetensorError, InputError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return {}, f"its weights cannot be read: {one_line(reason)}"


def _shapes_in(folder: Path, name: str) -> Shapes:
    found: Shapes = {}
    for file in weight_files(folder, name):
        with safe_open(file, framework="np") as weights:  # checks that the file has the length in its header
            found |= {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    return found


def _model_shapes(model: Any) -> list[tuple[list[str], tuple[int, ...]]]:
    tied: dict[int, list[str]] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        tied.setdefault(id(parameter), []).append(name)
    return [(names, full_shape(parameters[names[0]])) for names in tied.values()]


def _adapter_shapes(model: Any) -> list[tuple[list[str], tuple[int, ...]]]:
    import torch
    from peft import get_peft_model_state_dict

    whole = {name: torch.empty(full_shape(p), device="meta") for name, p in model.named_parameters()}
    saved = get_peft_model_state_dict(model, state_dict=whole, save_embedding_layers=False)
    return [([name], tuple(tensor.shape)) for name, tensor in saved.items()]
