"""Tests of models on this machine: in this process with the embedded engine, or served by vLLM, one per GPU.

Commands with vLLM see two GPUs, and a stand-in for the `vllm` package.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from forked_python import PYTHON
from run_code import without_progress

from rg_env.core.run_folder import json_lines
from rg_env.errors import EngineError, InputError, MissingExtraError, ServerError
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.local_models import local_engine
from rg_env.evaluation.results import read_results, results_files
from rg_env.evaluation.runner import run_evaluation
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.machine import Machine
from rg_env.tiny import POLICY_DIR

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]  # imports torch and transformers


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save untrained LoRA adapters, which do not change the model's answers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters")
    model: Any = AutoModelForCausalLM.from_pretrained(POLICY_DIR)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).save_pretrained(folder)
    return folder


def _config(folder: Path, models: dict[str, Any], *overrides: str) -> Any:
    given = [f"models={json.dumps(models)}", "tasks=leg_counting", "num_examples=12", f"output.dir={folder}"]
    return load_eval_config(None, [*given, "sampling.max_tokens=60", *overrides])


def test_adapters_are_applied_to_their_base_model(adapters: Path, tmp_path: Path) -> None:
    """With untrained adapters, greedy answers equal the base model's; with another system prompt they differ."""
    models = {"base": "tiny", "lora": str(adapters), "no_prompt": {"model": "tiny", "system_prompt": ""}}
    results, folder = run_evaluation(_config(tmp_path / "e", models, "sampling.temperature=0"))
    found = results.tasks["leg_counting"].models
    assert [each.kind for each in found.values()] == ["tiny", "adapter", "tiny"]
    texts: dict[str, list[str]] = {}
    for record in json_lines(folder / "rollouts.jsonl"):
        texts.setdefault(record["model"], []).append(f"{record['problem']} {record['completion']}")
    assert sorted(texts["lora"]) == sorted(texts["base"]) != sorted(texts["no_prompt"])
    assert found["lora"].correct == found["base"].correct
    (pair,) = [each for each in results.comparisons if (each.a, each.b) == ("lora", "base")]
    assert (pair.difference, pair.p_value) == (0, 1)


def test_the_same_seed_gives_the_same_answers(tmp_path: Path) -> None:
    """Another seed gives other answers."""
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _, folder = run_evaluation(_config(tmp_path / name, {"m": "tiny"}, f"seed={seed}"))
        records = json_lines(folder / "rollouts.jsonl")
        found.append(sorted((record["problem"], record["completion"]) for record in records))
    assert found[0] == found[1] != found[2]


def test_an_engine_that_fails_leaves_the_other_models(adapters: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The other model is evaluated completely, and no results file is written."""
    generate = EmbeddedEngine.generate

    def fails(engine: EmbeddedEngine, prompts: Any, sampling: Any) -> Any:
        if not hasattr(engine.model, "peft_config") and (sampling.max_tokens or 0) > 20:  # not the engine's first trial
            raise EngineError("out of memory")
        return generate(engine, prompts, sampling)

    monkeypatch.setattr(EmbeddedEngine, "generate", fails)
    config = _config(tmp_path / "e", {"base": "tiny", "lora": str(adapters)})
    with pytest.raises(ServerError, match=r"^base: out of memory; no results are written"):
        run_evaluation(config)
    assert [record["model"] for record in json_lines(tmp_path / "e" / "rollouts.jsonl")] == ["lora"] * 12
    assert not list((tmp_path / "e").glob("results*"))


def test_a_prompt_that_does_not_fit_is_reported_before_any_call(tmp_path: Path) -> None:
    message = r"a context of \d+ tokens, and the longest prompt from leg_counting has \d+; max_tokens=5000 .* at most"
    with pytest.raises(InputError, match=message):
        run_evaluation(_config(tmp_path / "e", {"m": "tiny"}, "sampling.max_tokens=5000"))
    assert not (tmp_path / "e").exists()


def test_prompts_count_when_batches_are_fitted_to_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With short answers to long prompts, keys and values of the prompts need most of the memory."""
    sizes, generate = [], EmbeddedEngine.generate

    def noted(engine: EmbeddedEngine, prompts: Any, sampling: Any) -> Any:
        sizes.append((engine.max_batch_size, max(map(len, prompts)) + sampling.max_tokens, engine.config))
        return generate(engine, prompts, sampling)

    monkeypatch.setattr(EmbeddedEngine, "generate", noted)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**26))
    run_evaluation(_config(tmp_path / "e", {"m": "tiny"}, "sampling.max_tokens=4", "prompt.few_shot=2"))
    size, tokens, config = sizes[-1]
    each = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens
    assert size * each <= 2**24 < 2 * size * each


