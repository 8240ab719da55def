"""Weights of every format are read as they were written; damaged and hostile files are one line, and never executed."""

import dataclasses
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, write_distcp, write_dtensors, write_zero
from safetensors.torch import save_file
from torch.distributed.checkpoint import metadata
from torch.distributed.device_mesh import DeviceMesh

from rg_env.errors import InputError
from rg_env.publish.checkpoint import Kind
from rg_env.publish.weights import read_weights
from rg_env.training.checkpointing import pickles

STATE = {
    "embed.weight": torch.randn(7, 6),
    "a.weight": torch.randn(3, 4),
    "a.bias": torch.randn(1),
    "b.weight": torch.randn(11, 2),
    "norm.weight": torch.randn(13),
}
SHARED = {"head.weight": "embed.weight"}
MODEL = "zero_pp_rank_0_mp_rank_00_model_states.pt"


def optimizer(rank: int) -> str:
    return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def read(kind: str, folder: Path) -> tuple[str, dict[str, torch.Tensor]]:
    kinds: dict[str, Kind] = {"deepspeed": "deepspeed", "dtensor": "dtensor", "distcp": "distcp"}
    described, found = read_weights(kinds.get(kind, "plain"), folder)
    tensors = {name: weight.read() for name, weight in found.items()}
    for name, weight in found.items():
        assert (weight.shape, weight.dtype) == (tensors[name].shape, tensors[name].dtype)
    return described, tensors


def equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("frozen", [[], ["a.weight", "norm.weight"]])
def test_deepspeeds_shards(tmp_path: Path, stage: int, processes: int, frozen: list[str]) -> None:
    """Bit for bit, including tied and frozen tensors."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=processes, shared=SHARED, frozen=frozen)
    described, found = read("deepspeed", folder)
    equal(found, {**STATE, "head.weight": STATE["embed.weight"]})
    assert described == f"ZeRO-{stage} shards of {processes} process{'' if processes == 1 else 'es'}"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeeds_model_file_alone(tmp_path: Path, stage: int) -> None:
    """Up to ZeRO-2 it has all weights, as the model computed with them."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=2, half=True)
    for file in folder.glob("*optim_states.pt"):
        file.unlink()
    equal(read("deepspeed", folder)[1], {name: value.bfloat16() for name, value in STATE.items()})


@pytest.mark.parametrize(
    ("processes", "replicas", "dim"), [(1, 1, 0), (2, 1, 0), (5, 1, 0), (3, 1, 1), (4, 2, 0), (6, 3, 1)]
)
def test_dtensors(tmp_path: Path, processes: int, replicas: int, dim: int) -> None:
    """Split evenly or not, along any dimension, with replicas or without."""
    state = {name: value.bfloat16() for name, value in STATE.items()}
    folder = write_dtensors(tmp_path, state, processes=processes, replicas=replicas, dim=dim)
    equal(read("dtensor", folder)[1], state)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_distcp(tmp_path: Path, processes: int) -> None:
    """Entries that are not tensors are not read."""
    folder = write_distcp(tmp_path, STATE, processes=processes)
    equal(read("distcp", folder)[1], {f"model.{name}": value for name, value in STATE.items()})


