"""Shards of FSDP's trainers, and plain files: the weights that went in, or one line that names the file."""

import dataclasses
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, write_distcp, write_dtensors
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh

from rg_env.errors import InputError
from rg_env.publish.export.dtensor import DTensorReader
from rg_env.publish.export.formats import reader_of
from rg_env.training.checkpointing import pickles, readers
from rg_env.training.checkpointing.distcp import DistcpReader
from rg_env.training.checkpointing.readers import BinReader, SafetensorsReader, plain_reader

STATE = {
    "embed.weight": torch.randn(7, 6),
    "a.weight": torch.randn(3, 4).bfloat16(),
    "a.bias": torch.randn(1),
    "norm.weight": torch.randn(13),
}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def same(reader: Any, wanted: dict[str, torch.Tensor], prefix: str = "") -> None:
    stored = reader.stored()
    assert stored.keys() == {prefix + name for name in wanted}
    for name, value in wanted.items():
        assert stored[prefix + name].dtype == value.dtype
        assert stored[prefix + name].shape == value.shape
        assert torch.equal(reader.read(prefix + name), value)


@pytest.mark.parametrize(
    ("processes", "replicas", "dim"), [(1, 1, 0), (2, 1, 0), (5, 1, 0), (3, 1, 1), (4, 2, 0), (6, 3, 1)]
)
def test_dtensors_give_what_went_in(tmp_path: Path, processes: int, replicas: int, dim: int) -> None:
    """Split evenly or not, along any dimension, with replicas or without."""
    folder = write_dtensors(tmp_path, STATE, processes=processes, replicas=replicas, dim=dim)
    same(DTensorReader(folder), STATE)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_distcp_gives_what_went_in(tmp_path: Path, processes: int) -> None:
    """What is no tensor is left alone."""
    same(DistcpReader(write_distcp(tmp_path, STATE, processes=processes)), STATE, "model.")