def test_no_model_is_prompted_before_all_can_be_loaded(tmp_path: Path) -> None:
    """A damaged second model is reported before the first one is evaluated."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}'"):
        run_evaluation(_config(tmp_path / "e", {"a": "tiny", "b": str(tmp_path)}))
    assert not (tmp_path / "e").exists()


def test_adapters_without_a_base_model_are_reported(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="does not name the adapters' base model"):
        run_evaluation(_config(tmp_path / "e", {"m": str(tmp_path)}))


# vLLM


class Gpus:
    """A machine with two GPUs, simulated by environment variables and a stand-in for vLLM."""

    def __init__(self, folder: Path):
        self.folder, self._log = folder, folder / "stand_in.jsonl"
        module = folder / "site" / "vllm" / "entrypoints" / "openai" / "api_server.py"
        module.parent.mkdir(parents=True)
        for package in list(module.parents)[:3]:  # so that an installed vLLM does not take precedence
            (package / "__init__.py").touch()
        shutil.copy(Path(__file__).with_name("vllm_stand_in.py"), module)
        (folder / "site" / "vllm-0.32.0.dist-info").mkdir()
        (folder / "site" / "vllm-0.32.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
        helpers = Path(__file__).parents[1] / "helpers"
        paths = [str(folder / "site"), str(helpers), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "STAND_IN_LOG": str(self._log)}
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)

    def start(self, models: dict[str, Any], *overrides: str, n: int) -> subprocess.Popen[str]:
        folder = str(self.folder / "results")
        arguments = ["eval", f"models={json.dumps(models)}", "--tasks", "leg_counting", "-n", str(n), "--output-dir",
                     folder, "requests.concurrency=4", "serving.kind=vllm", *overrides]  # fmt: skip
        command = [*PYTHON, "-m", "rg_env.cli.main", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def evaluate(self, models: dict[str, Any], *overrides: str, n: int) -> dict[str, int]:
        """Run an evaluation and return the number of answers of each model."""
        _, error = (process := self.start(models, *overrides, n=n)).communicate()
        assert process.returncode == 0, error
        results = read_results(results_files(self.folder / "results")[0])
        return {name: each.scores.answers for name, each in results.tasks["leg_counting"].models.items()}

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in json_lines(self._log) if kind in line] if self._log.exists() else []

    def running(self) -> list[int]:
        return [line["pid"] for line in self.notes("start") if psutil.pid_exists(line["pid"])]


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


def _model(folder: Path, **tokenizer: Any) -> str:
    """Copy the tiny policy with changes to its tokenizer's configuration."""
    shutil.copytree(POLICY_DIR, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **tokenizer}))
    return str(folder)


