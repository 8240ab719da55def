"""Train with GRPO on your own data, with your own reward functions and the training arguments spelled out in this file.

    python examples/train_minimal.py                       # without a GPU: the tiny policy on the sums generated below
    python examples/train_minimal.py --tasks chain_sum leg_counting       # Reasoning Gym tasks
    python examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-1.5B-Instruct --max-steps 200
    python examples/train_minimal.py --data openai/gsm8k --data-config main --answer-after "####" --model ...

--data takes a .csv, .json, .jsonl or .parquet file, or a dataset on the Hub, with the columns `question` and `answer`
(or those named by --question-column and --answer-column). The defaults for the learning rate, batch size and lengths
depend on the model (see `rg_env.training.default_config`).

On a GPU node, in two terminals:

    CUDA_VISIBLE_DEVICES=0 rg-env vllm Qwen/Qwen2.5-7B-Instruct --host 127.0.0.1 --port 8000
    CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --config-file configs/zero3.yaml --num-processes 3 \\
        examples/train_minimal.py --data problems.jsonl --model Qwen/Qwen2.5-7B-Instruct --engine vllm \\
        --rollouts-per-step 120
"""

import random

from rg_env import Environment, ReasoningGym, extract
from rg_env.commands import Names, OptionParser, positive, run_command, seed


def sums(count, seed):
    """Return the default rows: sums that the tiny policy can learn. Any list of dicts with the same keys works."""
    rng = random.Random(seed)
    terms = [[rng.randint(1, 99) for _ in range(rng.randint(2, 4))] for _ in range(count)]
    wording = "State the final answer to the following arithmetic problem: {} ="
    return [{"question": wording.format(" + ".join(map(str, t))), "answer": str(sum(t))} for t in terms]


# Arguments are passed by name (rollout, prompt, completion, answer, task, info). Never execute a model's text.
def correct(completion, answer):
    return float(extract(completion).answer == answer)  # the text within the last <answer>...</answer>


def answers_once(completion):
    return float(completion[-1]["content"].count("<answer>") == 1)


def main() -> int:
    parser = OptionParser(description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", help="data file, or dataset on the Hub, with questions and answers")
    source.add_argument("--tasks", action=Names, nargs="+", help="Reasoning Gym tasks (`rg-env tasks`)")
    parser.add_argument("--data-config", help="configuration (subset) of a dataset on the Hub")
    parser.add_argument("--question-column", default="question")
    parser.add_argument("--answer-column", default="answer")
    parser.add_argument("--answer-after", help="text in the answer column after which the gold answer starts")
    parser.add_argument("--num-eval", type=positive, help="evaluation questions (default: 200; fewer for small data)")
    parser.add_argument("--model", help="folder, name on the Hub, or 'tiny' (default depends on the machine)")
    parser.add_argument("--attention", choices=["auto", "flash_attention_2", "sdpa", "eager"], default="auto")
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--output-dir", help="new output folder (default: created under outputs/)")
    parser.add_argument("--resume", metavar="auto|PATH", help="checkpoint to resume from; auto: newest in --output-dir")
    parser.add_argument("--max-steps", type=positive)
    parser.add_argument("--rollouts-per-step", type=positive, help="rollouts per step, across all processes")
    parser.add_argument("--batch-size", type=positive, help="rollouts per micro-batch on each process")
    parser.add_argument("--num-generations", type=positive, default=8, help="rollouts per prompt")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-prompt-length", type=positive, help="tokens")
    parser.add_argument("--max-tokens", type=positive, help="maximum new tokens")
    parser.add_argument("--seed", type=seed, default=0)
    options = parser.parse_args()

    from rg_env.training import load_rows, split_rows

    columns = {"question_column": options.question_column, "answer_column": options.answer_column}
    if not options.tasks:  # read the data before the slow imports; errors include the file and line
        given = sums(2200, options.seed) if options.data is None else options.data
        rows = load_rows(given, options.data_config, answer_after=options.answer_after, **columns)
        num_eval = options.num_eval or min(200, max(1, len(rows) // 5))
        train_rows, eval_rows = split_rows(rows, num_eval, options.seed)

    from rg_env.training import EngineConfig, GRPOTrainer, choose_folder, default_config, load_policy, train

    folder = choose_folder(options.output_dir, "minimal", options.resume)
    policy = load_policy(options.model, attention=options.attention)
    if options.tasks:
        sizes = {"num_eval_examples": options.num_eval or 200, "seed": options.seed}
        env = ReasoningGym(policy.mixture(options.tasks), rewards=["correctness", (answers_once, 0.1)], **sizes)
    else:
        env = Environment(train_rows, eval_rows, rewards=[(correct, 1.0), (answers_once, 0.1)])
    args = default_config(
        policy,
        folder,
        # defaults depend on the model
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        rollouts_per_step=options.rollouts_per_step,  # across all processes
        per_device_train_batch_size=options.batch_size,
        max_prompt_length=options.max_prompt_length,
        max_tokens=options.max_tokens,
        # sampling and loss
        num_generations=options.num_generations,
        temperature=1.0,
        loss_type="dapo",  # mean over all tokens in a step; alternatives: "grpo", "dr_grpo" and "bnpo"
        scale_rewards="group",  # advantages divided by the group's standard deviation
        beta=0.0,  # weight of the KL term; keeps a copy of the weights as the reference if above 0
        num_iterations=1,  # updates per batch
        epsilon=0.2,  # clip range; no effect on a batch's first update
        seed=options.seed,
    )
    engine = EngineConfig(kind=options.engine, host=options.host, port=options.port)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine=engine)
    results = train(trainer, settings=vars(options), resume=options.resume)
    return 130 if results.get("interrupted") else 0


if __name__ == "__main__":
    run_command(main)
