"""Model folders that cannot be loaded, and the default policy."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rg_env.errors import InputError
from rg_env.training import load_policy
from rg_env.training.policy import Policy
from rg_env.training.tiny import POLICY_DIR


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_model_files_are_one_line(tmp_path: Path, file: str) -> None:
    """Whatever their parser raises."""
    for source in POLICY_DIR.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes() if source.name != file else b"\x00garbage")
    part = {"model.safetensors": "weights", "tokenizer.json": "tokenizer files"}.get(file, file)
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}': {part}: .") as caught:
        load_policy(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the tiny policy's folder."""
    for source in POLICY_DIR.iterdir():
        if source.is_file():
            (tmp_path / source.name).write_bytes(source.read_bytes())
    return tmp_path


def test_weights_that_are_missing_are_named(copied: Path) -> None:
    """Their layers would be random; weights tied to others need not be there."""
    tensors = load_file(copied / "model.safetensors")
    name = next(key for key in tensors if key.endswith("q_proj.weight"))
    save_file({key: t for key, t in tensors.items() if key != name}, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"weights: it lacks {name}"):
        load_policy(str(copied))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_need_not_be_there(copied: Path, tied: bool) -> None:
    """Where the config says that they are tied."""
    tensors = {key: t for key, t in load_file(copied / "model.safetensors").items() if key != "lm_head.weight"}
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    with contextlib.nullcontext() if tied else pytest.raises(InputError, match="lacks lm_head"):
        load_policy(str(copied))


def test_weights_of_another_shape_are_one_line(copied: Path) -> None:
    """All that the library says of them, with the folder."""
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    with pytest.raises(InputError, match=f"cannot load the model '{copied}': weights: .*size mismatch") as caught:
        load_policy(str(copied))
    assert "\n" not in str(caught.value)


def test_the_default_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line; also where the hub cannot be reached."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_policy().is_tiny
    assert capsys.readouterr().out == "No GPU here: taking the tiny policy (--model NAME_OR_FOLDER takes another).\n"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rg_env.training.policy._hub_answers", lambda: False)
    policy = load_policy()
    assert isinstance(policy, Policy)
    assert policy.is_tiny
    assert "the model hub cannot be reached" in capsys.readouterr().out
