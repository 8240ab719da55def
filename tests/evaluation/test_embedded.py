"""Evaluations of models in this process: the tiny policy, adapters on it, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from rg_env.errors import EngineError, InputError, ServerError
from rg_env.evaluation.config import eval_config_of
from rg_env.evaluation.runner import run_evaluation
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.tiny import POLICY_DIR

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LoRA adapters as they begin: the model with them answers as it does without."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters")
    model: Any = AutoModelForCausalLM.from_pretrained(POLICY_DIR)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).save_pretrained(folder)
    return folder


def _config(folder: Path, models: dict[str, Any], *overrides: str) -> Any:
    given = [f"models={json.dumps(models)}", "tasks=leg_counting", "num_examples=12", f"output.dir={folder}"]
    return eval_config_of([*given, "sampling.max_tokens=60", *overrides])


def test_adapters_are_put_on_their_model(adapters: Path, tmp_path: Path) -> None:
    """Greedy answers are those of the model itself; with another system prompt they are others."""
    models = {"base": "tiny", "lora": str(adapters), "told": {"model": "tiny", "system_prompt": ""}}
    results, folder = run_evaluation(_config(tmp_path / "e", models, "sampling.temperature=0"))
    found = results.tasks["leg_counting"].models
    assert [each.kind for each in found.values()] == ["tiny", "adapter", "tiny"]
    texts: dict[str, list[str]] = {}
    for line in (folder / "rollouts.jsonl").read_text().splitlines():
        record = json.loads(line)
        texts.setdefault(record["model"], []).append(f"{record['problem']} {record['completion']}")
    assert sorted(texts["lora"]) == sorted(texts["base"]) != sorted(texts["told"])
    assert found["lora"].correct == found["base"].correct
    (pair,) = [each for each in results.comparisons if (each.a, each.b) == ("lora", "base")]
    assert (pair.difference, pair.p_value) == (0, 1)


def test_the_same_seed_gives_the_same_answers(tmp_path: Path) -> None:
    """Another one does not."""
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        _, folder = run_evaluation(_config(tmp_path / name, {"m": "tiny"}, f"seed={seed}"))
        records = map(json.loads, (folder / "rollouts.jsonl").read_text().splitlines())
        found.append(sorted((record["problem"], record["completion"]) for record in records))
    assert found[0] == found[1] != found[2]


def test_an_engine_that_fails_leaves_the_other_models(adapters: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The second model is evaluated completely, and no results file is written."""
    generate = EmbeddedEngine.generate

    def fails(engine: EmbeddedEngine, prompts: Any, sampling: Any) -> Any:
        if engine.model_name == "tiny":
            raise EngineError("out of memory")
        return generate(engine, prompts, sampling)

    monkeypatch.setattr(EmbeddedEngine, "generate", fails)
    config = _config(tmp_path / "e", {"base": "tiny", "lora": str(adapters)})
    with pytest.raises(ServerError, match=r"^base: out of memory; no results are written"):
        run_evaluation(config)
    records = [json.loads(line) for line in (tmp_path / "e" / "rollouts.jsonl").read_text().splitlines()]
    assert [record["model"] for record in records] == ["lora"] * 12
    assert not list((tmp_path / "e").glob("results*"))


def test_a_prompt_that_does_not_fit_is_reported_before_any_call(tmp_path: Path) -> None:
    message = r"a context of \d+ tokens, and a prompt of leg_counting takes \d+: max_tokens=5000 .* at most \d+, or"
    with pytest.raises(InputError, match=message):
        run_evaluation(_config(tmp_path / "e", {"m": "tiny"}, "sampling.max_tokens=5000"))
    assert not (tmp_path / "e").exists()


def test_no_model_is_prompted_before_all_can_be_loaded(tmp_path: Path) -> None:
    """A damaged second one is reported at once."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}'"):
        run_evaluation(_config(tmp_path / "e", {"a": "tiny", "b": str(tmp_path)}))
    assert not (tmp_path / "e").exists()


def test_adapters_that_name_no_model_are_told(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="does not name the adapters' base model"):
        run_evaluation(_config(tmp_path / "e", {"m": str(tmp_path)}))
