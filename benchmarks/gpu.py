"""Check that rg_env works on this machine's GPU, and measure its speed.

    python benchmarks/gpu.py                  # Qwen2.5-0.5B's and 1.5B's shapes, random weights; about ten minutes
    python benchmarks/gpu.py --shapes 0.5B --steps 4
    python benchmarks/gpu.py --shapes tiny    # the packaged tiny policy, the default without a GPU

The script needs torch (2.11 or later), transformers (5.16 or later), accelerate and pydantic, but neither Verifiers nor
Reasoning Gym. It prints a table for `benchmarks/README.md` with one row per check. If a check fails, its row contains
the reason, and the exit code is 1.

| check | passes if |
|---|---|
| attention | log-probabilities of every available kernel match those of eager attention, within the dtype's precision |
| engine | log-probabilities of sampled tokens match those of a plain forward pass in the same dtype |
| trainer | GRPO steps are finite and change the weights; peak GPU memory is within 50% of `rg-env doctor`'s estimate |
| TRL | (if installed) `trl.GRPOTrainer` completes the same steps; the ratio of step times is reported |
| vLLM | (if installed) the tiny policy learns with a server on the same GPU; log-probabilities match after each sync |
"""

import argparse
import gc
import itertools
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script runs from a checkout without being installed

from rg_env.commands import prepare_process

prepare_process()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen2Config, TrainerCallback  # noqa: E402

from rg_env.core.environment import Environment  # noqa: E402
from rg_env.inference.embedded.engine import EmbeddedEngine  # noqa: E402
from rg_env.inference.models import load_policy  # noqa: E402
from rg_env.inference.protocol import Sampling  # noqa: E402
from rg_env.training.config.grpo import GRPOConfig  # noqa: E402
from rg_env.training.memory_estimate import ModelShape, estimate  # noqa: E402
from rg_env.training.trainer import GRPOTrainer  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = torch.bfloat16 if CUDA else torch.float32
TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}
"""Maximum allowed mean absolute difference between two computations of log-probabilities, by dtype."""
SHAPES = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2},
}  # fmt: skip
PROMPTS, ROLLOUTS, MICRO_BATCH = 16, 8, 16
MEMORY_BOUNDS = (0.5, 1.5)
"""Accepted range of the ratio of measured peak memory to the estimate."""


class Failed(Exception):
    """Raised if a check fails."""


def policy_of(shape: str) -> tuple[Any, Any]:
    """Return a float32 model on the device, and a tokenizer. The weights are random, except for `tiny`, which is
    trained."""
    tiny = load_policy("tiny")
    if shape == "tiny":
        return tiny.model.to(DEVICE), tiny.tokenizer
    torch.manual_seed(0)
    fixed = {"vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": 4096}
    config = Qwen2Config(**SHAPES[shape], **fixed)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32), tiny.tokenizer


def length(rollout: Any) -> float:
    """Return a reward that depends only on the rollout's length, so that it differs between the rollouts of a group."""
    return float(len(rollout.token_ids) % 7) / 7


def environment(steps: int) -> Environment:
    rows = [{"question": f"What is {a} + {a + 3}?", "answer": str(2 * a + 3)} for a in range(PROMPTS * steps)]
    return Environment(rows, rewards=[length])