def test_plain_files_give_what_went_in(tmp_path: Path) -> None:
    """One or several, of safetensors or of torch; where both are, the former."""
    save_file(STATE, tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "pytorch_model.bin")
    same(plain_reader(tmp_path), STATE)
    (tmp_path / "several").mkdir()
    places = {}
    for number, (name, value) in enumerate(STATE.items()):
        torch.save({name: value}, tmp_path / "several" / f"{number}.bin")
        places[name] = f"{number}.bin"
    (tmp_path / "several" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    same(plain_reader(tmp_path / "several"), STATE)


def test_stored_values_are_compared_to_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces; the value that is compared is rounded, and its shape counts."""
    monkeypatch.setattr(readers, "_PIECE", 4)
    value = torch.randn(3, 3)
    save_file({"a": value, "b": value.bfloat16(), "c": torch.zeros(0)}, tmp_path / "model.safetensors")
    reader = SafetensorsReader(tmp_path)
    assert reader.holds("a", value)
    assert reader.holds("b", value)
    assert reader.holds("c", torch.zeros(0))
    assert not reader.holds("a", value.view(9))
    assert not reader.holds("a", value.bfloat16())
    for place in range(9):
        other = value.clone()
        other.view(-1)[place] += 1
        assert not reader.holds("a", other)
        assert not reader.holds("b", other)


def test_a_tensor_that_is_a_view_is_read_as_such(tmp_path: Path) -> None:
    """Transposed, or a part of another one: its values do not follow one another in the file."""
    big = torch.randn(6, 8)
    views = {"t": big.T, "part": big[2:4], "column": big[:, 3], "whole": big}
    torch.save(views, tmp_path / "pytorch_model.bin")
    same(BinReader(tmp_path), views)


@pytest.mark.parametrize("known", [True, False])
def test_values_come_from_the_file_or_from_its_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The latter where it is not known at which byte they stand, as on systems without /proc."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    torch.save(STATE, folder / "pytorch_model.bin")
    if not known:
        monkeypatch.setattr(pickles, "_mapping", lambda *_: -1)
    elif not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    file = pickles.Saved(folder / "pytorch_model.bin")
    at = [file._file_offset(tensor) for tensor in file.content.values()]
    assert all((offset is not None) == known for offset in at)
    same(BinReader(folder), STATE)
    part = torch.empty(5)
    file.into(part, file.content["norm.weight"], 4)
    assert torch.equal(part, STATE["norm.weight"][4:9])


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model_world_size_3_rank_1.pt", Path.unlink, r"lacks model_world_size_3_rank_1.pt \(2 of 3 files"),
        ("model_world_size_3_rank_1.pt", cut, "rank_1.pt is truncated, damaged"),
        ("model_world_size_2_rank_0.pt", Path.touch, "files of runs with 2 and 3 processes: leave one"),
        ("model_world_size_3_rank_2.pt", lambda path: torch.save({"x": 1}, path), "rank_2.pt does not belong to"),
        ("model_world_size_3_rank_2.pt", lambda path: torch.save(7, path), "rank_2.pt is not what its name says"),
    ],
)
def test_what_is_wrong_with_dtensors_is_told(
    tmp_path: Path, file: str, spoil: Callable[[Path], Any], words: str
) -> None:
    """In one line that names the file."""
    folder = write_dtensors(tmp_path, STATE, processes=3)
    spoil(folder / file)
    with pytest.raises(InputError, match=words) as caught:
        DTensorReader(folder)
    assert "\n" not in str(caught.value)


def test_parts_of_another_shape_are_told(tmp_path: Path) -> None:
    """A file of another checkpoint among the right ones, with the same names."""
    folder = write_dtensors(tmp_path / "one", STATE, processes=2)
    other = write_dtensors(tmp_path / "two", {**STATE, "norm.weight": torch.zeros(20)}, processes=2)
    (other / "model_world_size_2_rank_1.pt").replace(folder / "model_world_size_2_rank_1.pt")
    with pytest.raises(InputError, match=r"its part of norm.weight has the shape \(10,\), and \(6,\) is its place"):
        DTensorReader(folder).read("norm.weight")


def move(path: Path) -> None:
    found = path.read_bytes()
    path.write_bytes(found.replace(b"__1_0.distcp", b"../1_.distcp"))


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("__1_0.distcp", Path.unlink, "lacks __1_0.distcp, which its .metadata names"),
        ("__1_0.distcp", cut, r"__1_0.distcp is truncated: it has [\d,]+ of at least"),
        (".metadata", cut, ".metadata is truncated, or damaged"),
        (".metadata", Path.unlink, r"\.metadata: No such file"),
        (
            ".metadata",
            lambda path: path.write_bytes(pickle.dumps({"a": 1})),
            "is not what torch.distributed.checkpoint",
        ),
        (".metadata", move, "names a file elsewhere"),
    ],
)
def test_what_is_wrong_with_distcp_is_told(tmp_path: Path, file: str, spoil: Callable[[Path], Any], words: str) -> None:
    """In one line that names the file."""
    folder = write_distcp(tmp_path, STATE, processes=2)
    spoil(folder / file)
    with pytest.raises(InputError, match=words) as caught:
        DistcpReader(folder)
    assert "\n" not in str(caught.value)


def test_a_damaged_chunk_is_told(tmp_path: Path) -> None:
    """It is found when it is read: the files have the right sizes."""
    folder = write_distcp(tmp_path, STATE, processes=1)
    (folder / "__0_0.distcp").write_bytes(bytes((folder / "__0_0.distcp").stat().st_size))
    with pytest.raises(InputError, match=r"__0_0\.distcp is truncated, damaged"):
        DistcpReader(folder).read("model.a.bias")


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("model.safetensors", cut, "model.safetensors is truncated, damaged"),
        ("model.safetensors", lambda path: path.write_bytes(b"?" * 99), "is truncated, damaged, or no safetensors"),
        (
            "model.safetensors",
            lambda path: path.rename(path.with_name("model.safetensors.index.json")),
            "index.json cannot be read, or is no index",
        ),
    ],
)
def test_what_is_wrong_with_plain_files_is_told(
    tmp_path: Path, file: str, spoil: Callable[[Path], Any], words: str
) -> None:
    """In one line that names the file."""
    save_file(STATE, tmp_path / "model.safetensors")
    spoil(tmp_path / file)
    with pytest.raises(InputError, match=words) as caught:
        SafetensorsReader(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_several_files_is_told(tmp_path: Path) -> None:
    """One that is missing, one elsewhere, and a tensor that is in two: which one is meant?"""
    index = tmp_path / "model.safetensors.index.json"
    for number in (1, 2):
        save_file({"a": torch.ones(2), f"b{number}": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    for files, words in (
        (["1.safetensors", "3.safetensors"], "lacks 3.safetensors, which model.safetensors.index.json names"),
        (["1.safetensors", "../2.safetensors"], "names a file elsewhere"),
        (["1.safetensors", "2.safetensors"], "2.safetensors: a stands in 1.safetensors too"),
    ):
        index.write_text(json.dumps({"weight_map": dict(enumerate(files))}))
        with pytest.raises(InputError, match=words):
            SafetensorsReader(tmp_path)


def payload(kind: str, folder: Path, target: Path) -> Callable[[], Any]:
    """Puts something to execute into a checkpoint of that kind; what reads it."""
    bomb = Bomb(target)
    if kind == "metadata":
        write_distcp(folder, STATE, processes=2)
        (folder / ".metadata").write_bytes(pickle.dumps(bomb))
        return lambda: DistcpReader(folder)
    if kind == "chunk":
        write_distcp(folder, {"a": torch.zeros(500)}, processes=1)
        torch.save(bomb, folder / "chunk")
        found = (folder / "chunk").read_bytes()
        size = (folder / "__0_0.distcp").stat().st_size
        place = write_distcp(folder, {"a": torch.zeros(500)}, processes=1) / "__0_0.distcp"
        place.write_bytes(found + bytes(max(0, size - len(found))))
        return lambda: DistcpReader(folder).read("model.a")
    if kind == "dtensor":
        write_dtensors(folder, STATE, processes=2)
        torch.save({"a": bomb}, folder / "model_world_size_2_rank_1.pt")
        return lambda: DTensorReader(folder)
    folder.mkdir()
    if kind == "bin":
        torch.save({"a": bomb}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": bomb}))
    return lambda: BinReader(folder)


@pytest.mark.parametrize("kind", ["metadata", "chunk", "dtensor", "bin", "plain pickle"])
def test_what_could_be_executed_is_refused(tmp_path: Path, kind: str) -> None:
    """In one line; and not executed."""
    read = payload(kind, tmp_path / "run", tmp_path / "executed")
    with pytest.raises(InputError, match=r"not executed|is truncated, damaged, or no file of torch") as caught:
        read()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_the_payload_is_one(tmp_path: Path) -> None:
    """Python's own reader executes it: what is refused above is refused for a reason."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("size", [0, 10**12])
def test_no_processes_or_too_many_are_told(tmp_path: Path, size: int) -> None:
    (tmp_path / f"model_world_size_{size}_rank_0.pt").touch()
    with pytest.raises(InputError, match=rf"lacks model_world_size_{size}_rank_"):
        DTensorReader(tmp_path)


def rewritten(file: Path, change: Callable[[Any], Any]) -> None:
    content = pickles.load_bytes(io.BytesIO(file.read_bytes()), file)
    torch.save(change(content) or content, file)


def mesh(content: Any) -> None:
    for value in content.values():
        value._spec.mesh = DeviceMesh("cpu", [[0, 1]], _init_backend=False, _rank=0)


def no_spec(content: Any) -> None:
    for value in content.values():
        value._spec = None


def changed(**values: Any) -> Callable[[Path], None]:
    """Places of chunks in `.metadata`."""

    def change(folder: Path) -> None:
        found = pickle.loads((folder / ".metadata").read_bytes())
        places = {key: dataclasses.replace(place, **values) for key, place in found.storage_data.items()}
        (folder / ".metadata").write_bytes(pickle.dumps(dataclasses.replace(found, storage_data=places)))

    return change


def same_place(folder: Path) -> None:
    from torch.distributed.checkpoint import metadata

    found = pickle.loads((folder / ".metadata").read_bytes())
    for entry in found.state_dict_metadata.values():
        for chunk in getattr(entry, "chunks", ()):
            chunk.offsets = torch.Size([0] * len(chunk.offsets))
    found.storage_data = {
        metadata.MetadataIndex(key.fqn, torch.Size([0] * len(key.offset))): place
        for key, place in found.storage_data.items()
    }
    (folder / ".metadata").write_bytes(pickle.dumps(found))


STRANGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "dtensors on another mesh": ("dtensor", lambda f: rewritten(f / "model_world_size_2_rank_0.pt", mesh)),
    "dtensors without a layout": ("dtensor", lambda f: rewritten(f / "model_world_size_2_rank_0.pt", no_spec)),
    "numbers": ("dtensor", lambda f: rewritten(f / "model_world_size_2_rank_1.pt", lambda c: dict.fromkeys(c, 3))),
    "no names": ("bin", lambda f: torch.save({1: torch.ones(2)}, f / "pytorch_model.bin")),
    "sparse": ("bin", lambda f: torch.save({"a": torch.eye(3).to_sparse()}, f / "pytorch_model.bin")),
    "no values": ("bin", lambda f: torch.save({"a": torch.ones(3, device="meta")}, f / "pytorch_model.bin")),
    "a chunk before the file": ("distcp", changed(offset=-5)),
    "a chunk of less than nothing": ("distcp", changed(length=-5)),
    "a chunk at no byte": ("distcp", changed(offset=1.5)),
    "a name too long": ("distcp", changed(relative_path="x" * 5000)),
    "a name of two lines": ("distcp", changed(relative_path="x\ny")),
    "chunks in one place": ("distcp", same_place),
    "an index without end": ("plain", lambda f: (f / "model.safetensors.index.json").write_text("[" * 10**5)),
    "an index of names too long": (
        "plain", lambda f: (f / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{"x" * 999}"}}}}'),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STRANGE)
def test_whatever_stands_in_files_is_told(tmp_path: Path, what: str) -> None:
    """In one line: no value of theirs ends in a traceback."""
    kind, spoil = STRANGE[what]
    if kind == "dtensor":
        write_dtensors(tmp_path, STATE, processes=2)
    elif kind == "distcp":
        write_distcp(tmp_path, STATE, processes=2)
    spoil(tmp_path)

    def read() -> None:
        reader = reader_of("plain" if kind == "bin" else kind, tmp_path)  # type: ignore[arg-type]
        for name in reader.stored():
            reader.read(name)

    with pytest.raises(InputError, match="have the same place" if "in one place" in what else ".") as caught:
        read()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
