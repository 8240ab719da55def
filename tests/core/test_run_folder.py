"""The folder of a run: how it is recognized, what is read and written, and where it may be."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.run_folder import RunFolder, free_folder, json_lines, locked, run_name
from rg_env.errors import InputError, OutputFolderError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two steps, with evaluations before and after."""
    run = RunFolder.create(tmp_path / "run")
    run.write_config({"seed": 1})
    for step in (0, 2):
        run.write_evaluation(step, {"step": step})
    for step in (1, 2):
        run.add_metrics(step, {"reward": step / 2})
        run.add_rollouts(step, [{"completion": str(step)}])
        run.checkpoint(step).mkdir()
    return run


def test_what_was_written_is_read(run: RunFolder) -> None:
    """Each file has its own method for reading; a missing file is read as empty or None."""
    assert RunFolder.is_run(run.path)
    assert run.config() == run.arguments() == {"seed": 1}
    assert run.metrics() == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}]
    assert [each["completion"] for each in json_lines(run.rollouts_file)] == ["1", "2"]
    assert run.evaluation_steps() == [0, 2]
    assert run.manifest() == {}
    assert run.results() is None
    run.write_manifest({"seed": 3})
    run.write_results({"steps": 2})
    run.write_config({"seed": 1}, {"training": {}})
    assert run.arguments() == {"training": {}}
    assert run.manifest()["rows"] == {"seed": 3}
    assert datetime.fromisoformat(run.manifest()["created"]).tzinfo == UTC
    assert re.fullmatch("[0-9a-f]{40}|None", str(run.manifest()["commit"]))
    assert run.results() == {"steps": 2}


def test_checkpoints_are_sorted_by_step(run: RunFolder) -> None:
    """The newest checkpoint comes first; other folders and files are not checkpoints."""
    run.checkpoint(10).mkdir()
    run.checkpoint(11).touch()
    (run.path / "checkpoint-2-fp16").mkdir()
    assert run.checkpoints() == [run.checkpoint(step) for step in (10, 2, 1)]
    assert run.last_checkpoint() == run.checkpoint(10)
    assert RunFolder(run.path / "missing").last_checkpoint() is None


def test_a_resumed_run_continues_after_its_checkpoint(run: RunFolder) -> None:
    """Later metrics, rollouts and evaluations are removed, and so is a line that the killed run did not finish."""
    for file in (run.metrics_file, run.rollouts_file):
        with file.open("a") as lines:
            lines.write('{"step": 2, "rew')
    assert len(run.metrics()) == 2
    run.cut_after(1)
    assert run.metrics() == [{"step": 1, "reward": 0.5}]
    assert run.rollouts_file.read_text() == '{"step": 1, "completion": "1"}\n'
    assert run.evaluation_steps() == [0]


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    run.write_config({}, {})
    run.write_manifest(None)
    run.discard()
    assert not run.path.exists()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("config.yaml", "a: [", "damaged"), ("config.yaml", "- 1", "damaged: it does not contain keys"),
        ("config.yaml", None, "cannot be read: No such file"),
        ("train_results.json", "[" * 100_000, "damaged"), ("train_results.json", "\x00", "damaged"),
        ("manifest.json", "[]", "damaged: it does not contain keys"),
        ("metrics.jsonl", '{"step": 1}\n{"st\n{"step": 2}\n', "damaged: line 2"),
        ("metrics.jsonl", "1\n", "damaged: line 1 is not a JSON object"),
        ("metrics.jsonl", '{"loss": 1}\n', "damaged: a line has no step"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_error_that_names_it(run: RunFolder, name: str, text: str | None, reason: str) -> None:
    """The error is one line; for a damaged file it includes a fix."""
    file = run.path / name
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as raised:
        print(run.config(), run.results(), run.manifest(), run.metrics())
    assert str(raised.value).startswith(f"{file} {'is ' if 'damaged' in reason else ''}{reason}")
    assert "\n" not in str(raised.value)
    assert text is None or str(raised.value).endswith("restore it from a copy, or remove it")


def test_any_text_can_be_written(tmp_path: Path) -> None:
    """Lone surrogates, separators and control characters in model output are preserved; NaN becomes null."""
    run = RunFolder.create(tmp_path / "run")
    run.add_rollouts(1, [{"text": "a\u2028b\ud800\x00", "value": float("nan")}] * 2)
    records = list(json_lines(run.rollouts_file))
    assert len(records) == 2
    assert records[0]["value"] is None
    assert records[0]["text"] == "a\u2028b\ud800\x00"
    assert json.loads(run.rollouts_file.read_text().split("\n")[0])["step"] == 1


def test_output_folders(tmp_path: Path) -> None:
    """New folders get unique names, a given folder must be empty, and checking one does not create it."""
    (full := tmp_path / "full").mkdir()
    (full / "x").touch()
    with contextlib.chdir(tmp_path):
        first = RunFolder.choose(None, "run")
        assert first.parent.name == "outputs"
        first.mkdir(parents=True)
        assert RunFolder.choose(None, "run") != first
        assert len(RunFolder.choose(None, "x" * 300).name) < 110
    with pytest.raises(OutputFolderError, match="not empty"):
        RunFolder.choose(full, "run")
    assert free_folder(full, "run", may_have_files=True) == full
    assert RunFolder.choose(tmp_path / "new/deep", "run") == tmp_path / "new/deep"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", ["x" * 300, "/proc/run", "file/below"])
def test_unwritable_folders_are_refused(folder: str, tmp_path: Path) -> None:
    """The error is one line that a terminal can show."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputFolderError, match=r"^cannot write [^\x00\n]+; choose another output folder$"):
        RunFolder.choose(os.path.join(tmp_path, folder), "run")


def test_run_names_are_short() -> None:
    """A name lists three tasks and counts the others, and is always short enough for a folder."""
    assert run_name(["a", "b"], "tiny") == "a+b-tiny"
    assert run_name([f"t{i}" for i in range(20)], "tiny") == "t0+t1+t2-and-17-more-tiny"
    long = run_name(["ü" * 300] * 20, "tiny")
    assert len(long.encode()) <= 80
    assert long.endswith("-and-17-more-tiny")


def test_one_process_holds_the_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the process. The lock is free again afterwards, and a resumed run waits for it."""
    message = rf"process {os.getpid()} is writing to {tmp_path}: wait for it, stop it, or choose another output folder"
    with locked(tmp_path), pytest.raises(OutputFolderError, match=f"^{message}$"), locked(tmp_path):
        pass
    with contextlib.ExitStack() as other:
        other.enter_context(locked(tmp_path))
        threading.Timer(0.3, other.close).start()
        with locked(tmp_path, wait_s=60):
            assert capsys.readouterr().out == f"waiting for process {os.getpid()}, which is writing to {tmp_path}\n"
    with pytest.raises(OutputFolderError, match="cannot open the folder"), locked(tmp_path / "x"):
        pass


def test_runs_that_start_together_get_different_folders(tmp_path: Path) -> None:
    """The name is taken as soon as it is chosen. A folder that remains empty is removed when the program ends."""
    code = "import sys; from rg_env.core.run_folder import RunFolder\n"
    code += "for _ in range(20): print(RunFolder.choose(None, 'run', create=True), flush=True)\nsys.stdin.read()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    programs: list[Any] = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(3)]
    names = [each.stdout.readline() for each in programs for _ in range(20)]
    assert len(set(names)) == 60
    for each in programs:
        each.communicate(timeout=120)
    assert not [*tmp_path.glob("outputs/*")]
