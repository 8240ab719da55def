"""GRPO with nothing hidden: your own data, your own reward functions, and the training arguments on the page.

    python examples/train_minimal.py                                     # tiny policy, questions made by hand below
    python examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 200
    python examples/train_minimal.py --data openai/gsm8k --data-config main --answer-after "####" --model ...

--data takes a .csv, .json, .jsonl or .parquet file, or a dataset on the hub, with columns `question` and `answer`.

Two terminals, on a GPU node:

    CUDA_VISIBLE_DEVICES=0 rg-env vllm Qwen/Qwen2.5-7B-Instruct --host 127.0.0.1 --port 8000
    CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --config-file configs/zero3.yaml --num-processes 3 \\
        examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-7B-Instruct --engine vllm \\
        --rollouts-per-step 120 --batch-size 8
"""

import argparse
import random

from rg_env.commands import positive, run_command, seed
from rg_env.core.grading.extraction import extract
from rg_env.errors import InputError


def sums(count, seed):
    """The rows when none are given: sums that the tiny policy can learn. Any list of such dicts will do."""
    rng = random.Random(seed)
    terms = [[rng.randint(1, 99) for _ in range(rng.randint(2, 4))] for _ in range(count)]
    wording = "State the final answer to the following arithmetic problem: {} ="
    return [{"question": wording.format(" + ".join(map(str, t))), "answer": str(sum(t))} for t in terms]


# Rewards ask for rollout, prompt, completion, answer or info by name; the model's text is data, never run it.
def correct(completion, answer):
    return float(extract(completion).answer == answer)  # the text within the last <answer>...</answer>


def answers_once(completion):
    return float(completion[-1]["content"].count("<answer>") == 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="file or hub dataset with the columns question and answer")
    parser.add_argument("--data-config", help="configuration of a hub dataset")
    parser.add_argument("--answer-after", help="the gold answer is what follows this text in the answer column")
    parser.add_argument("--num-eval", type=positive, default=200)
    parser.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: by machine)")
    parser.add_argument("--attention", choices=["auto", "flash_attention_2", "sdpa", "eager"], default="auto")
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--vllm-host", default="127.0.0.1")
    parser.add_argument("--vllm-port", type=int, default=8000)
    parser.add_argument("--output-dir", help="a new folder (default: a fresh one under outputs/)")
    parser.add_argument("--resume", metavar="auto|PATH", help="resume from a checkpoint, or the newest of --output-dir")
    parser.add_argument("--max-steps", type=positive, default=25)
    parser.add_argument("--rollouts-per-step", type=positive, default=128, help="over all processes")
    parser.add_argument("--batch-size", type=positive, default=64, help="rollouts of a micro-batch on each process")
    parser.add_argument("--num-generations", type=positive, default=8, help="rollouts of a prompt")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="1e-6 is usual from 1B parameters on")
    parser.add_argument("--max-prompt-length", type=positive, default=160)
    parser.add_argument("--max-tokens", type=positive, default=90, help="most new tokens")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    from rg_env import Environment
    from rg_env.training import EngineConfig, GRPOConfig, GRPOTrainer, load_policy, load_rows, run_folder, train

    given = sums(2200, options.seed) if options.data is None else options.data
    rows = load_rows(given, options.data_config, answer_after=options.answer_after)  # each question once
    if options.num_eval >= len(rows):
        raise InputError(f"--num-eval {options.num_eval} leaves nothing to train on: there are {len(rows)} questions")
    random.Random(options.seed).shuffle(rows)
    env = Environment(
        train_rows=rows[options.num_eval :],
        eval_rows=rows[: options.num_eval],
        rewards=[(correct, 1.0), (answers_once, 0.1)],
    )
    args = GRPOConfig(
        output_dir=str(run_folder(options.output_dir, "minimal", options.resume)),
        seed=options.seed,
        max_steps=options.max_steps,
        rollouts_per_step=options.rollouts_per_step,  # on however many processes
        per_device_train_batch_size=options.batch_size,
        num_generations=options.num_generations,
        temperature=1.0,
        max_prompt_length=options.max_prompt_length,
        max_tokens=options.max_tokens,
        # loss
        loss_type="bnpo",  # token-level mean; also "grpo", "dr_grpo" and "dapo"
        scale_rewards="group",  # advantages divided by the group's standard deviation
        beta=0.0,  # weight of the KL term; above 0 a reference model is kept
        num_iterations=1,  # updates made from a batch
        epsilon=0.2,  # clipping, which matters from the second update on
        # optimizer
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
    )
    engine = EngineConfig(kind=options.engine, host=options.vllm_host, port=options.vllm_port)
    policy = load_policy(options.model, attention=options.attention)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine=engine)
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