def test_each_model_has_a_gpu_and_its_own_arguments(gpus: Gpus, tmp_path: Path) -> None:
    """A server of adapters gets their base model and rank. If a chat template has no system role, the user message
    contains the system message, as in training. The third model waits for a free GPU, and all servers end."""
    lora = tmp_path / "lora"
    lora.mkdir()
    adapters = {"base_model_name_or_path": "tiny", "r": 24, "rank_pattern": {"q_proj": 40}}
    (lora / "adapter_config.json").write_text(json.dumps(adapters))
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    end = "{% endfor %}{% if add_generation_prompt and enable_thinking %}<think>{% endif %}"
    without = _model(tmp_path / "without", chat_template=template + end)
    (Path(without) / "chat_template.jinja").unlink(missing_ok=True)
    models = {"base": "tiny", "lora": str(lora), "without": without}
    own = ["prompt.chat_template_kwargs.enable_thinking=true", "sampling.stop=[x]"]
    assert gpus.evaluate(models, "serving.vllm_args=[--max-model-len, '256']", *own, n=3) == dict.fromkeys(models, 3)
    assert {line["gpu"] for line in gpus.notes("start")} == {"0", "1"}
    started = {(start["model"], start["lora_modules"]): start for start in (n["start"] for n in gpus.notes("start"))}
    names = [(str(POLICY_DIR), None), (str(POLICY_DIR), f"adapter={lora}"), (without, None)]
    assert set(started) == set(names)
    assert [started[name]["max_lora_rank"] for name in names] == [None, 64, None]
    assert {(start["host"], start["max_model_len"]) for start in started.values()} == {("127.0.0.1", 256)}
    requests = gpus.notes("request")
    assert sorted(line["request"] for line in requests) == 6 * [["system", "user"]] + 3 * [["user"]]
    # All settings are sent, so that no default of the server or the model applies.
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
             "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": ["x"], "include_stop_str_in_output": True,
             "add_generation_prompt": True}  # fmt: skip
    for line in requests:
        kwargs = {} if "system" in line["request"] else {"chat_template_kwargs": {"enable_thinking": True}}
        assert line["sampling"] == {**plain, **kwargs, "max_tokens": line["sampling"]["max_tokens"]}
    # The third model's template opens a thinking section that the answers do not close.
    statuses = {(r["model"], r["status"] == "no_answer") for r in json_lines(tmp_path / "results" / "rollouts.jsonl")}
    assert statuses == {("base", False), ("lora", False), ("without", True)}
    assert gpus.running() == []


def test_a_free_gpu_serves_a_second_copy_of_a_model(gpus: Gpus) -> None:
    """Both GPUs serve the model, and each question is sent once."""
    assert gpus.evaluate({"m": "tiny"}, n=300) == {"m": 300}
    asked = [line["gpu"] for line in gpus.notes("request")]
    assert len(asked) == 300
    assert min(asked.count("0"), asked.count("1")) > 50


def test_a_server_that_ends_is_reported_and_the_others_continue(gpus: Gpus, tmp_path: Path) -> None:
    """The error quotes the last line of the server's log without delay, and the other model's answers are kept."""
    failing = gpus.environment["STAND_IN_FAILS"] = _model(tmp_path / "failing")
    process = gpus.start({"bad": failing, "good": "tiny"}, "serving.gpus=[1]", n=10)
    _, error = process.communicate(timeout=300)  # far less than the time limit for a server's start
    assert process.returncode == 2
    assert f"vLLM for {failing} exited with code 1 (torch.OutOfMemoryError: there is not enough of it): see " in error
    assert "--resume" in error
    assert [record["model"] for record in json_lines(tmp_path / "results" / "rollouts.jsonl")] == 10 * ["good"]
    assert [line["gpu"] for line in gpus.notes("start")] == ["1", "1"]
    assert gpus.running() == []


def test_ctrl_c_ends_the_servers(gpus: Gpus) -> None:
    process = gpus.start({"m": "tiny"}, n=2000)
    while not gpus.notes("request") and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert (process.returncode, without_progress(error)) == (130, "interrupted\n")
    assert gpus.notes("start")
    assert gpus.running() == []


@pytest.mark.parametrize(
    ("gpus", "vllm", "engine"),
    [(("0",), "1.0", "vllm"), ((), "1.0", "embedded"), (("0",), None, "embedded"), (("0",), "1.0+cpu", "embedded")],
)
def test_vllm_is_used_if_it_is_installed_and_there_is_a_gpu(
    gpus: tuple[str, ...], vllm: str | None, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "here", lambda: Machine(gpus, vllm, Path()))
    assert local_engine(load_eval_config(None, ["models=other", "tasks=maze"])) == engine


def test_a_machine_without_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error includes the command that installs vLLM."""
    monkeypatch.setattr(Machine, "here", lambda: Machine(("0",), None, Path()))
    given = ["models=tiny", "tasks=leg_counting", "num_examples=1", "serving.kind=vllm", f"output.dir={tmp_path}"]
    with pytest.raises(MissingExtraError, match=r"vLLM is not installed: .*setup\.sh --gpu"):
        run_evaluation(load_eval_config(None, given))
