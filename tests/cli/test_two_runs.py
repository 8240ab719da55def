"""Two runs in one folder: the second one is refused with one line and changes nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from report_samples import write_run

from rg_env.core.run_folder import locked

Run = Callable[..., tuple[int, str, str]]
TINY = str(Path(__file__).parents[2] / "configs/train/tiny.yaml")
SMALL = ["tasks=gcd", "splits.num_train_examples=40", "splits.num_eval_examples=4", "training.max_steps=1"]


def evaluation(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("tasks: {gcd: {}}\n")
    (folder / "rollouts.jsonl").write_text("{}\n")


def swept(folder: Path) -> None:
    write_run(folder / "seed=1")
    (folder / "sweep.yaml").write_text(json.dumps({"points": {"seed=1": {"seed": 1}, "seed=2": {"seed": 2}}}))


FOLDERS: dict[str, Callable[[Path], object]] = {
    "empty": Path.mkdir, "run": write_run, "evaluation": evaluation, "sweep": swept,
}  # fmt: skip
COMMANDS = {
    "train": ["train", TINY, *SMALL],
    "resume": ["train", TINY, *SMALL, "--resume", "auto"],
    "evaluate": ["train", TINY, *SMALL, "--eval-only"],
    "sweep": ["train", TINY, *SMALL, "--sweep", "seed=1,2"],
    "eval": ["eval", "--models", "tiny", "--tasks", "gcd", "-n", "2", "--max-tokens", "8"],
    "eval again": ["eval", "--models", "tiny", "--tasks", "gcd", "-n", "2", "--max-tokens", "8", "--resume"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("first", FOLDERS)
def test_a_second_run_is_refused(
    first: str, command: str, rg_env: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is that of a run, an evaluation or a sweep, and another process writes to it."""
    import rg_env.training.run as run_module

    monkeypatch.setattr(run_module, "_REQUEUED_S", 0.1)
    folder = tmp_path / "run"
    FOLDERS[first](folder)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    option = [f"output.dir={folder}"] if COMMANDS[command][0] == "train" else ["--output-dir", str(folder)]
    words = COMMANDS[command]
    given = [*words[:2], *option, *words[2:]] if words[0] == "train" else [*words, *option]
    with locked(folder):
        code, _, error = rg_env(*given)
    assert (code, error.count("\n")) == (2, 1), error
    reasons = "process [0-9]+ is writing to|is not empty|cannot be used|does not contain|contains a|has different"
    assert re.search(reasons, error)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_folder_used_after_it_was_chosen_is_refused(
    rg_env: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process starts and ends between the choice of an empty folder and its lock."""
    from rg_env.evaluation import rescore, runner

    replies, file = tmp_path / "replies.jsonl", tmp_path / "run/rollouts.jsonl"
    replies.write_text(json.dumps({"task": "gcd", "question": "?", "answer": "1", "reply": "1"}) + "\n")

    def others(*given: object) -> list[str]:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}\n")
        return []

    monkeypatch.setattr(runner, "changes_since_training", others)
    monkeypatch.setattr(rescore._Lookup, "run", others)
    for words in (COMMANDS["eval"], ["score", str(replies)]):
        code, _, error = rg_env(*words, "--output-dir", tmp_path / "run")
        assert (code, "is not empty and may contain another run" in error) == (2, True), error
        assert file.read_text() == "{}\n"
        file.unlink()
