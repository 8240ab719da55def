"""Learning rates and optimizers."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_scheduler

from rg_env.errors import InputError
from rg_env.training import GRPOConfig
from rg_env.training.algorithms.optimizers import learning_rate, make_optimizer


@given(
    kind=st.sampled_from(["constant", "constant_with_warmup", "linear", "cosine"]),
    steps=st.integers(1, 60),
    warmup=st.integers(0, 70),
    peak=st.floats(1e-7, 1.0),
)
def test_learning_rates_are_those_of_transformers(kind: Any, steps: int, warmup: int, peak: float) -> None:
    """The rates agree for each update, whether the warmup or the run ends first, except that the warmup is one update
    ahead: no update has a rate of 0."""
    args = GRPOConfig(max_steps=steps, warmup_steps=warmup, lr_scheduler_type=kind, learning_rate=peak)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
    for update in range(steps):
        expected = scheduler.get_last_lr()[0]
        if update < warmup and kind != "constant":
            expected = peak * (update + 1) / warmup
        assert learning_rate(args, update) == pytest.approx(expected, rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adamw_torch", torch.optim.AdamW),
        ("adamw_torch_fused", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("adafactor", torch.optim.Optimizer),
    ],
)
def test_biases_and_norms_do_not_decay(make_args: Any, model: Any, name: str, kind: type) -> None:
    """Each trained parameter is in exactly one group; frozen parameters are in none."""
    model.model.embed_tokens.weight.requires_grad_(False)
    model.model.layers[0].mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(model.config.intermediate_size))
    made = make_optimizer(make_args(optim=name, weight_decay=0.1, learning_rate=3e-4), model)
    assert isinstance(made, kind)
    decay = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in made.param_groups) == len(decay)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert set(decay) == {id(p) for p in trained.values()}
    without = {n for n, p in trained.items() if decay[id(p)] == 0}
    assert without == {n for n in trained if "norm" in n or n.endswith("bias")}
    assert without
    assert {decay[id(trained[n])] for n in trained.keys() - without} == {0.1}
    assert {group["lr"] for group in made.param_groups} == {3e-4}


def test_a_frozen_model_is_refused(make_args: Any, model: Any) -> None:
    with pytest.raises(InputError, match="there is nothing to train"):
        make_optimizer(make_args(), model.requires_grad_(False))


def groups(model: Any) -> Any:
    """Return a custom optimizer with a tenfold learning rate for norms."""
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    rest = [p for n, p in model.named_parameters() if "norm" not in n]
    return torch.optim.SGD([{"params": rest, "lr": 1e-4}, {"params": norms, "lr": 1e-3}])


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_custom_optimizer_keeps_its_learning_rates(make_trainer: Any, model: Any, scheduled: bool) -> None:
    """Learning rates follow the schedule from `args`, each from its own peak, or the user's own scheduler."""
    made = groups(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda update: 0.5**update) if scheduled else None
    fields = {"max_steps": 4, "max_tokens": 4, "lr_scheduler_type": "linear", "warmup_steps": 0}
    trainer = make_trainer(optimizers=(made, scheduler), **fields)
    trainer.train()
    rates = [1e-4, 5e-5, 2.5e-5, 1.25e-5] if scheduled else [1e-4, 7.5e-5, 5e-5, 2.5e-5]
    assert [log["learning_rate"] for log in trainer.state.log_history] == pytest.approx(rates)
    last = rates[-1] / 2 if scheduled else rates[-1]  # the scheduler has set the rates of a fifth update
    assert [group["lr"] for group in made.param_groups] == pytest.approx([last, 10 * last])


@pytest.mark.usefixtures("new_precision")
def test_one_process_has_one_precision(make_trainer: Any) -> None:
    make_trainer()
    with pytest.raises(InputError, match="bf16=True: this process already has a trainer with another precision"):
        make_trainer(bf16=True)