def test_plain_files(tmp_path: Path) -> None:
    """One or several, of safetensors or of torch; safetensors have priority. Views are read as such."""
    save_file(STATE, tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "pytorch_model.bin")
    equal(read("plain", tmp_path)[1], STATE)
    (tmp_path / "several").mkdir()
    state = {"transposed": STATE["embed.weight"].T, "column": STATE["embed.weight"][:, 3], **STATE}
    places = {}
    for number, (name, value) in enumerate(state.items()):
        torch.save({name: value}, tmp_path / "several" / f"{number}.bin")
        places[name] = f"{number}.bin"
    (tmp_path / "several" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    equal(read("plain", tmp_path / "several")[1], state)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


def steps(*numbers: int) -> Callable[[Path], None]:
    """Give the optimizer files other step counts."""

    def change(path: Path) -> None:
        for rank, step in enumerate(numbers):
            file = path.with_name(optimizer(rank))
            content = torch.load(file, weights_only=False)
            content["optimizer_state_dict"]["base_optimizer_state"] = {"state": {0: {"step": torch.tensor(step)}}}
            torch.save(content, file)

    return change


def model_steps(path: Path) -> None:
    for step, file in enumerate(sorted(path.parent.glob("*model_states.pt"))):
        torch.save({**torch.load(file), "global_steps": step}, file)


def mesh(path: Path) -> None:
    content = pickles.load(path)
    for value in content.values():
        value._spec.mesh = DeviceMesh("cpu", [[0, 1, 2]], _init_backend=False, _rank=0)
    torch.save(content, path)


def places(**values: Any) -> Callable[[Path], None]:
    """Change the chunk positions in `.metadata`."""

    def change(file: Path) -> None:
        found = pickle.loads(file.read_bytes())
        changed = {key: dataclasses.replace(place, **values) for key, place in found.storage_data.items()}
        file.write_bytes(pickle.dumps(dataclasses.replace(found, storage_data=changed)))

    return change


def overlapping(file: Path) -> None:
    """All chunks of a tensor at its start."""
    found = pickle.loads(file.read_bytes())
    for entry in found.state_dict_metadata.values():
        for chunk in getattr(entry, "chunks", ()):
            chunk.offsets = torch.Size([0] * len(chunk.offsets))
    found.storage_data = {
        metadata.MetadataIndex(key.fqn, torch.Size([0] * len(key.offset))): place
        for key, place in found.storage_data.items()
    }
    file.write_bytes(pickle.dumps(found))


def incomplete(file: Path) -> None:
    """A chunk less of each tensor: the rest would be whatever memory holds."""
    found = pickle.loads(file.read_bytes())
    for entry in found.state_dict_metadata.values():
        if hasattr(entry, "chunks"):
            entry.chunks = entry.chunks[:1]
    file.write_bytes(pickle.dumps(found))


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ("kind", "file", "spoil", "words"),
    [
        ("deepspeed", optimizer(1), Path.unlink, "Expected 3 of .*_optim_states.pt.* but found 2"),
        ("deepspeed", optimizer(1), cut, f"{optimizer(1)} is truncated, damaged, or not a torch file"),
        ("deepspeed", MODEL, cut, "is truncated, damaged"),
        ("deepspeed", MODEL, rewritten({"else": 1}), "files in an unknown format"),
        ("deepspeed", optimizer(0), rewritten({"else": 1}), "files in an unknown format"),
        ("deepspeed", optimizer(1), rewritten({"optimizer_state_dict": {"fp32_flat_groups": [torch.ones(3)]}}), "."),
        ("deepspeed", optimizer(0), steps(4, 8), "mixes files from different checkpoints: .* after 8 steps"),
        ("deepspeed", MODEL, model_steps, "mixes files from different checkpoints: .* after 1 step"),
        ("deepspeed", "zero_pp_rank_0_mp_rank_01_model_states.pt", rewritten({}), "tensor parallelism"),
        ("dtensor", "model_world_size_3_rank_1.pt", Path.unlink, "has only 2 of the 3 files"),
        ("dtensor", "model_world_size_3_rank_1.pt", cut, "rank_1.pt is truncated, damaged"),
        ("dtensor", "model_world_size_2_rank_0.pt", Path.touch, r"numbers of processes \(2, 3\): keep those"),
        ("dtensor", "model_world_size_3_rank_2.pt", rewritten({"x": 1}), "different weight names"),
        ("dtensor", "model_world_size_3_rank_2.pt", rewritten(7), "files in an unknown format"),
        ("dtensor", "model_world_size_3_rank_0.pt", mesh, "files in an unknown format|different checkpoints"),
        ("distcp", ".metadata", Path.unlink, "the .distcp files cannot be read without it"),
        ("distcp", ".metadata", cut, ".metadata is truncated, damaged"),
        ("distcp", ".metadata", places(offset=-5), ".metadata is truncated, damaged, or in another format"),
        ("distcp", ".metadata", places(relative_path="../x"), "in another format"),
        ("distcp", ".metadata", places(relative_path="x" * 5000), "."),
        ("distcp", ".metadata", places(relative_path="x\ny"), "x y is missing or truncated"),
        ("distcp", ".metadata", overlapping, "overlap or are incomplete"),
        ("distcp", ".metadata", incomplete, "overlap or are incomplete"),
        ("distcp", "__1_0.distcp", Path.unlink, "__1_0.distcp is missing or truncated: it has 0 of"),
        ("distcp", "__1_0.distcp", cut, "__1_0.distcp is missing or truncated"),
        ("distcp", "__1_0.distcp", zeroed, "files in an unknown format"),
        ("plain", "model.safetensors", cut, "model.safetensors is truncated, damaged"),
        ("bin", "pytorch_model.bin", rewritten({1: torch.ones(2)}), "1 is not a dense tensor"),
        ("bin", "pytorch_model.bin", rewritten({"a": torch.eye(3).to_sparse()}), "a is not a dense tensor"),
        ("bin", "pytorch_model.bin", rewritten({"a": torch.ones(3, device="meta")}), "a is not a dense tensor"),
        ("plain", "model.safetensors", lambda f: f.rename(f.with_name(f"{f.name}.index.json")), "is not an index"),
        ("index", "model.safetensors.index.json", lambda f: f.write_text("[" * 10**5), "is not an index"),
        ("index", "model.safetensors.index.json",
         lambda f: f.write_text('{"weight_map": {"a": "x' + "y" * 999 + '"}}'), "."),
    ],
)  # fmt: skip
def test_damaged_files_are_one_line(tmp_path: Path, kind: str, file: str, spoil: Any, words: str) -> None:
    folder = written(kind, tmp_path)
    spoil(folder / file)
    with pytest.raises(InputError, match=words) as caught:
        read(kind, folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def written(kind: str, folder: Path) -> Path:
    """A checkpoint of that kind, of three processes."""
    if kind == "deepspeed":
        return write_zero(folder, STATE, stage=3, processes=3)
    if kind == "dtensor":
        return write_dtensors(folder, STATE, processes=3)
    if kind == "distcp":
        return write_distcp(folder, STATE, processes=3)
    if kind == "plain":
        save_file(STATE, folder / "model.safetensors")
    return folder


def test_files_of_another_checkpoint_are_found(tmp_path: Path) -> None:
    """The same names with other shapes: values would come from the wrong places."""
    one = write_zero(tmp_path / "one", STATE, stage=3, processes=2)
    other = write_zero(tmp_path / "other", {**STATE, "more": torch.zeros(64)}, stage=3, processes=2)
    for rank in range(2):
        shutil.copyfile(other / optimizer(rank), one / optimizer(rank))
    with pytest.raises(InputError, match="something is wrong"):
        read("deepspeed", one)


def test_zero3_needs_its_optimizer_files(tmp_path: Path) -> None:
    """They hold its weights."""
    folder = write_zero(tmp_path, STATE, stage=3, processes=2)
    for rank in range(2):
        (folder / optimizer(rank)).unlink()
    with pytest.raises(InputError, match="has empty weights, and the optimizer files"):
        read("deepspeed", folder)


def test_several_files_belong_together(tmp_path: Path) -> None:
    """One that is missing, one elsewhere, and a tensor that is in two."""
    index = tmp_path / "model.safetensors.index.json"
    for number in (1, 2):
        save_file({"a": torch.ones(2), f"b{number}": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    for files, words in (
        (["1.safetensors", "3.safetensors"], "lacks 3.safetensors, which is listed in model.safetensors.index.json"),
        (["1.safetensors", "../2.safetensors"], "lacks ../2.safetensors"),
        (["1.safetensors", "2.safetensors"], "a is both in .*2.safetensors and in another file"),
    ):
        index.write_text(json.dumps({"weight_map": dict(enumerate(files))}))
        with pytest.raises(InputError, match=words):
            read("plain", tmp_path)


def in_chunk(file: Path, bomb: Bomb) -> None:
    """In place of a tensor in a .distcp file, with the same length."""
    torch.save(bomb, file.with_name("chunk"))
    found, size = file.with_name("chunk").read_bytes(), file.stat().st_size
    file.write_bytes(found + bytes(max(0, size - len(found))))


@pytest.mark.parametrize(
    ("kind", "file", "plant"),
    [
        ("deepspeed", MODEL, lambda f, b: torch.save({**torch.load(f), "client_state": b}, f)),
        ("deepspeed", optimizer(0), lambda f, b: torch.save({"optimizer_state_dict": b}, f)),
        ("deepspeed", optimizer(2), lambda f, b: torch.save({"optimizer_state_dict": b}, f)),
        ("dtensor", "model_world_size_3_rank_1.pt", lambda f, b: torch.save({"a": b}, f)),
        ("distcp", ".metadata", lambda f, b: f.write_bytes(pickle.dumps(b))),
        ("distcp", "__0_0.distcp", in_chunk),
        ("bin", "pytorch_model.bin", lambda f, b: torch.save({"a": b}, f)),
        ("bin", "pytorch_model.bin", lambda f, b: f.write_bytes(pickle.dumps({"a": b}))),
    ],
)  # fmt: skip
def test_nothing_is_executed(tmp_path: Path, kind: str, file: str, plant: Callable[[Path, Bomb], None]) -> None:
    """Whatever a checkpoint contains: reading it is refused on one line."""
    bomb = Bomb(tmp_path / "executed")
    folder = written(kind, tmp_path / "run") if kind != "bin" else tmp_path
    plant(folder / file, bomb)
    with pytest.raises(InputError, match=r"not executed|damaged") as caught:
        read(kind, folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(bomb))
    assert (tmp_path / "executed").exists(), "Python's own reader executes it"
