"""Tests of checkpoints and output folders that cannot be used: one-line errors, exit codes, and no files left."""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import TOKENIZER, save_whole
from model_families import SERVED
from run_code import files_up_to

from rg_env.errors import ExportError, InputError, OutputFolderError
from rg_env.publish import export as export_module

Export = Callable[..., tuple[Path, list[str]]]
Command = Callable[..., tuple[int, str, str]]


def folder_with(**files: str) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_text(content)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "is not an existing folder; a checkpoint is"),
        (lambda path: path.write_text("x"), "is not an existing folder"),
        (folder_with(**{"metrics.jsonl": ""}), "not a complete checkpoint; a checkpoint is .* a run with checkpoint-N"),
        (folder_with(**{"__0_0.distcp": ""}), r"merge them first \(`accelerate merge-weights \S+/m MODEL`\)"),
        (folder_with(**{"model_world_size_2_rank_0.pt": ""}), r"\(`python -m verl.model_merger merge .* MODEL`\)"),
        (folder_with(latest="../.."), r"lacks the shards in '\.\./\.\.', which is named in DeepSpeed's 'latest' file"),
        (folder_with(latest="x" * 5000), "lacks the shards in 'xxx"),
    ],
)
def test_what_is_not_a_checkpoint(make: Any, words: str, exported: Export, tmp_path: Path, refused: Any) -> None:
    make(tmp_path / "m")
    with refused(words, InputError):
        exported(tmp_path / "m")


def written(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: [(folder / name).unlink() for name in TOKENIZER], "has no tokenizer .*--base NAME_OR_FOLDER"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json: pass .*--base NAME_OR_FOLDER"),
        (written("config.json", "{"), "the config.json in .* cannot be read"),
        (written("config.json", '{"model_type": "t5"}'), "does not describe a known model"),
        (written("tokenizer.json", "{"), "the tokenizer in .* cannot be read"),
        (written("generation_config.json", "[]"), "the generation_config.json in .* cannot be read"),
    ],
)
def test_a_missing_or_damaged_configuration(
    spoil: Any, words: str, saved: Path, exported: Export, refused: Any
) -> None:
    spoil(saved)
    with refused(words, InputError):
        exported(saved)


def test_the_tokenizer_of_another_model(make_model: Callable[..., Any], exported: Export, tmp_path: Path) -> None:
    """The tokenizer has more tokens than the model has embeddings."""
    qwen = SERVED["qwen2, tied"]
    folder = save_whole(tmp_path / "m", make_model(type(qwen)(**{**qwen.to_dict(), "vocab_size": 500})))
    with pytest.raises(ExportError, match="has 769 tokens, but the model has embeddings for 500"):
        exported(folder)


def test_existing_output_is_not_overwritten(saved: Path, exported: Export, tmp_path: Path, refused: Any) -> None:
    """Files, links and folders with files are not overwritten; an empty folder is used."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "link", "run"):
        with refused(f"{name} already exists", OutputFolderError):
            exported(saved, out=tmp_path / name)
    for out in (tmp_path / "file" / "out", tmp_path / "new" / ".."):
        with refused(r"cannot write .*; partial files were removed", OutputFolderError):
            exported(saved, out=out, verify=False)
    mask = os.umask(0)
    os.umask(mask)
    assert exported(saved, out=tmp_path / "empty", verify=False)[0].stat().st_mode & 0o777 == 0o777 & ~mask


def test_the_last_line_of_the_output_is_the_folder(rg_env: Command, saved: Path) -> None:
    """The current folder can be exported, and the command prints less without verification."""
    with contextlib.chdir(saved):
        code, out, errors = rg_env("export", ".")
    assert (code, errors, out.splitlines()[-1]) == (0, "", f"{saved}-export")
    code, less, _ = rg_env("export", str(saved), "--no-verify", "--dtype", "bf16", "--output-dir", f"{saved}-2")
    assert code == 0
    assert "verified" in out
    assert "verified" not in less
    assert " in torch.bfloat16: " in less


def test_failed_checks_exit_with_1(rg_env: Command, saved: Path) -> None:
    state = torch.load(saved / "pytorch_model.bin")
    state["model.norm.weight"].fill_(torch.inf)
    torch.save(state, saved / "pytorch_model.bin")
    code, _, errors = rg_env("export", str(saved))
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith("error: model.norm.weight has non-finite values")


def test_a_full_disk_leaves_no_files(rg_env: Command, saved: Path) -> None:
    """The disk fills up in the middle of a file, simulated by a limit on file sizes."""
    before = sorted(saved.parent.rglob("*"))
    with files_up_to(200_000):
        code, _, errors = rg_env("export", str(saved), "--no-verify")
    assert code == 2
    assert re.fullmatch(f"error: cannot write {saved}-export: .*File too large.*; partial files were removed\n", errors)
    assert sorted(saved.parent.rglob("*")) == before


def test_an_interrupted_export_leaves_no_files(saved: Path, exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export_module, "_rounded", interrupt)
    before = sorted(saved.parent.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        exported(saved, out=saved.parent / "new" / "out")
    assert sorted(saved.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["m/chat_template.jinja", "m/config.json", "m/model.safetensors", "run/config.yaml"])
def test_links_to_other_folders_are_refused(name: str, saved: Path, exported: Export, tmp_path: Path) -> None:
    """An export would contain a copy of a private file. The Hub's cache consists of links to its own blobs."""
    run, link = saved.parent, saved / name.removeprefix("m/")
    if name.startswith("run/"):
        (run / "metrics.jsonl").touch()
        link = run / "config.yaml"
        link.write_text("seed: 1\n")
    secret = tmp_path / "id_rsa"
    link.rename(secret) if link.exists() else secret.write_text("private")
    link.symlink_to(secret)
    with pytest.raises(InputError, match=rf"{link.name} is a link to {secret}, which is outside the published folders"):
        exported(saved, verify=False)
    assert not (run / f"{saved.name}-export").exists()


def test_the_hubs_cache_can_be_exported(saved: Path, exported: Export, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--me--m/snapshots/main", tmp_path / "models--me--m/blobs"
    snapshot.mkdir(parents=True)
    saved.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    out, _ = exported(snapshot, verify=False, out=tmp_path / "out")
    assert (out / "config.json").is_file()
