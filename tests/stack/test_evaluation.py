"""Evaluation of local models with a real vLLM server, as `rg-env eval` starts it on a GPU, but on the CPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from rg_env.core.processes import descendants
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.runner import run_evaluation
from rg_env.tiny import POLICY_DIR

QUESTIONS = 40


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that all processes that a test started have ended."""
    before = set(descendants(psutil.Process()))
    yield
    assert set(descendants(psutil.Process())) <= before


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    """Save random adapters, which change most answers, with a rank above vLLM's default, and return their folder."""
    model: Any = AutoModelForCausalLM.from_pretrained(POLICY_DIR)
    config = LoraConfig(r=24, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(tmp_path / "adapters")
    return tmp_path / "adapters"


def _answers(folder: Path, kind: str, model: Any, *more: str) -> dict[str, str]:
    """Evaluate a model with greedy decoding, and return its answer to each question."""
    overrides = [
        f"models={json.dumps({'m': model})}", "tasks=leg_counting", f"num_examples={QUESTIONS}",
        "sampling.max_tokens=60", "sampling.temperature=0", f"serving.kind={kind}", f"output.dir={folder}",
        "serving.vllm_args=[--max-model-len, '256']", "requests.concurrency=16", *more,
    ]  # fmt: skip
    _, folder = run_evaluation(load_eval_config(None, overrides))
    records = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    assert all(record["error"] is None for record in records), records[0]
    return {record["problem"]: record["completion"] for record in records}


@pytest.mark.full_matrix
def test_adapters_give_the_same_answers_with_vllm_and_the_embedded_engine(tmp_path: Path, adapters: Path) -> None:
    """At least 90% of the answers are identical, because rounding rarely matters. Most of the base model's differ."""
    served = _answers(tmp_path / "vllm", "vllm", str(adapters))
    embedded = _answers(tmp_path / "embedded", "embedded", str(adapters))
    base = _answers(tmp_path / "base", "embedded", "tiny")
    assert len(served) == QUESTIONS

    def same(other: dict[str, str]) -> int:
        return sum(served[problem] == answer for problem, answer in other.items())

    assert same(embedded) >= 0.9 * QUESTIONS
    assert same(base) < 0.5 * QUESTIONS
