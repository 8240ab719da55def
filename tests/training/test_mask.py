"""What the trainer's mended prompt mask is worth, end to end."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_without_the_prompt_it_does_not_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parent's log-probabilities, which do not see the prompt, the main job gains less than it must: in ten
    steps, in which it gains 0.5 and more with ours."""
    from verifiers.trainers import GRPOTrainer as ParentTrainer

    from rg_env import load_environment
    from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train

    def without_the_prompt(self: Any, model: Any, ids: Any, mask: Any, *_: Any, **__: Any) -> Any:
        return ParentTrainer._get_per_token_logps(self, model, ids, mask, ids.shape[1] - 1)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps", without_the_prompt)
    policy = load_policy("tiny")
    env = load_environment(policy.mixture("leg_counting"))
    args = default_config(policy, tmp_path / "run", use_cpu=True, max_steps=10)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded")
    results = train(trainer, evaluation=EvaluationPlan(every=1000))
    gain = results["eval_after"]["accuracy"] - results["eval_before"]["accuracy"]
    print(f"gain with the parent's mask: {gain:.2f}")
    assert gain < 0.35
