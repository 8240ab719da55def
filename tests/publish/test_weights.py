"""Tests of reading weights in every format.

Damaged and hostile files give a one-line error and are never executed.
"""

import dataclasses
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, write_distcp, write_dtensors, write_zero
from deepspeed.runtime.zero.config import ZeroStageEnum
from safetensors.torch import save_file
from torch.distributed.checkpoint import metadata

from rg_env.errors import InputError
from rg_env.publish.checkpoint import Kind
from rg_env.publish.weights import read_weights

STATE = {
    "embed.weight": torch.randn(7, 6),
    "a.weight": torch.randn(3, 4),
    "a.bias": torch.randn(1),
    "b.weight": torch.randn(11, 2),
    "norm.weight": torch.randn(13),
}
SHARED = {"head.weight": "embed.weight"}
MODEL = "zero_pp_rank_0_mp_rank_00_model_states.pt"


NOW, THEN = b"torch.distributed.tensor", b"torch.distributed._tensor"
RENAMED = {
    NOW + b"\nDTensor\n": THEN + b".api\nDTensor\n",
    NOW + b"._dtensor_spec\nDTensorSpec\n": THEN + b".placement_types\nDTensorSpec\n",
    NOW + b"._dtensor_spec\nTensorMeta\n": THEN + b".placement_types\nTensorMeta\n",
    NOW + b".placement_types\nShard\n": THEN + b".placement_types\nShard\n",
}


def optimizer(rank: int) -> str:
    return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def check(kind: Kind, folder: Path, wanted: dict[str, torch.Tensor]) -> str:
    """Compare the weights in the folder bit for bit and return the description of their format."""
    described, found = read_weights(kind, folder)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    return described


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("frozen", [[], ["a.weight", "norm.weight"]])
def test_deepspeeds_shards(tmp_path: Path, stage: int, processes: int, frozen: list[str]) -> None:
    """All weights are read bit for bit, including tied and frozen tensors."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=processes, shared=SHARED, frozen=frozen)
    described = check("deepspeed", folder, {**STATE, "head.weight": STATE["embed.weight"]})
    assert described == f"ZeRO-{stage} shards of {processes} process{'' if processes == 1 else 'es'}"


class ByName:
    """The ZeRO stage as Python 3.11.0 to 3.11.3 pickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (ZeroStageEnum, "weights")


