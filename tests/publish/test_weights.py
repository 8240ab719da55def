"""Tests of reading weights.

Damaged and hostile files give a one-line error and are never executed.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, write_zero
from deepspeed.runtime.zero.config import ZeroStageEnum
from safetensors.torch import save_file

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


def other_shapes(path: Path) -> None:
    """Copy the optimizer files of a checkpoint with other shapes, so that values would come from the wrong places."""
    other = write_zero(path.parents[1] / "other", {**STATE, "more": torch.zeros(64)}, stage=3, processes=3)
    for rank in range(3):
        shutil.copyfile(other / optimizer(rank), path.with_name(optimizer(rank)))


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
        ("deepspeed", MODEL, other_shapes, "something is wrong"),
        ("plain", "model.safetensors", cut, "model.safetensors is truncated, damaged"),
        ("plain", "model.safetensors", lambda f: f.rename(f.with_name(INDEX)), "is not a weight index"),
        ("plain", INDEX, index("1.safetensors", "3.safetensors"), f"lacks 3.safetensors, which is listed in {INDEX}"),
        ("plain", INDEX, index("1.safetensors", "../2.safetensors"), "lacks ../2.safetensors"),
        ("plain", INDEX, index("1.safetensors", "2.safetensors"), "a is both in .*2.safetensors and in another file"),
        ("plain", "pytorch_model.bin", rewritten({1: torch.ones(2)}), "1 is not a dense tensor"),
        ("plain", "pytorch_model.bin", rewritten({"a": torch.eye(3).to_sparse()}), "a is not a dense tensor"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*[Ss]parse.* invariant:UserWarning")  # some releases of torch warn on loading
def test_damaged_files_are_one_line(tmp_path: Path, kind: Kind, file: str, spoil: Any, words: str) -> None:
    folder = written(kind, tmp_path)
    spoil(only(folder / file))
    with pytest.raises(InputError, match=words) as caught:
        read_weights(kind, folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def written(kind: Kind, folder: Path) -> Path:
    """Write DeepSpeed's shards of three processes, or a folder with weights."""
    if kind == "deepspeed":
        return write_zero(folder, STATE, stage=3, processes=3)
    folder.mkdir(exist_ok=True)
    save_file(STATE, folder / "model.safetensors")
    return folder


def only(file: Path) -> Path:
    """Remove the safetensors file that would take precedence over `file`, a file written by torch."""
    if file.suffix == ".bin":
        file.with_name("model.safetensors").unlink()
    return file


@pytest.mark.parametrize(
    ("kind", "file", "plant"),
    [
        ("deepspeed", MODEL, lambda f, b: torch.save({**torch.load(f), "client_state": b}, f)),
        ("deepspeed", optimizer(2), lambda f, b: torch.save({"optimizer_state_dict": b}, f)),
        ("plain", "pytorch_model.bin", lambda f, b: torch.save({"a": b}, f)),
        ("plain", "pytorch_model.bin", lambda f, b: f.write_bytes(pickle.dumps({"a": b}))),
    ],
)  # fmt: skip
def test_nothing_is_executed(tmp_path: Path, kind: Kind, file: str, plant: Callable[[Path, Bomb], None]) -> None:
    """Reading a hostile checkpoint gives a one-line error."""
    bomb = Bomb(tmp_path / "executed")
    folder = written(kind, tmp_path / "run")
    plant(only(folder / file), bomb)
    with pytest.raises(InputError, match=r"not executed|damaged") as caught:
        read_weights(kind, folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(bomb))
    assert (tmp_path / "executed").exists(), "Python's own reader executes it"
