"""`rg-env export`, as a user's shell sees it."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import Bomb, weights, with_companions, write_zero
from model_families import SERVED
from safetensors.torch import save_file

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checkpoint(make_model: Callable[..., Any], tmp_path: Path) -> Path:
    """A whole model, untied."""
    model = make_model(SERVED["llama, untied"])
    save_file(weights(model), with_companions(tmp_path / "run" / "checkpoint-5", model) / "model.safetensors")
    return tmp_path / "run" / "checkpoint-5"


def test_the_last_line_is_the_folder(rg_env: Command, checkpoint: Path) -> None:
    """Relative names too; and without the comparison it says less."""
    code, told, errors = rg_env("export", str(checkpoint))
    assert (code, errors) == (0, "")
    assert told.splitlines()[-1] == f"{checkpoint}-export"
    code, less, _ = rg_env(
        "export", str(checkpoint), "--no-verify", "--dtype", "bf16", "--output-dir", f"{checkpoint}-2"
    )
    assert code == 0
    assert "verified" in told
    assert "verified" not in less
    assert "M parameters of bfloat16: 0." in less


def test_a_checkpoint_without_a_name_has_its_export_beside_it(
    rg_env: Command, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that the command is called in."""
    monkeypatch.chdir(checkpoint)
    code, told, _ = rg_env("export", ".", "--no-verify")
    assert (code, told.splitlines()[-1]) == (0, f"{checkpoint}-export")


def test_mistakes_exit_with_2_and_failed_checks_with_1(rg_env: Command, checkpoint: Path, tmp_path: Path) -> None:
    """One line each, and nothing is left."""
    (checkpoint.parent / "x").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for arguments, code, words in (
        (["/nowhere/at/all"], 2, "error: /nowhere/at/all does not exist; a checkpoint is"),
        ([str(checkpoint), "--output-dir", str(checkpoint)], 2, "exists already and is not overwritten"),
        ([str(checkpoint), "--merge-lora"], 2, "has no adapters to merge"),
        ([str(checkpoint), "--dtype", "int8"], 2, "invalid choice: 'int8'"),
        ([str(checkpoint.parent / "x")], 2, "is not a checkpoint"),
    ):
        found = rg_env("export", *arguments)
        assert found[0] == code
        assert words in found[2]
        assert sorted(tmp_path.rglob("*")) == before
    state = torch.load(_as_bin(checkpoint))
    state["model.norm.weight"].fill_(torch.inf)
    torch.save(state, checkpoint / "pytorch_model.bin")
    before = sorted(tmp_path.rglob("*"))
    code, _, errors = rg_env("export", str(checkpoint))
    assert code == 1
    assert errors == "error: model.norm.weight has values in the checkpoint that are not finite (NaN, or infinite)\n"
    assert sorted(tmp_path.rglob("*")) == before


def _as_bin(folder: Path) -> Path:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def test_a_payload_is_one_line(rg_env: Command, make_model: Callable[..., Any], tmp_path: Path) -> None:
    """In a shard of DeepSpeed's, which DeepSpeed itself would execute."""
    model = make_model(SERVED["llama, untied"])
    folder = with_companions(tmp_path / "m", model)
    shards = write_zero(folder, weights(model), stage=2, processes=2)
    torch.save({"optimizer_state_dict": Bomb(tmp_path / "executed")}, sorted(shards.glob("*optim_states.pt"))[1])
    code, _, errors = rg_env("export", str(folder))
    assert code == 2
    assert errors.count("\n") == 1
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt contains posix.system: not executed" in errors
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "m-export").exists()


def test_names_in_a_checkpoint_are_shown_as_text(rg_env: Command, checkpoint: Path) -> None:
    """Those that are only told, too: what a terminal would obey is written as its number."""
    state = torch.load(_as_bin(checkpoint))
    state = {f"module.{name}": value for name, value in state.items()} | {"red\x1b[31m": torch.zeros(1)}
    torch.save(state, checkpoint / "pytorch_model.bin")
    code, told, _ = rg_env("export", str(checkpoint), "--no-verify")
    assert code == 0
    assert "left out, not part of the model: red\\x1b[31m\n" in told


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within: this process writes no file beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing(rg_env: Command, checkpoint: Path, tmp_path: Path) -> None:
    """In mid-write, here by a limit of file sizes: one line, exit code 2, and everything as it was."""
    before = sorted(tmp_path.rglob("*"))
    with files_up_to(200_000):
        code, _, errors = rg_env("export", str(checkpoint), "--no-verify")
    assert (code, errors) == (2, f"error: cannot write {checkpoint}-export: File too large; nothing is left of it\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_told(rg_env: Command, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, errors = rg_env("export", str(checkpoint), "--output-dir", str(tmp_path / "locked" / "out"))
    assert (code, errors.count("\n")) == (2, 1)
    assert "Permission denied; name another folder with --output-dir" in errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_mid_write_leaves_nothing(checkpoint: Path, tmp_path: Path, kind: signal.Signals) -> None:
    """As clusters and terminals that are closed end programs; in a process of its own."""
    program = (
        "import os; from rg_env.cli.main import main; from rg_env.publish.export import job; finite = job._finite\n"
        f"def end(*given): os.kill(os.getpid(), {kind.value}); return finite(*given)\n"
        "job._finite = end; main()"
    )
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-c", program, "export", str(checkpoint), "--output-dir", str(tmp_path / "new" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert sorted(tmp_path.rglob("*")) == before
