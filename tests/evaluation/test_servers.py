"""Models served by vLLM, one a GPU: which is started where and how, what it is asked, and that all of them end."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rg_env.errors import MissingExtraError, ServerError
from rg_env.evaluation import models
from rg_env.evaluation.config import eval_config_of
from rg_env.evaluation.from_config import run_evaluation
from rg_env.inference.machine import Machine
from rg_env.tiny import POLICY_DIR

pytestmark = pytest.mark.slow  # torch and transformers are imported, for the tokenizers


class Gpus:
    """A machine with the GPUs 0 and 1, whose `vllm` is the stand-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self._log = folder, folder / "stand_in.jsonl"
        program = Path(__file__).with_name("vllm_stand_in.py")
        monkeypatch.setattr(models, "PROGRAM", (sys.executable, str(program)))
        machine = Machine(("0", "1"), "0.32.0", folder)
        monkeypatch.setattr(models.Machine, "here", classmethod(lambda cls: machine))
        monkeypatch.setattr(models, "_POLL_S", 0.05)
        monkeypatch.setenv("STAND_IN_LOG", str(self._log))

    def evaluate(self, models: dict[str, Any], *overrides: str, n: int = 30) -> Any:
        given = [
            f"models={json.dumps(models)}", "tasks=leg_counting", f"num_examples={n}", "requests.concurrency=4",
            f"output.dir={self.folder / 'results'}", *overrides,
        ]  # fmt: skip
        return run_evaluation(eval_config_of(given))[0]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in map(json.loads, lines) if kind in line]

    def running(self) -> list[int]:
        return [line["pid"] for line in self.notes("start") if psutil.pid_exists(line["pid"])]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return Gpus(tmp_path, monkeypatch)


def _model(folder: Path, **tokenizer: Any) -> str:
    """The tiny policy's configuration and tokenizer, changed."""
    shutil.copytree(POLICY_DIR, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **tokenizer}))
    return str(folder)


def _adapters(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "tiny", **config}))
    return str(folder)


def test_each_model_has_a_gpu_and_its_own_arguments(gpus: Gpus, tmp_path: Path) -> None:
    """Adapters come with the model that they were made for, and the rank that vLLM has to be told; then all end."""
    lora = _adapters(tmp_path / "lora", r=24, rank_pattern={"q_proj": 40})
    results = gpus.evaluate({"base": "tiny", "lora": lora}, "serving.vllm_args=[--max-model-len, '256']", n=4)
    assert [each.scores.answers for each in results.tasks["leg_counting"].models.values()] == [4, 4]
    started = {line["gpu"]: line["start"] for line in gpus.notes("start")}
    assert set(started) == {"0", "1"}
    base, adapted = sorted(started.values(), key=lambda start: start["enable_lora"])
    assert base["lora_modules"] is base["max_lora_rank"] is None
    assert (adapted["lora_modules"], adapted["max_lora_rank"]) == (f"adapter={lora}", 64)
    for start in (base, adapted):
        assert (start["model"], start["host"], start["max_model_len"]) == (str(POLICY_DIR), "127.0.0.1", 256)
    assert gpus.running() == []


def test_a_gpu_without_a_model_of_its_own_takes_a_share(gpus: Gpus) -> None:
    """No question is asked twice, whoever asks it."""
    results = gpus.evaluate({"m": "tiny"}, n=300)
    asked = [line["gpu"] for line in gpus.notes("request")]
    assert len(asked) == results.tasks["leg_counting"].models["m"].scores.answers == 300
    assert min(asked.count("0"), asked.count("1")) > 50
    assert {line["gpu"] for line in gpus.notes("start")} == {"0", "1"}


def test_more_models_than_gpus_wait_for_one(gpus: Gpus, tmp_path: Path) -> None:
    models = {name: _adapters(tmp_path / name, r=8) for name in "abc"}
    gpus.evaluate(models, "serving.gpus=[1]", n=4)
    assert [line["gpu"] for line in gpus.notes("start")] == ["1", "1", "1"]
    assert len(gpus.notes("request")) == 12


def test_a_template_without_a_place_for_system_messages(gpus: Gpus, tmp_path: Path) -> None:
    """They go into the question, as they do in training: vLLM would refuse them."""
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    model = _model(tmp_path / "model", chat_template=template + "{% endfor %}")
    (Path(model) / "chat_template.jinja").unlink(missing_ok=True)
    gpus.evaluate({"plain": "tiny", "without": model}, n=3)
    roles = sorted(line["request"] for line in gpus.notes("request"))
    assert roles == 3 * [["system", "user"]] + 3 * [["user"]]


def test_a_server_that_ends_is_told_and_the_others_go_on(
    gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last line of its log, at once; what the others answered is kept."""
    failing = _model(tmp_path / "failing")
    monkeypatch.setenv("STAND_IN_FAILS", failing)
    start = time.monotonic()
    with pytest.raises(ServerError) as told:
        gpus.evaluate({"bad": failing, "good": "tiny"}, n=10)
    assert time.monotonic() - start < 60
    message = str(told.value)
    assert f"vLLM for {failing} ended with code 1 (torch.OutOfMemoryError: there is not enough of it): see " in message
    assert "--resume" in message
    records = [json.loads(line) for line in (tmp_path / "results" / "rollouts.jsonl").read_text().splitlines()]
    assert [record["model"] for record in records] == 10 * ["good"]
    assert gpus.running() == []


def test_ctrl_c_ends_the_servers(gpus: Gpus) -> None:
    def interrupt() -> None:
        while not gpus.notes("request"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        gpus.evaluate({"m": "tiny"}, n=2000)
    assert gpus.notes("start")
    assert gpus.running() == []


def test_a_machine_without_vllm_is_told_how_to_have_it(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(("0",), None, gpus.folder)
    monkeypatch.setattr(models.Machine, "here", classmethod(lambda cls: machine))
    with pytest.raises(MissingExtraError, match=r"vLLM is not installed: .*setup\.sh --gpu"):
        gpus.evaluate({"m": "tiny"}, "serving.kind=vllm", n=2)