def test_deepspeeds_shards_of_early_releases_of_python_311(tmp_path: Path) -> None:
    """The stage is read, although `getattr` may not be called for anything else."""
    folder = write_zero(tmp_path, STATE, stage=3, processes=2)
    for file in folder.glob("*optim_states.pt"):
        saved = torch.load(file, weights_only=False)
        saved["optimizer_state_dict"]["zero_stage"] = ByName()
        torch.save(saved, file)
    assert check("deepspeed", folder, STATE) == "ZeRO-3 shards of 2 processes"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeeds_model_file_alone(tmp_path: Path, stage: int) -> None:
    """Up to ZeRO-2, this file has all weights in the compute dtype."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=2, half=True)
    for file in folder.glob("*optim_states.pt"):
        file.unlink()
    check("deepspeed", folder, {name: value.bfloat16() for name, value in STATE.items()})


@pytest.mark.parametrize(
    ("processes", "replicas", "dim"), [(1, 1, 0), (2, 1, 0), (5, 1, 0), (3, 1, 1), (4, 2, 0), (6, 3, 1)]
)
def test_dtensors(tmp_path: Path, processes: int, replicas: int, dim: int) -> None:
    """Tensors may be split unevenly, along any dimension, with or without replicas."""
    state = {name: value.bfloat16() for name, value in STATE.items()}
    check("dtensor", write_dtensors(tmp_path, state, processes=processes, replicas=replicas, dim=dim), state)


def test_dtensors_of_torch_2_4(tmp_path: Path) -> None:
    """torch 2.4 had other names for these classes, such as torch.distributed._tensor.api.DTensor."""
    folder = write_dtensors(tmp_path, STATE, processes=2)
    for file in [*folder.iterdir()]:
        with zipfile.ZipFile(file) as new:
            records = {name: new.read(name) for name in new.namelist()}
        with zipfile.ZipFile(file, "w") as old:
            for name, record in records.items():
                for now, then in RENAMED.items() if name.endswith("data.pkl") else ():
                    assert now in record
                    record = record.replace(now, then)
                old.writestr(name, record)
    check("dtensor", folder, STATE)


@pytest.mark.parametrize("processes", [1, 4])
def test_distcp(tmp_path: Path, processes: int) -> None:
    """Entries that are not tensors are ignored."""
    folder = write_distcp(tmp_path, STATE, processes=processes)
    check("distcp", folder, {f"model.{name}": value for name, value in STATE.items()})


def test_plain_files(tmp_path: Path) -> None:
    """Weights may be in one file or several, by safetensors or torch; safetensors take precedence. Views are read
    correctly."""
    save_file(STATE, tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "pytorch_model.bin")
    check("plain", tmp_path, STATE)
    (tmp_path / "several").mkdir()
    state = {"transposed": STATE["embed.weight"].T, "column": STATE["embed.weight"][:, 3], **STATE}
    places = {}
    for number, (name, value) in enumerate(state.items()):
        torch.save({name: value}, tmp_path / "several" / f"{number}.bin")
        places[name] = f"{number}.bin"
    (tmp_path / "several" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    check("plain", tmp_path / "several", state)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def steps(path: Path) -> None:
    """Give the optimizer files different step counts."""
    for rank, step in enumerate((4, 8)):
        file = path.with_name(optimizer(rank))
        content = torch.load(file, weights_only=False)
        content["optimizer_state_dict"]["base_optimizer_state"] = {"state": {0: {"step": torch.tensor(step)}}}
        torch.save(content, file)


def model_steps(path: Path) -> None:
    for step, file in enumerate(sorted(path.parent.glob("*model_states.pt"))):
        torch.save({**torch.load(file), "global_steps": step}, file)


def other_shapes(path: Path) -> None:
    """Copy the optimizer files of a checkpoint with other shapes, so that values would come from the wrong places."""
    other = write_zero(path.parents[1] / "other", {**STATE, "more": torch.zeros(64)}, stage=3, processes=3)
    for rank in range(3):
        shutil.copyfile(other / optimizer(rank), path.with_name(optimizer(rank)))


def places(**values: Any) -> Callable[[Path], None]:
    """Change the chunk positions in `.metadata`."""

    def change(file: Path) -> None:
        found = pickle.loads(file.read_bytes())
        changed = {key: dataclasses.replace(place, **values) for key, place in found.storage_data.items()}
        file.write_bytes(pickle.dumps(dataclasses.replace(found, storage_data=changed)))

    return change


def overlapping(file: Path) -> None:
    """Move the second chunk of a tensor into the first one, which leaves a gap of the same size."""
    found, name = pickle.loads(file.read_bytes()), "model.embed.weight"
    chunk = found.state_dict_metadata[name].chunks[1]
    place = found.storage_data.pop(metadata.MetadataIndex(name, chunk.offsets))
    chunk.offsets = torch.Size([chunk.offsets[0] - 1, 0])
    found.storage_data[metadata.MetadataIndex(name, chunk.offsets)] = place
    file.write_bytes(pickle.dumps(found))


def incomplete(file: Path) -> None:
    """Remove all but the first chunk of each tensor; the rest would be uninitialized memory."""
    found = pickle.loads(file.read_bytes())
    for entry in found.state_dict_metadata.values():
        if hasattr(entry, "chunks"):
            entry.chunks = entry.chunks[:1]
    file.write_bytes(pickle.dumps(found))


def index(*files: str) -> Callable[[Path], None]:
    """Return a function that writes two files of weights, both with `a`, and an index that names `files`."""

    def write(file: Path) -> None:
        for number in (1, 2):
            save_file({"a": torch.ones(2), f"b{number}": torch.ones(2)}, file.with_name(f"{number}.safetensors"))
        file.with_name("model.safetensors").unlink()
        file.write_text(json.dumps({"weight_map": dict(enumerate(files))}))

    return write


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("kind", "file", "spoil", "words"),
    [
        ("deepspeed", optimizer(1), Path.unlink, "Expected 3 of .*_optim_states.pt.* but found 2"),
        ("deepspeed", optimizer(1), cut, f"{optimizer(1)} is truncated, damaged, or not a torch file"),
        ("deepspeed", MODEL, rewritten({"else": 1}), "files in an unknown format"),
        ("deepspeed", optimizer(1), rewritten({"optimizer_state_dict": {"fp32_flat_groups": [torch.ones(3)]}}), "."),
        ("deepspeed", MODEL, steps, "mixes files from different checkpoints: .* after 8 steps"),
        ("deepspeed", MODEL, model_steps, "mixes files from different checkpoints: .* after 1 step"),
        ("deepspeed", MODEL, other_shapes, "something is wrong"),
        ("deepspeed", "zero_pp_rank_0_mp_rank_01_model_states.pt", rewritten({}), "tensor parallelism"),
        ("dtensor", "model_world_size_3_rank_1.pt", Path.unlink, "all 3 .* files of a single run .2 found."),
        ("dtensor", "model_world_size_3_rank_1.pt", cut, "rank_1.pt is truncated, damaged"),
        ("dtensor", "model_world_size_2_rank_0.pt", Path.touch, "all 2 .* files of a single run .4 found."),
        ("dtensor", "model_world_size_3_rank_2.pt", rewritten({"x": 1}), "different weight names"),
        ("dtensor", "model_world_size_3_rank_2.pt", rewritten(7), "files in an unknown format"),
        ("distcp", ".metadata", Path.unlink, "the .distcp files cannot be read without this file"),
        ("distcp", ".metadata", cut, ".metadata is truncated, damaged"),
        ("distcp", ".metadata", places(offset=-5), ".metadata is truncated, damaged, or in another format"),
        ("distcp", ".metadata", places(relative_path="../x"), "in another format"),
        ("distcp", ".metadata", places(relative_path="x\ny"), "x y is missing or truncated"),
        ("distcp", ".metadata", overlapping, "overlap or are incomplete"),
        ("distcp", ".metadata", incomplete, "overlap or are incomplete"),
        ("distcp", "__1_0.distcp", Path.unlink, "__1_0.distcp is missing or truncated \\(it has 0 of"),
        ("distcp", "__1_0.distcp", cut, "__1_0.distcp is missing or truncated"),
        ("distcp", "__1_0.distcp", lambda f: f.write_bytes(bytes(f.stat().st_size)), "files in an unknown format"),
        ("plain", "model.safetensors", cut, "model.safetensors is truncated, damaged"),
        ("plain", "model.safetensors", lambda f: f.rename(f.with_name(INDEX)), "is not a weight index"),
        ("plain", INDEX, index("1.safetensors", "3.safetensors"), f"lacks 3.safetensors, which is listed in {INDEX}"),
        ("plain", INDEX, index("1.safetensors", "../2.safetensors"), "lacks ../2.safetensors"),
        ("plain", INDEX, index("1.safetensors", "2.safetensors"), "a is both in .*2.safetensors and in another file"),
        ("bin", "pytorch_model.bin", rewritten({1: torch.ones(2)}), "1 is not a dense tensor"),
        ("bin", "pytorch_model.bin", rewritten({"a": torch.eye(3).to_sparse()}), "a is not a dense tensor"),
    ],
)  # fmt: skip
def test_damaged_files_are_one_line(tmp_path: Path, kind: str, file: str, spoil: Any, words: str) -> None:
    folder = written(kind, tmp_path)
    spoil(folder / file)
    with pytest.raises(InputError, match=words) as caught:
        read_weights(KINDS[kind], folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


KINDS: dict[str, Kind] = {"deepspeed": "deepspeed", "dtensor": "dtensor", "distcp": "distcp", "plain": "plain",
                          "bin": "plain"}  # fmt: skip


def written(kind: str, folder: Path) -> Path:
    """Write a checkpoint of this kind by three processes."""
    if kind == "deepspeed":
        return write_zero(folder, STATE, stage=3, processes=3)
    if kind == "dtensor":
        return write_dtensors(folder, STATE, processes=3)
    if kind == "distcp":
        return write_distcp(folder, STATE, processes=3)
    folder.mkdir(exist_ok=True)
    if kind == "plain":
        save_file(STATE, folder / "model.safetensors")
    return folder


def in_chunk(file: Path, bomb: Bomb) -> None:
    """Replace a tensor in a .distcp file without changing the file's length."""
    torch.save(bomb, file.with_name("chunk"))
    found, size = file.with_name("chunk").read_bytes(), file.stat().st_size
    file.write_bytes(found + bytes(max(0, size - len(found))))


