"""What cannot be exported, and where an export cannot go: one line, and nothing is left."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import TOKENIZER, weights, with_companions
from model_families import SERVED
from safetensors.torch import save_file

from rg_env.errors import ExportError, InputError, OutputFolderError

Export = Callable[..., tuple[Path, list[str]]]
QWEN = SERVED["qwen2, tied"]


def a_file(path: Path) -> None:
    path.write_text("x")


def nothing(path: Path) -> None:
    path.mkdir()


def only_distcp(path: Path) -> None:
    path.mkdir()
    (path / "__0_0.distcp").touch()


def no_shards(path: Path) -> None:
    path.mkdir()
    (path / "latest").write_text("../..")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist; a checkpoint is"),
        (a_file, "is a file: give the folder that it is in"),
        (nothing, "is not a checkpoint: it has none of a model folder"),
        (only_distcp, "has .distcp files without their .metadata: the checkpoint is incomplete"),
        (no_shards, r"lacks the folder '\.\./\.\.', which DeepSpeed's file 'latest' names"),
    ],
)
def test_what_is_no_checkpoint_is_told(make: Any, words: str, exported: Export, tmp_path: Path) -> None:
    """In one line, and nothing is written."""
    make(tmp_path / "m")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=words) as caught:
        exported(tmp_path / "m")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: [(folder / name).unlink() for name in TOKENIZER], "has no tokenizer .*--base NAME_OR_FOLDER"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json, .*--base NAME_OR_FOLDER"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "t5"}'), "does not describe a known model"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "the tokenizer of .* cannot be loaded"),
        (lambda folder: (folder / "generation_config.json").write_text("{"), "generation_config.json cannot be read"),
        (lambda folder: (folder / "generation_config.json").write_text("[]"), "generation_config.json cannot be read"),
    ],
)
def test_companions_that_are_missing_or_damaged_are_told(
    spoil: Any, words: str, make_model: Callable[..., Any], exported: Export, tmp_path: Path
) -> None:
    """In one line, and nothing is left."""
    model = make_model(QWEN)
    folder = with_companions(tmp_path / "m", model)
    save_file(weights(model), folder / "model.safetensors")
    spoil(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=words) as caught:
        exported(folder)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_another_models_tokenizer_is_told(make_model: Callable[..., Any], exported: Export, tmp_path: Path) -> None:
    """It has ids that the model has no embedding for."""
    config = type(QWEN)(**{**QWEN.to_dict(), "vocab_size": 500})
    model = make_model(config)
    save_file(weights(model), with_companions(tmp_path / "m", model) / "model.safetensors")
    with pytest.raises(ExportError, match="has 769 tokens, but the model has embeddings for 500"):
        exported(tmp_path / "m")


def test_nothing_is_overwritten(make_model: Callable[..., Any], exported: Export, tmp_path: Path) -> None:
    """Not a folder with anything in it, a file, or a link; an empty folder is taken."""
    model = make_model(QWEN)
    save_file(weights(model), with_companions(tmp_path / "m", model) / "model.safetensors")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "link", "m"):
        with pytest.raises(OutputFolderError, match=f"{name} exists already and is not overwritten"):
            exported(tmp_path / "m", out=tmp_path / name)
    with pytest.raises(OutputFolderError, match=r"cannot write .*file/out: File exists; name another"):
        exported(tmp_path / "m", out=tmp_path / "file" / "out")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["x"]
    assert exported(tmp_path / "m", out=tmp_path / "empty", verify=False)[0].stat().st_mode & 0o777 == 0o755 & ~_mask()


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_disk_without_room_is_told_before(
    make_model: Callable[..., Any], exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is needed."""
    model = make_model(QWEN)
    save_file(weights(model), with_companions(tmp_path / "m", model) / "model.safetensors")
    before = sorted(tmp_path.rglob("*"))
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputFolderError, match=r"MB are to be written to .*, and 0 MB are free: make room"):
        exported(tmp_path / "m")
    assert sorted(tmp_path.rglob("*")) == before


def test_values_too_large_for_the_type_say_which_takes_them(
    make_model: Callable[..., Any], exported: Export, tmp_path: Path
) -> None:
    """The largest of bfloat16 are a little below those of float32."""
    model = make_model(QWEN)
    state = weights(model)
    state["model.norm.weight"][3] = 3.4e38
    save_file(state, with_companions(tmp_path / "m", model) / "model.safetensors")
    for dtype, wider in (("fp16", "bf16"), ("bf16", "fp32")):
        with pytest.raises(ExportError, match=rf"up to 3\.4e\+38, too large for {dtype}: use {wider}"):
            exported(tmp_path / "m", dtype=dtype, verify=False)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64])
def test_quantized_weights_are_refused(
    dtype: torch.dtype, make_model: Callable[..., Any], exported: Export, tmp_path: Path
) -> None:
    """Also without the comparison: they would be written under a type that they are not of."""
    model = make_model(QWEN)
    folder = with_companions(tmp_path / "m", model)
    torch.save({name: value.to(dtype) for name, value in weights(model).items()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"^model\.embed_tokens\.weight is of type .*, as quantized weights are"):
        exported(folder, verify=False)
    assert not (tmp_path / "m-export").exists()


def deep(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("[" * 20_000)


@pytest.mark.parametrize("name", ["eval_results/eval_step_5.json", "config.yaml"])
def test_damaged_records_of_a_run_do_not_matter(
    name: str, make_model: Callable[..., Any], exported: Export, tmp_path: Path
) -> None:
    """Not even one whose parser gives up."""
    model = make_model(QWEN)
    save_file(weights(model), with_companions(tmp_path / "checkpoint-5", model) / "model.safetensors")
    (tmp_path / "eval_results").mkdir()
    deep(tmp_path / name)
    _, lines = exported(tmp_path / "checkpoint-5")
    assert any(line.startswith("not compared with the run's accuracy: ") for line in lines)


@pytest.mark.parametrize(
    ("tag", "words"), [("x" * 5000, "cannot be read: File name too long"), ("..", "lacks the folder '..', which")]
)
def test_what_latest_may_not_name_is_told(tag: str, words: str, exported: Export, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/latest").write_text(tag)
    with pytest.raises(InputError, match=words):
        exported(tmp_path / "m")
    with pytest.raises(InputError, match="File name too long"):
        exported(Path("x" * 5000))


def test_a_folder_that_cannot_get_its_name_is_told(
    make_model: Callable[..., Any], exported: Export, tmp_path: Path
) -> None:
    """One that is not there, and has one above it that is."""
    model = make_model(QWEN)
    save_file(weights(model), with_companions(tmp_path / "m", model) / "model.safetensors")
    before = sorted(tmp_path.rglob("*"))
    for out in (tmp_path / "new" / "..", tmp_path / "a\0b"):
        with pytest.raises(OutputFolderError, match="cannot write "):
            exported(tmp_path / "m", out=out, verify=False)
        assert sorted(tmp_path.rglob("*")) == before
