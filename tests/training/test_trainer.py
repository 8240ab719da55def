"""What `GRPOTrainer` changes, and that the parent class does not do it."""

import threading
from typing import Any

import pytest
import torch
import verifiers as vf
from datasets import Dataset
from transformers import TrainerCallback
from verifiers.trainers import GRPOTrainer as ParentTrainer

from rg_env.inference.protocol import ChatRequest
from rg_env.training import GRPOTrainer
from rg_env.training.advantages import group_advantages


def logps(cls: type, trainer: Any, inputs: dict[str, torch.Tensor], **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        result: torch.Tensor = cls._get_per_token_logps(trainer, trainer.model, ids, mask, ids.shape[1] - 1, **kwargs)
        return result


# --- the model sees the prompt


def test_logprobs_depend_on_the_prompt(make_trainer: Any, make_batch: Any) -> None:
    """Another question changes the log-probabilities of all completion tokens; in the parent, only of the first."""
    trainer = make_trainer()
    ours, theirs = [], []
    for question in ("if you have 2 dogs?", "if you have 9 bees?"):
        inputs = make_batch([question], ["2 x 4 = 8\n<answer>8</answer>"])
        mask = inputs["attention_mask"][:, 1:].bool()
        ours.append(logps(GRPOTrainer, trainer, inputs)[mask])
        theirs.append(logps(ParentTrainer, trainer, inputs)[mask])
    assert (ours[0] - ours[1])[1:].abs().max() > 1e-3
    assert (theirs[0] - theirs[1])[1:].abs().max() < 1e-5


# --- no needless forward pass


class CountForwards(TrainerCallback):
    def __init__(self, model: Any) -> None:
        self.with_gradient = self.without = 0
        model.register_forward_hook(self.count)

    def count(self, module: Any, args: Any, output: Any) -> None:
        if output.logits.shape[1] > 1:  # the engine asks for one position a call
            if torch.is_grad_enabled():
                self.with_gradient += 1
            else:
                self.without += 1


@pytest.mark.parametrize(("num_iterations", "without"), [(1, 0), (2, 2)])
def test_old_logprobs_are_computed_only_when_they_differ(
    make_trainer: Any, model: Any, num_iterations: int, without: int
) -> None:
    """With one update a batch, each micro-batch takes one forward pass; the parent takes a second one for "old"."""
    counter = CountForwards(model)
    make_trainer(max_steps=2, num_iterations=num_iterations).train()
    assert counter.with_gradient == 4
    assert counter.without == without


def test_parent_computes_old_logprobs_always(make_trainer: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's `_prepare_inputs` in its place, the same run takes the extra passes."""
    monkeypatch.setattr(GRPOTrainer, "_prepare_inputs", ParentTrainer._prepare_inputs)
    monkeypatch.setattr(GRPOTrainer, "_move_model_to_vllm", lambda self: None)
    counter = CountForwards(model)
    make_trainer(max_steps=2).train()
    assert counter.without == 4


# --- rows without advantage


def gradient(cls: type, trainer: Any, inputs: dict[str, Any]) -> torch.Tensor:
    trainer.model.zero_grad()
    cls.compute_loss(trainer, trainer.model, dict(inputs)).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.fixture
def micro_batch(make_batch: Any) -> dict[str, Any]:
    """Six rows of different lengths; rows 0, 2 and 5 carry no advantage, and row 5 is the longest."""
    questions = ["a dog?", "two dogs?", "a bee and a cow?", "9 ants?", "no legs?", "a snake?"]
    answers = ["4", "8 legs <answer>8</answer>", "6 + 4 = 10", "<answer>54</answer>", "x", "0 " * 20]
    advantages = torch.tensor([0.0, 1.0, 0.0, -0.5, 0.7, 0.0])
    return {**make_batch(questions, answers), "advantages": advantages, "old_per_token_logps": None}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo"])
def test_skipped_rows_leave_loss_and_gradient_as_they_were(
    make_trainer: Any, micro_batch: dict[str, Any], loss_type: str, old: bool
) -> None:
    """Loss and gradient equal those over all rows, for each loss type, with and without log-probs from before."""
    trainer = make_trainer(loss_type=loss_type)
    if old:
        micro_batch["old_per_token_logps"] = logps(GRPOTrainer, trainer, micro_batch) + 0.1
    skipped = gradient(GRPOTrainer, trainer, micro_batch)
    full = gradient(ParentTrainer, trainer, micro_batch)  # its loss over our log-probs
    assert full.norm() > 0
    assert (skipped - full).norm() < 1e-5 * full.norm()
    loss = GRPOTrainer.compute_loss(trainer, trainer.model, dict(micro_batch))
    torch.testing.assert_close(loss, ParentTrainer.compute_loss(trainer, trainer.model, dict(micro_batch)))


def rows_forwarded(cls: type, trainer: Any, inputs: dict[str, Any]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    hook = trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    cls.compute_loss(trainer, trainer.model, dict(inputs))
    hook.remove()
    return shapes


def test_rows_without_advantage_are_not_forwarded(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """Three of six rows go through the model, cut to their own width; in the parent all do."""
    trainer = make_trainer()
    (ours,) = rows_forwarded(GRPOTrainer, trainer, micro_batch)
    (theirs,) = rows_forwarded(ParentTrainer, trainer, micro_batch)
    assert ours[0] == 3
    assert theirs[0] == 6
    assert ours[1] < theirs[1]


def test_a_batch_without_any_advantage_still_steps(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """One row goes through, so that ranks stay in step; its gradient is zero, not missing."""
    trainer = make_trainer()
    micro_batch["advantages"] = torch.zeros(6)
    assert [shape[0] for shape in rows_forwarded(GRPOTrainer, trainer, micro_batch)] == [1]
    assert gradient(GRPOTrainer, trainer, micro_batch).abs().max() == 0


def test_nothing_is_skipped_with_a_kl_term(make_trainer: Any, micro_batch: dict[str, Any]) -> None:
    """With beta above 0 every row has a gradient."""
    trainer = make_trainer(beta=0.1)
    assert rows_forwarded(GRPOTrainer, trainer, micro_batch)[0][0] == 6


# --- whole steps


def test_weights_stay_fixed_while_a_batch_is_generated(make_trainer: Any) -> None:
    """A batch asked for during an optimizer step starts only when the step is over."""
    trainer = make_trainer(max_steps=1)
    order: list[str] = []

    class Ask(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            def generate() -> None:
                trainer.sampler.engine.generate(
                    [ChatRequest("", [{"role": "user", "content": "1 + 1 ="}], max_tokens=1)]
                )
                order.append("generated")

            self.thread = threading.Thread(target=generate)
            self.thread.start()
            self.thread.join(0.2)
            order.append("stepping")

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.thread.join()

    trainer.add_callback(Ask())
    trainer.train()
    assert order == ["stepping", "generated"]


def test_the_same_seed_gives_the_same_run(make_trainer: Any, make_env: Any) -> None:
    """Rewards and losses, step by step."""
    from transformers import AutoModelForCausalLM

    from rg_env.tiny import POLICY_DIR

    def history() -> list[tuple[float, float]]:
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        trainer = make_trainer(model=model, env=make_env(), max_steps=2, seed=3)
        trainer.train()
        return [(log["reward"], log["loss"]) for log in trainer.state.log_history if "reward" in log]

    assert history() == history()


def test_lora_trains_the_adapter_only(make_trainer: Any, model: Any) -> None:
    """With `peft_config`, as in the parent: the engine samples through the adapter."""
    from peft import LoraConfig

    before = model.model.layers[0].mlp.up_proj.weight.clone()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make_trainer(peft_config=config, max_steps=2, learning_rate=1e-2)
    trainer.train()
    assert torch.equal(before, trainer.model.base_model.model.model.layers[0].mlp.up_proj.weight)
    adapter = [p for name, p in trainer.model.named_parameters() if "lora_B" in name]
    assert any(p.abs().max() > 0 for p in adapter)


def test_own_dataset_and_rewards(make_trainer: Any) -> None:
    """A plain verifiers environment trains as well."""
    rows = Dataset.from_list([{"question": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)])

    def short(completion: Any) -> float:
        return 1.0 / (1 + len(completion[-1]["content"]))

    env = vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[short]))
    trainer = make_trainer(env=env, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["rewards/short/mean"] > 0


# --- what else the parent does


def test_equal_rewards_have_no_advantage(make_trainer: Any) -> None:
    """In groups of any size: a rounding error of the mean, scaled by the spread, made some in the parent."""
    trainer = make_trainer(num_generations=2, per_device_train_batch_size=12, gradient_accumulation_steps=1)
    trainer.num_generations = 12
    rewards = torch.tensor([1.1] * 12)
    assert ParentTrainer._compute_advantages(trainer, rewards).abs().max() > 0
    assert group_advantages(rewards, 12, "group").abs().max() == 0


def test_completion_metrics_are_the_parents(make_trainer: Any) -> None:
    """Lengths, ended and clipped completions, tokens seen: the same numbers, made without a look-up for each token."""
    trainer = make_trainer()
    end = trainer.processing_class.eos_token_id
    ids, masks, prompts = [[5, 6, end], [7, 8, 9, 9], [end]], [[1, 1, 1], [1, 0, 1, 1], [0]], [[1] * 4, [1] * 3, [1]]
    logged = []
    for cls in (GRPOTrainer, ParentTrainer):
        trainer._metrics["train"].clear()
        trainer.state.num_input_tokens_seen = 5
        cls._log_completion_metrics_primary(trainer, "train", masks, ids, prompts)
        logged.append(dict(trainer._metrics["train"]))
    assert logged[0] == logged[1]
    assert logged[0]["completions/mean_terminated_length"] == [3.0]
