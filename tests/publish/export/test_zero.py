"""DeepSpeed's shards: every stage and number of processes gives the weights that went in; anything else is one line."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, write_zero

from rg_env.errors import InputError
from rg_env.publish.export.zero import ZeroReader

STATE = {
    "embed.weight": torch.randn(7, 5),
    "a.weight": torch.randn(3, 3),
    "a.bias": torch.randn(1),
    "b.weight": torch.randn(11, 2),
    "norm.weight": torch.randn(13),
}
SHARED = {"head.weight": "embed.weight"}


def read(folder: Path) -> dict[str, torch.Tensor]:
    reader = ZeroReader(folder)
    return {name: reader.read(name) for name in reader.stored()}


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (1, {}),
        (2, {"groups": 2}),
        (2, {"groups": 3, "padding": 4}),
        (2, {"frozen": ["a.weight", "norm.weight"]}),
        (3, {}),
        (3, {"sub_groups": 3}),
        (3, {"frozen": ["embed.weight", "b.weight"], "half": True}),
        (3, {"buffers": {"a.scale": torch.tensor([2.5])}}),
    ],
)
def test_shards_give_what_went_in(tmp_path: Path, stage: int, processes: int, options: dict[str, Any]) -> None:
    """To the bit, whatever was split how; the shared name too, which says whose values it has."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=processes, shared=SHARED, **options)
    found = read(folder)
    wanted = {**STATE, "head.weight": STATE["embed.weight"], **options.get("buffers", {})}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    reader = ZeroReader(folder)
    assert reader.stored()["head.weight"].alias_of == "embed.weight"
    assert reader.described == f"ZeRO-{stage} shards of {processes} process{'' if processes == 1 else 'es'}"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_without_the_optimizers_files_the_models_is_enough(tmp_path: Path, stage: int) -> None:
    """Up to ZeRO-2 it has all weights, as the model computed with them."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=2, half=True)
    for file in folder.glob("*optim_states.pt"):
        file.unlink()
    found = read(folder)
    assert all(torch.equal(found[name], value.bfloat16()) for name, value in STATE.items())


def optimizer(rank: int) -> str:
    return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(content: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path)


MODEL = "zero_pp_rank_0_mp_rank_00_model_states.pt"


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        (optimizer(1), Path.unlink, r"global_step5 lacks the file of process 1 \(like zero_pp_rank_0"),
        (optimizer(2), Path.unlink, "has the optimizer files of 2 processes, and 3 wrote it: copy all"),
        (optimizer(1), cut, f"{optimizer(1)} is truncated, damaged, or no file of torch"),
        (MODEL, cut, "is truncated, damaged"),
        (MODEL, Path.unlink, "lacks the file of process 0"),
        ("zero_pp_rank_2_mp_rank_00_model_states.pt", Path.unlink, "the model files of 2 processes, and 3 wrote it"),
        (MODEL, rewritten({"else": 1}), "is not what DeepSpeed writes: it lacks 'param_shapes'"),
        (MODEL, rewritten([1]), "is not what its name says"),
        (optimizer(0), rewritten({"else": 1}), f"{optimizer(0)} is not what its name says: it lacks"),
        (optimizer(1), rewritten({"optimizer_state_dict": {"fp32_flat_groups": [torch.zeros(3)]}}), "other sizes"),
    ],
)
def test_what_is_wrong_with_a_folder_is_told(
    tmp_path: Path, file: str, spoil: Callable[[Path], None], words: str
) -> None:
    """In one line that names the file."""
    folder = write_zero(tmp_path, STATE, stage=3, processes=3)
    spoil(folder / file)
    with pytest.raises(InputError, match=words) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_files_of_another_checkpoint_are_told(tmp_path: Path) -> None:
    """The same names, other shapes: values would be taken from the wrong places."""
    one = write_zero(tmp_path / "one", STATE, stage=3, processes=2)
    other = write_zero(tmp_path / "other", {**STATE, "more": torch.zeros(64)}, stage=3, processes=2)
    for rank in range(2):
        shutil.copyfile(other / optimizer(rank), one / optimizer(rank))
    with pytest.raises(InputError, match="files of different checkpoints, or of another number of processes"):
        ZeroReader(one)
    grouped = write_zero(tmp_path / "two", STATE, stage=2, processes=2)
    for rank in range(2):
        shutil.copyfile(other / optimizer(rank), grouped / optimizer(rank))
    with pytest.raises(InputError, match="mixes files of ZeRO-3 and of another stage"):
        ZeroReader(grouped)


def test_without_the_optimizers_files_zero3_is_refused(tmp_path: Path) -> None:
    """They are where its weights are."""
    folder = write_zero(tmp_path, STATE, stage=3, processes=2)
    for rank in range(2):
        (folder / optimizer(rank)).unlink()
    with pytest.raises(InputError, match="has no optimizer files"):
        ZeroReader(folder)


def test_tensor_parallelism_is_refused(tmp_path: Path) -> None:
    """Each file has a part of each layer: nothing says how they fit together."""
    folder = write_zero(tmp_path, STATE, stage=1, processes=1)
    shutil.copyfile(folder / "mp_rank_00_model_states.pt", folder / "mp_rank_01_model_states.pt")
    with pytest.raises(InputError, match="tensor parallelism"):
        ZeroReader(folder)


@pytest.mark.parametrize("file", [MODEL, optimizer(0), optimizer(1)])
def test_what_could_be_executed_is_refused(tmp_path: Path, file: str) -> None:
    """By name, and not executed."""
    folder = write_zero(tmp_path / "run", STATE, stage=3, processes=2)
    content = torch.load(folder / file, weights_only=False, map_location="cpu") if file == MODEL else {}
    torch.save({**content, "client_state": Bomb(tmp_path / "executed")}, folder / file)
    with pytest.raises(InputError, match=r"holds posix\.system, which") as caught:
        ZeroReader(folder)
    assert "it was not executed" in str(caught.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("stage", [2, 3])
def test_shards_of_two_steps_are_told(tmp_path: Path, stage: int) -> None:
    """Of the same shapes: they fit together, and are no model that ever was. By the optimizer's count, or the run's."""
    folder = write_zero(tmp_path, STATE, stage=stage, processes=2)
    for rank, step in enumerate((4, 8)):
        content = torch.load(folder / optimizer(rank), weights_only=False)
        base = {"state": {0: {"step": torch.tensor(float(step))}}, "param_groups": [{"lr": 0.1}]}
        content["optimizer_state_dict"]["base_optimizer_state"] = base
        torch.save(content, folder / optimizer(rank))
    words = rf"{optimizer(1)} was saved after 8 steps, and {optimizer(0)} after 4: files of different checkpoints"
    with pytest.raises(InputError, match=words):
        ZeroReader(folder)
    if stage == 3:
        for file in folder.glob("*optim_states.pt"):
            file.unlink()
        for step, file in enumerate(sorted(folder.glob("*model_states.pt"))):
            torch.save({**torch.load(file), "global_steps": step}, file)
        with pytest.raises(InputError, match="was saved after 1 steps, and zero_pp_rank_0_mp_rank_00_model_states"):
            ZeroReader(folder)


def test_what_is_wrong_in_a_head_is_told_once(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, STATE, stage=1, processes=1)
    file = folder / "mp_rank_00_model_states.pt"
    torch.save({**torch.load(file), "mp_world_size": 2}, file)
    with pytest.raises(InputError, match=rf"^{folder} is of a model split by tensor parallelism \(over 2 processes\)"):
        ZeroReader(folder)


def test_a_name_with_a_huge_number_is_no_reason_to_count(tmp_path: Path) -> None:
    """In a file's name: up to it, in memory."""
    folder = write_zero(tmp_path, STATE, stage=3, processes=2)
    (folder / optimizer(10**12)).touch()
    with pytest.raises(InputError, match="lacks the file of process 2 "):
        ZeroReader(folder)