@pytest.mark.parametrize(
    ("kind", "file", "plant"),
    [
        ("deepspeed", MODEL, lambda f, b: torch.save({**torch.load(f), "client_state": b}, f)),
        ("deepspeed", optimizer(2), lambda f, b: torch.save({"optimizer_state_dict": b}, f)),
        ("dtensor", "model_world_size_3_rank_1.pt", lambda f, b: torch.save({"a": b}, f)),
        ("distcp", ".metadata", lambda f, b: f.write_bytes(pickle.dumps(b))),
        ("distcp", "__0_0.distcp", in_chunk),
        ("bin", "pytorch_model.bin", lambda f, b: torch.save({"a": b}, f)),
        ("bin", "pytorch_model.bin", lambda f, b: f.write_bytes(pickle.dumps({"a": b}))),
    ],
)  # fmt: skip
def test_nothing_is_executed(tmp_path: Path, kind: str, file: str, plant: Callable[[Path, Bomb], None]) -> None:
    """Reading a hostile checkpoint gives a one-line error."""
    bomb = Bomb(tmp_path / "executed")
    folder = written(kind, tmp_path / "run")
    plant(folder / file, bomb)
    with pytest.raises(InputError, match=r"not executed|damaged") as caught:
        read_weights(KINDS[kind], folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(bomb))
    assert (tmp_path / "executed").exists(), "Python's own reader executes it"