def plain_logps(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities of `ids[1:]`, computed by a plain forward pass."""
    tokens = torch.tensor([ids], device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE.type, dtype=HALF, enabled=torch.float32 != HALF):
        logits = model(input_ids=tokens).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]


def check_attention(shape: str) -> str:
    """Compare each attention kernel with eager attention."""
    ids = torch.randint(5, 700, (512,), generator=torch.Generator().manual_seed(0)).tolist()
    expected, found = None, []
    for kind in ("eager", "sdpa", "flash_attention_2"):
        try:
            model, _ = policy_of(shape)
            model.set_attn_implementation(kind)
            logps = plain_logps(model.to(HALF), ids[: 256 if shape == "tiny" else 512])
        except (ImportError, ValueError) as error:
            found.append(f"{kind}: not available ({str(error).split('.')[0][:60]})")
            continue
        expected = logps if expected is None else expected
        difference = float((logps - expected).abs().mean())
        if not difference <= TOLERANCE[HALF]:
            raise Failed(f"{kind} differs from eager by {difference:.3g} on average")
        found.append(f"{kind} {difference:.1e}")
        del model
    return ", ".join(found)


def check_engine(shape: str, tokens: int) -> str:
    """Compare sampled log-probabilities with those of a plain forward pass, and measure tokens per second."""
    model, tokenizer = policy_of(shape)
    model = model.to(HALF)
    engine = EmbeddedEngine(model, tokenizer)
    env = environment(1)
    encode = lambda row: tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)  # noqa: E731
    prompts = [ids for row in env.train_rows for ids in [encode(row)] * ROLLOUTS]
    engine.generate(prompts[:ROLLOUTS], Sampling(max_tokens=8))  # warm-up
    synchronise()
    start = time.perf_counter()
    found = engine.generate(prompts, Sampling(max_tokens=tokens))
    synchronise()
    seconds = time.perf_counter() - start
    count = sum(len(each.token_ids) for each in found)
    differences = []
    for prompt, completion in list(zip(prompts, found, strict=True))[::16]:
        theirs = plain_logps(model, prompt + completion.token_ids)[len(prompt) - 1 :]
        differences.append(float((theirs.cpu() - torch.tensor(completion.logprobs)).abs().mean()))
    worst = max(differences)
    if not worst <= TOLERANCE[HALF]:
        raise Failed(
            f"sampled log-probabilities differ from those of a forward pass by {worst:.3g} on average in the worst "
            "completion"
        )
    return (
        f"{count / seconds:,.0f} tokens/s ({len(prompts)} rollouts at once), log-probabilities "
        f"differ by {worst:.1e} on average in the worst completion"
    )


def arguments(folder: str, steps: int, tokens: int) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": steps, "rollouts_per_step": PROMPTS * ROLLOUTS, "num_generations": ROLLOUTS,
        "per_device_train_batch_size": MICRO_BATCH, "max_tokens": tokens, "learning_rate": 1e-6, "warmup_steps": 0,
        "gradient_checkpointing": False, "shuffle_dataset": False, "save_steps": 0,
    }  # fmt: skip


class Clock(TrainerCallback):
    """Callback that records when training begins and when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        synchronise()
        self.ends.append(time.perf_counter())

    on_step_end = on_train_begin

    @property
    def seconds(self) -> float:
        """Median seconds per step, excluding the first step."""
        return statistics.median([end - start for start, end in itertools.pairwise(self.ends)][1:])


def check_trainer(shape: str, steps: int, tokens: int, times: dict[str, float]) -> str:
    """Check that GRPO steps are finite, change the weights and, on a GPU, use about as much memory as estimated."""
    model, tokenizer = policy_of(shape)
    before = next(p for p in model.parameters() if p.dim() > 1).detach().clone()
    clock = Clock()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(**arguments(folder, steps, tokens))
        trainer = GRPOTrainer(model, environment(steps), config, tokenizer, callbacks=[clock])
        trainer.train()
    steps_logged = [line for line in trainer.state.log_history if "loss" in line]
    times[shape] = clock.seconds
    if trainer.guard.skipped:
        raise Failed(f"{trainer.guard.skipped} steps were skipped because they were not finite")
    after = next(p for p in trainer.accelerator.unwrap_model(trainer.model).parameters() if p.dim() > 1)
    if torch.equal(before, after.detach()):
        raise Failed("the weights did not change")
    per_step = statistics.median([line["num_tokens"] for line in steps_logged]) / len(steps_logged)
    text = f"{clock.seconds:.2f} s/step, about {per_step / clock.seconds:,.0f} tokens/s"
    if not CUDA:
        return text
    longest = max(len(prompt) for prompt in trainer.rollouts.prompt_ids) + tokens
    sizes = ModelShape.of(
        trainer.accelerator.unwrap_model(trainer.model).config, sum(p.numel() for p in model.parameters())
    )
    expected = estimate(
        sizes, micro_batch=MICRO_BATCH, tokens=longest, logit_tokens=tokens, checkpointing=False,
        cached_tokens=PROMPTS * ROLLOUTS * longest, sequences=PROMPTS * ROLLOUTS,
    ).total  # fmt: skip
    peak = torch.cuda.max_memory_allocated()
    share = peak / expected
    text += f", peak {peak / 1e9:.1f} GB ({share:.2f} of the estimate)"
    if not MEMORY_BOUNDS[0] <= share <= MEMORY_BOUNDS[1]:
        raise Failed(f"{text}: not in {MEMORY_BOUNDS}")
    return text


def check_trl(shape: str, steps: int, tokens: int, times: dict[str, float]) -> str:
    """Measure the step time of TRL's trainer with the same prompts and batch sizes."""
    import trl
    from datasets import Dataset

    model, tokenizer = policy_of(shape)
    rows = [{"prompt": row["prompt"]} for row in environment(steps).train_rows]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder, max_steps=steps, learning_rate=1e-6, lr_scheduler_type="constant",
            per_device_train_batch_size=MICRO_BATCH, num_generations=ROLLOUTS,
            gradient_accumulation_steps=PROMPTS * ROLLOUTS // MICRO_BATCH, max_completion_length=tokens, beta=0.0,
            temperature=1.0, shuffle_dataset=False, gradient_checkpointing=False, bf16=CUDA, use_cpu=not CUDA,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip

        def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
            return [float(len(ids) % 7) / 7 for ids in completion_ids]

        trl.GRPOTrainer(
            model=model, processing_class=tokenizer, args=config, reward_funcs=reward,
            train_dataset=Dataset.from_list(rows), callbacks=[clock],
        ).train()  # fmt: skip
    if shape not in times:
        raise Failed("nothing to compare with, because rg_env's trainer did not finish")
    return f"TRL {trl.__version__}: {clock.seconds:.2f} s/step, {clock.seconds / times[shape]:.2f} times rg_env's"


def check_vllm(backend: str) -> str:
    """Check that the tiny policy learns with a server, and that log-probabilities match after each sync."""
    from vllm_servers import server

    from rg_env.tiny import POLICY_DIR
    from rg_env.training.config.schema import EngineConfig

    policy = load_policy("tiny")
    question = "State the final answer to the following arithmetic problem: {} + {} ="
    pairs = itertools.product(range(10, 42), range(11, 27))
    rows = [{"question": question.format(a, b), "answer": str(a + b)} for a, b in pairs]
    with tempfile.TemporaryDirectory() as folder, server(POLICY_DIR, Path(folder) / "vllm.log", backend) as port:
        config = GRPOConfig(output_dir=folder, max_steps=8, learning_rate=1e-4, rollouts_per_step=128, warmup_steps=0,
                            per_device_train_batch_size=64, max_tokens=64, save_steps=0)  # fmt: skip
        trainer = GRPOTrainer(
            policy.model, Environment(rows), config, policy.tokenizer, engine=EngineConfig(kind="vllm", port=port)
        )
        trainer.train()
        trainer.engine.close()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    curve = [line["accuracy"] for line in lines]
    gain = statistics.fmean(curve[-3:]) - statistics.fmean(curve[:3])
    syncs = [line["weight_sync/seconds"] for line in lines]
    worst = max(line["weight_sync/logprob_difference"] for line in lines)
    unproven = max(line["weight_sync/unproven_tensors"] for line in lines)
    if gain < 0.1:
        raise Failed(f"the policy did not learn: accuracy {curve[0]:.2f} to {curve[-1]:.2f}")
    return (
        f"{backend}: accuracy {curve[0]:.2f} to {curve[-1]:.2f} in {len(curve)} steps, "
        f"{statistics.median(syncs):.2f} s per sync, mean differences in log-probabilities of at most {worst:.1e}, "
        f"{unproven:.0f} tensors that could not be read back"
    )


def synchronise() -> None:
    if CUDA:
        torch.cuda.synchronize()


def has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", nargs="+", choices=["tiny", *SHAPES], default=["0.5B", "1.5B"] if CUDA else ["tiny"]
    )
    parser.add_argument("--steps", type=int, default=6, help="steps of each trainer; the first is warm-up (default 6)")
    parser.add_argument("--max-tokens", type=int, default=256 if CUDA else 32)
    parser.add_argument("--without", nargs="+", choices=["trl", "vllm"], default=[])
    options = parser.parse_args()
    if options.steps < 3:
        parser.error("--steps must be at least 3")
    times: dict[str, float] = {}
    checks: list[tuple[str, Callable[[], str]]] = []
    for shape in options.shapes:
        sizes = (shape, options.steps, options.max_tokens, times)
        checks.append((f"attention, {shape}", lambda shape=shape: check_attention(shape)))
        checks.append((f"engine, {shape}", lambda shape=shape: check_engine(shape, options.max_tokens)))
        checks.append((f"trainer, {shape}", lambda sizes=sizes: check_trainer(*sizes)))
        if has("trl") and "trl" not in options.without:
            checks.append((f"TRL, {shape}", lambda sizes=sizes: check_trl(*sizes)))
    if has("vllm") and "vllm" not in options.without:
        backends = ["rg_env_shm", *(["nccl"] if CUDA and torch.cuda.device_count() > 1 else [])]
        checks += [(f"vLLM, {backend}", lambda backend=backend: check_vllm(backend)) for backend in backends]
    name = torch.cuda.get_device_name() if CUDA else "CPU"
    rollouts = f"{PROMPTS} prompts x {ROLLOUTS} rollouts of at most {options.max_tokens} tokens"
    print(f"{name}, torch {torch.__version__}, {str(HALF).removeprefix('torch.')}, {rollouts}\n")
    print("| check | result |\n|---|---|", flush=True)
    failed = 0
    for title, check in checks:
        try:
            result = check()
        except Exception as error:  # libraries can raise any exception on unfamiliar machines
            failed += 1
            if not isinstance(error, Failed):
                traceback.print_exc()
            result = f"**FAILED**: {' '.join(str(error).split()) or type(error).__name__}"
        print(f"| {title} | {result} |", flush=True)
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
    print(f"\n{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
