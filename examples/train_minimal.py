"""GRPO with nothing hidden: your own data, your own reward functions, and the training arguments on the page.

    python examples/train_minimal.py                                     # tiny policy, questions made by hand below
    python examples/train_minimal.py --tasks chain_sum leg_counting       # tasks of Reasoning Gym
    python examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 200
    python examples/train_minimal.py --data openai/gsm8k --data-config main --answer-after "####" --model ...

--data takes a .csv, .json, .jsonl or .parquet file, or a dataset on the hub, with columns `question` and `answer`.
Learning rate, batch and lengths depend on the model unless they are given: see `rg_env.training.default_config`.

Two terminals, on a GPU node:

    CUDA_VISIBLE_DEVICES=0 rg-env vllm Qwen/Qwen2.5-7B-Instruct --host 127.0.0.1 --port 8000
    CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --config-file configs/zero3.yaml --num-processes 3 \\
        examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-7B-Instruct --engine vllm \\
        --rollouts-per-step 120
"""

import argparse
import random

from rg_env import Environment, ReasoningGym, extract
from rg_env.commands import Names, positive, run_command, seed


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
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", help="file or hub dataset with questions and answers")
    source.add_argument("--tasks", action=Names, nargs="+", help="Reasoning Gym tasks (`rg-env tasks`)")
    parser.add_argument("--data-config", help="configuration of a hub dataset")
    parser.add_argument("--question-column", default="question")
    parser.add_argument("--answer-column", default="answer")
    parser.add_argument("--answer-after", help="the gold answer is what follows this text in the answer column")
    parser.add_argument("--num-eval", type=positive, default=200, help="evaluation questions")
    parser.add_argument("--model", help="folder, name on the hub, or 'tiny' (default: by machine)")
    parser.add_argument("--attention", choices=["auto", "flash_attention_2", "sdpa", "eager"], default="auto")
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--output-dir", help="a new folder (default: a fresh one under outputs/)")
    parser.add_argument("--resume", metavar="auto|PATH", help="resume from a checkpoint, or the newest of --output-dir")
    parser.add_argument("--max-steps", type=positive)
    parser.add_argument("--rollouts-per-step", type=positive, help="over all processes")
    parser.add_argument("--batch-size", type=positive, help="rollouts of a micro-batch on each process")
    parser.add_argument("--num-generations", type=positive, default=8, help="rollouts of a prompt")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-prompt-length", type=positive, help="tokens")
    parser.add_argument("--max-tokens", type=positive, help="most new tokens")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    from rg_env.training import load_rows, split_rows

    columns = {"question_column": options.question_column, "answer_column": options.answer_column}
    if not options.tasks:  # read before anything heavy is imported: defects are reported with file and line
        given = sums(2200, options.seed) if options.data is None else options.data
        rows = load_rows(given, options.data_config, answer_after=options.answer_after, **columns)
        train_rows, eval_rows = split_rows(rows, options.num_eval, options.seed)

    from rg_env.training import EngineConfig, GRPOTrainer, choose_folder, default_config, load_policy, train

    folder = choose_folder(options.output_dir, "minimal", options.resume)
    policy = load_policy(options.model, attention=options.attention)
    if options.tasks:
        sizes = {"num_eval_examples": options.num_eval, "seed": options.seed}
        env = ReasoningGym(policy.mixture(options.tasks), rewards=["correctness", (answers_once, 0.1)], **sizes)
    else:
        env = Environment(train_rows, eval_rows, rewards=[(correct, 1.0), (answers_once, 0.1)])
    args = default_config(
        policy,
        folder,
        # by model, unless given
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        rollouts_per_step=options.rollouts_per_step,  # on however many processes
        per_device_train_batch_size=options.batch_size,
        max_prompt_length=options.max_prompt_length,
        max_tokens=options.max_tokens,
        # sampling and loss
        num_generations=options.num_generations,
        temperature=1.0,
        loss_type="bnpo",  # token-level mean; also "grpo", "dr_grpo" and "dapo"
        scale_rewards="group",  # advantages divided by the group's standard deviation
        beta=0.0,  # weight of the KL term; above 0 a reference model is kept
        num_iterations=1,  # updates made from a batch
        epsilon=0.2,  # clipping, which matters from the second update on
        seed=options.seed,
    )
    engine = EngineConfig(kind=options.engine, host=options.host, port=options.port)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine=engine)
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
