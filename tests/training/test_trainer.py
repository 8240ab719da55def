"""What `GRPOTrainer` changes, and that the parent class does not do it."""

import contextlib
import socket
import threading
import time
from typing import Any

import pytest
import requests
import torch
import verifiers as vf
from datasets import Dataset
from transformers import TrainerCallback
from verifiers.trainers import GRPOTrainer as ParentTrainer

from rg_env.errors import EngineError, InputError, RewardError, ServerError, TrainingError
from rg_env.inference.protocol import ChatRequest
from rg_env.training import GRPOTrainer
from rg_env.training.seams import FAREWELL_S, SharedWeights, vllm_client, wait_for_server, weight_client


def batch(tokenizer: Any, questions: list[str], completions: list[str]) -> dict[str, torch.Tensor]:
    """Right-padded ids `(B, L)` and verifiers' loss mask, 1 on completion tokens."""
    prompts = [tokenizer(question)["input_ids"] for question in questions]
    answers = [tokenizer(completion)["input_ids"] for completion in completions]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids, mask = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        padding = [0] * (width - len(prompt) - len(answer))
        ids.append(prompt + answer + padding)
        mask.append([0] * len(prompt) + [1] * len(answer) + padding)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def logps(cls: type, trainer: Any, inputs: dict[str, torch.Tensor], **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        result: torch.Tensor = cls._get_per_token_logps(trainer, trainer.model, ids, mask, ids.shape[1] - 1, **kwargs)
        return result


# --- the model sees the prompt


def test_logprobs_depend_on_the_prompt(make_trainer: Any, tokenizer: Any) -> None:
    """Another question changes the log-probabilities of all completion tokens; in the parent, only of the first."""
    trainer = make_trainer()
    ours, theirs = [], []
    for question in ("if you have 2 dogs?", "if you have 9 bees?"):
        inputs = batch(tokenizer, [question], ["2 x 4 = 8\n<answer>8</answer>"])
        mask = inputs["attention_mask"][:, 1:].bool()
        ours.append(logps(GRPOTrainer, trainer, inputs)[mask])
        theirs.append(logps(ParentTrainer, trainer, inputs)[mask])
    assert (ours[0] - ours[1])[1:].abs().max() > 1e-3
    assert (theirs[0] - theirs[1])[1:].abs().max() < 1e-5


def test_logprobs_equal_a_direct_forward_pass(make_trainer: Any, tokenizer: Any) -> None:
    """Padded and batched, the log-probabilities are those of each sequence alone, scaled by the temperature."""
    trainer = make_trainer(temperature=0.7)
    inputs = batch(
        tokenizer, ["How many legs?", "And now, how many legs are there?"], ["<answer>8</answer>", "4 + 4 = 8"]
    )
    result = logps(GRPOTrainer, trainer, inputs)
    for row in range(2):
        mask = inputs["attention_mask"][row]
        length = int(mask.nonzero().max()) + 1
        ids = inputs["input_ids"][row : row + 1, :length]
        with torch.no_grad():
            logits = trainer.model(ids).logits[0, :-1] / 0.7
        direct = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        expected = direct * mask[1:length]
        torch.testing.assert_close(result[row, : length - 1], expected, atol=1e-5, rtol=1e-4)
        assert (result[row, length - 1 :] == 0).all()


def test_logprobs_in_chunks_are_the_same(make_trainer: Any, tokenizer: Any) -> None:
    """`batch_size` only bounds memory."""
    trainer = make_trainer()
    inputs = batch(tokenizer, ["a dog?", "two dogs?", "a bee and a cow?"], ["<answer>4</answer>", "8", "6 + 4 = 10"])
    torch.testing.assert_close(logps(GRPOTrainer, trainer, inputs, batch_size=2), logps(GRPOTrainer, trainer, inputs))


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
    """The parent's `_get_per_token_logps` in its place, the same run takes the extra passes."""
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps", ParentTrainer._get_per_token_logps)
    counter = CountForwards(model)
    make_trainer(max_steps=2).train()
    assert counter.without == 4


# --- rows without advantage


def gradient(cls: type, trainer: Any, inputs: dict[str, Any]) -> torch.Tensor:
    trainer.model.zero_grad()
    cls.compute_loss(trainer, trainer.model, dict(inputs)).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


@pytest.fixture
def micro_batch(tokenizer: Any) -> dict[str, Any]:
    """Six rows of different lengths; rows 0, 2 and 5 carry no advantage, and row 5 is the longest."""
    questions = ["a dog?", "two dogs?", "a bee and a cow?", "9 ants?", "no legs?", "a snake?"]
    answers = ["4", "8 legs <answer>8</answer>", "6 + 4 = 10", "<answer>54</answer>", "x", "0 " * 20]
    advantages = torch.tensor([0.0, 1.0, 0.0, -0.5, 0.7, 0.0])
    return {**batch(tokenizer, questions, answers), "advantages": advantages, "old_per_token_logps": None}


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


# --- errors end the run


def failing_env(make_env: Any, reward: Any) -> Any:
    env = make_env()
    return vf.SingleTurnEnv(dataset=env.dataset, eval_dataset=env.eval_dataset, rubric=vf.Rubric(funcs=[reward]))


def raising(completion: Any, answer: str) -> float:
    raise KeyError("no such key")


def not_a_number(completion: Any, answer: str) -> float:
    return float("nan")


@pytest.mark.parametrize("reward", [raising, not_a_number])
def test_a_failing_reward_ends_the_run_and_is_named(make_trainer: Any, make_env: Any, reward: Any) -> None:
    """In any environment; verifiers' rubric logs it and goes on with 0.0."""
    with pytest.raises(RewardError, match=reward.__name__):
        make_trainer(env=failing_env(make_env, reward)).train()


def test_an_engine_error_ends_the_run(make_trainer: Any) -> None:
    """With that error, at once, not with a time-out."""
    trainer = make_trainer()
    trainer.engine._forward = lambda *args: 1 / 0
    start = time.monotonic()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        trainer.train()
    assert time.monotonic() - start < 20


def test_the_parent_waits_for_a_batch_that_failed(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parent's generator the same error is lost: the run ends at the generation time-out only."""
    from verifiers.trainers.async_batch_generator import AsyncBatchGenerator

    trainer = make_trainer(async_generation_timeout=3)
    trainer.engine._forward = lambda *args: 1 / 0
    monkeypatch.setattr("openai.AsyncOpenAI", lambda **kwargs: trainer._make_client())
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    trainer.async_generator = AsyncBatchGenerator(
        env=trainer.env,
        client_config=trainer.client_config,
        model_name=trainer._get_model_name(),
        sampling_args=trainer._get_sampling_args(),
        num_batches_ahead=0,
        generation_timeout=3,
    )
    with pytest.raises(TimeoutError):
        trainer.train()


def test_a_batch_that_never_comes_is_an_error(make_trainer: Any) -> None:
    """The time-out names what it waited for."""
    trainer = make_trainer()
    with pytest.raises(TrainingError, match="batch 0 was not there after"):
        trainer.async_generator.get_batch(0, timeout=0.05)


# --- bad input


def test_prompts_too_long_are_an_error(make_trainer: Any) -> None:
    """The parent drops them."""
    with pytest.raises(
        InputError, match=r"32 of 32 training prompts are longer than max_prompt_length=8 .* longest has"
    ):
        make_trainer(max_prompt_length=8)


def test_embedded_engine_refuses_asynchronous_batches(make_trainer: Any) -> None:
    """It samples from the model that is being trained."""
    with pytest.raises(InputError, match="num_batches_ahead=1"):
        make_trainer(num_batches_ahead=1)


def test_embedded_engine_refuses_zero3(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards cannot generate."""
    monkeypatch.setattr("rg_env.training.trainer.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(InputError, match="ZeRO-3"):
        make_trainer()


def test_batches_that_make_no_groups_are_refused(make_args: Any) -> None:
    """With the nearest valid values."""
    with pytest.raises(
        InputError, match=r"num_generations=5 does not divide: nearest per_device_train_batch_size: 5, 10"
    ):
        make_args(num_generations=5)


def test_template_without_a_system_role_gets_the_prompt_in_the_question(
    make_trainer: Any, make_env: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Gemma's: the instruction stands before the question, in training and evaluation rows."""
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", refuse + tokenizer.chat_template)
    env = make_env()
    make_trainer(env=env)
    for dataset in (env.dataset, env.eval_dataset):
        (message,) = dataset[0]["prompt"]
        assert message["role"] == "user"
        assert message["content"].startswith("Think step by step")


# --- the vLLM side, as far as it goes without one


def test_no_server_is_one_clear_error() -> None:
    """With the command that starts one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match=rf"no vf-vllm server at 127.0.0.1:{port}.*vf-vllm --model"):
        wait_for_server("127.0.0.1", port, timeout_s=0.2)


class UpstreamClient:
    """verifiers' client, as far as its farewell goes."""

    server_url = ""

    def __init__(self) -> None:
        self.session = requests.Session()

    def close_communicator(self) -> None:
        with contextlib.suppress(requests.ConnectionError):
            self.session.post(f"{self.server_url}/close_communicator")


def test_exit_does_not_wait_for_a_hung_server() -> None:
    """The farewell has a deadline; verifiers' has none and would wait for ever."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()  # accepts connections and never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with weight_client(UpstreamClient):
            client = vllm_client()()
        client.server_url = url
        start = time.monotonic()
        client.close_communicator()
        assert time.monotonic() - start < FAREWELL_S + 2

        parent = UpstreamClient()
        parent.server_url = url
        waiting = threading.Thread(target=parent.close_communicator, daemon=True)
        waiting.start()
        waiting.join(FAREWELL_S + 1)
        assert waiting.is_alive()


# --- whole steps


def test_weights_stay_fixed_while_a_batch_is_generated(make_trainer: Any) -> None:
    """A batch asked for during an optimizer step starts only when the step is over."""
    trainer = make_trainer(max_steps=1)
    order: list[str] = []

    class Ask(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            def generate() -> None:
                trainer.engine.generate([ChatRequest("", [{"role": "user", "content": "1 + 1 ="}], max_tokens=1)])
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

    from rg_env.training.tiny import POLICY_DIR

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


def test_the_parent_drops_long_prompts_in_silence(make_env: Any, make_args: Any, model: Any, tokenizer: Any) -> None:
    """Where ours raises: with a limit between the shortest and the longest prompt, it trains on fewer."""
    env = make_env()
    lengths = sorted(
        len(ids) for ids in tokenizer.apply_chat_template(list(env.dataset["prompt"]), add_generation_prompt=True)
    )
    limit = lengths[len(lengths) // 2]
    assert lengths[-1] > limit
    with weight_client(SharedWeights):
        parent = ParentTrainer(model, env, make_args(max_prompt_length=limit, per_device_train_batch_size=4), tokenizer)
    assert len(parent.train_dataset) < len(env.dataset)


def test_short_rows_are_not_padded_to_long_ones(make_trainer: Any, tokenizer: Any) -> None:
    """Two lengths, eight rows each: two forward passes of their own width; in the parent one of the larger."""
    trainer = make_trainer()
    inputs = batch(tokenizer, ["a dog?"] * 16, ["4"] * 8 + ["4 " * 40] * 8)
    inputs |= {"advantages": torch.ones(16), "old_per_token_logps": None}
    ours = rows_forwarded(GRPOTrainer, trainer, inputs)
    assert sorted(rows for rows, _ in ours) == [8, 8]
    assert min(width for _, width in ours) < 0.5 * max(width for _, width in ours)


def test_logits_are_made_for_completions_only(make_trainer: Any, tokenizer: Any, model: Any) -> None:
    """One position before the completion and all of it; in the parent every position of the sequence."""
    trainer = make_trainer()
    inputs = batch(tokenizer, ["And " * 30 + "a dog?"], ["4 legs"])
    positions = []
    hook = model.register_forward_hook(lambda module, args, output: positions.append(output.logits.shape[1]))
    logps(GRPOTrainer, trainer, inputs)
    logps(ParentTrainer, trainer, inputs)
    hook.remove()
    completion = int(inputs["attention_mask"].sum())
    assert positions == [completion + 1, inputs["input_ids"].shape[1]]


def test_equal_rewards_have_no_advantage(make_trainer: Any) -> None:
    """In groups of any size: a rounding error of the mean, scaled by the spread, made some in the parent."""
    trainer = make_trainer(num_generations=2, per_device_train_batch_size=12, gradient_accumulation_steps=1)
    trainer.num_generations = 12
    rewards = torch.tensor([1.1] * 12)
    assert ParentTrainer._compute_advantages(trainer, rewards).abs().max() > 0
    assert trainer._compute_advantages(rewards).abs().max() == 0


def test_plain_completions_are_refused_by_the_embedded_engine(make_trainer: Any) -> None:
    """It speaks chat; the vLLM engine takes both."""
    rows = Dataset.from_list([{"prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)])
    env = vf.SingleTurnEnv(dataset=rows, message_type="completion", rubric=vf.Rubric())
    with pytest.raises(InputError, match="speaks chat only"):
        make_trainer(env=env)


def test_long_evaluation_prompts_are_an_error_too(make_trainer: Any, make_env: Any) -> None:
    """Before anything runs."""
    env = make_env()
    long = Dataset.from_list([{"question": "legs " * 200, "answer": "4"}])
    env = vf.SingleTurnEnv(dataset=env.dataset, eval_dataset=long, rubric=vf.Rubric())
    with pytest.raises(InputError, match="1 of 1 evaluation prompts are longer"):
        make_trainer(env=env)


def test_a_generation_batch_of_its_own_size(make_args: Any) -> None:
    """Is what has to hold whole groups."""
    assert make_args(generation_batch_size=16, num_generations=16).num_generations == 16
    with pytest.raises(InputError, match="generation_batch_size=16 is no multiple of num_generations=5"):
        make_args(generation_batch_size=16, num_generations=5)
