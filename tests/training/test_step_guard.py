"""A non-finite loss or gradient changes no weight. test_processes.py covers several processes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_metrics import logged, results_of
from transformers import AutoModelForCausalLM, TrainerCallback

from rg_env.errors import TrainingError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, train
from rg_env.training.algorithms.objective import _through_gradient as through_gradient
from rg_env.training.checkpointing.checkpoints import finite_weights

NONE = EvaluationPlan(before=False, after=False, every=0)


class Poison:
    """A hook that corrupts the model's output in the given training passes, counted from 0."""

    def __init__(self, model: Any, passes: set[int], by: float = math.nan) -> None:
        self.passes, self.by, self.count = passes, by, -1
        model.model.register_forward_hook(self._act)

    def _act(self, module: Any, args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return output  # sampling
        self.count += 1
        if self.count in self.passes:
            output.last_hidden_state = output.last_hidden_state * self.by
        return output


class Watch(TrainerCallback):
    """Records weights, optimizer state and learning rate at the end of each step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.kept = trainer, {}
        trainer.add_callback(self)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = self.trainer.model, self.trainer.optimizer
        weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        moments = [
            {key: value.clone() for key, value in moment.items()} for moment in optimizer.state_dict()["state"].values()
        ]
        self.kept[state.global_step] = (weights, moments, self.trainer._learning_rates())


def same(one: Any, other: Any) -> bool:
    """Return whether weights, optimizer state and learning rate are bit-identical."""
    weights = all(torch.equal(weight, other[0][name]) for name, weight in one[0].items())
    pairs = zip(one[1], other[1], strict=True)
    return weights and one[2] == other[2] and all(torch.equal(a[key], b[key]) for a, b in pairs for key in a)


@pytest.fixture
def fresh(make_trainer: Any) -> Callable[..., Any]:
    """Return a function that makes a trainer with two micro-batches per step and a falling learning rate."""

    def make(**fields: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        fields = {"max_steps": 4, "learning_rate": 1e-3, "lr_scheduler_type": "linear", "max_tokens": 8, **fields}
        return make_trainer(model=model, **fields)

    return make


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("by", [math.nan, math.inf])
def test_one_bad_pass_skips_only_its_step(
    fresh: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], max_grad_norm: float, by: float
) -> None:
    """The second pass of step 2 is bad, so step 2 keeps the weights, moments and learning rate of step 1, and step 3
    updates them."""
    trainer = fresh(max_steps=3, max_grad_norm=max_grad_norm)
    watch = Watch(trainer)
    Poison(trainer.model, {3}, by)
    train(trainer, evaluation=NONE)
    assert same(watch.kept[1], watch.kept[2])
    assert not same(watch.kept[2], watch.kept[3])
    assert finite_weights(trainer.model)
    steps = [line for line in logged(tmp_path / "run") if "reward" in line]
    assert [line["skipped_steps"] for line in steps] == [0, 1, 1]
    assert [line["loss"] is None for line in steps] == [False, True, False]  # JSON has no NaN
    skipped = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert skipped == ["step 2: skipped, non-finite loss (1/3 consecutive); weights and optimizer unchanged"]


def test_a_skipped_step_is_not_compared_with_the_sampler(fresh: Any) -> None:
    """The log-probabilities of a skipped step are not finite, which does not mean that a server has other weights."""
    trainer, seen = fresh(max_steps=2), list[float]()
    Poison(trainer.model, {0})
    trainer.engine.check_parity = seen.append
    trainer.train()
    assert trainer.guard.skipped == 1
    assert len(seen) == 1
    assert seen[0] < 1e-4


def test_a_skipped_step_leaves_the_previous_policy_as_it_is(fresh: Any) -> None:
    """The reference of the KL term remains the policy before the last update that was made."""
    trainer = fresh(max_steps=2, beta=0.1, kl_reference="previous")
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    Poison(trainer.model, {2})
    trainer.train()
    with trainer.reference.in_place():
        assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())


def test_three_bad_steps_end_the_run_with_the_last_good_weights(fresh: Any, tmp_path: Path) -> None:
    """The error is one line. A resumed run again tolerates up to two consecutive skipped steps and continues the total
    count."""
    trainer = fresh(max_steps=9)
    watch = Watch(trainer)
    Poison(trainer.model, set(range(2, 99)))
    with pytest.raises(
        TrainingError, match=r"^3 consecutive steps were skipped, up to step 4: non-finite loss"
    ) as caught:
        train(trainer, evaluation=NONE)
    assert "lower training.learning_rate or training.max_grad_norm, and resume with --resume auto" in str(caught.value)
    assert (caught.value.exit_code, "\n" in str(caught.value)) == (1, False)
    results = results_of(tmp_path / "run")
    assert (results["steps"], results["error"]) == (4, str(caught.value))
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint-4", dtype=torch.float32)
    assert all(torch.equal(weight, watch.kept[1][0][name]) for name, weight in stored.named_parameters())

    again = fresh(max_steps=8)
    Poison(again.model, set(range(2, 6)))
    train(again, evaluation=NONE, resume="auto")
    steps = [line["skipped_steps"] for line in logged(tmp_path / "run") if "reward" in line]
    assert steps == [0, 1, 2, 3, 3, 4, 5, 5]


def test_three_bad_steps_at_the_end_are_an_error(fresh: Any, tmp_path: Path) -> None:
    trainer = fresh(max_steps=3)
    Poison(trainer.model, set(range(99)))
    with pytest.raises(TrainingError, match="3 consecutive steps were skipped, up to step 3"):
        train(trainer, evaluation=NONE)
    assert (tmp_path / "run" / "checkpoint-3" / "optimizer.pt").exists()


def test_overflowed_weights_are_reported_and_not_saved(fresh: Any, tmp_path: Path) -> None:
    """An update with finite gradients can still overflow; the error is raised in the next step."""
    trainer = fresh(learning_rate=3e38, max_grad_norm=0.0, optim="sgd")
    Poison(trainer.model, {0, 1}, 1e3)  # larger gradients, still finite
    with pytest.raises(TrainingError, match=r"the weights are not finite after step 2.* \(3e\+38\)") as caught:
        train(trainer, evaluation=NONE)
    assert "cannot save checkpoint-2" in caught.value.__notes__[0]
    assert not list((tmp_path / "run").glob("checkpoint*"))


def test_a_non_finite_loss_spoils_its_gradients() -> None:
    """A finite loss keeps its gradients bit for bit, whereas a non-finite loss makes all of them NaN."""
    weight = torch.tensor([0.1, -3e-20, 7e15], requires_grad=True)
    loss = (weight * weight.detach()).sum() / 3
    (plain,) = torch.autograd.grad(loss, weight, retain_graph=True)
    (through,) = torch.autograd.grad(through_gradient(loss), weight)
    assert torch.equal(plain, through)
    assert torch.equal(loss, through_gradient(loss))
    for bad in (math.nan, math.inf, -math.inf):
        (spoilt,) = torch.autograd.grad(through_gradient(weight.sum() + bad), weight)
        assert spoilt.isnan().all()
