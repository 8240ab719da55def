"""Train on rg-env's environment with Verifiers' own trainer and server (`vf.GRPOTrainer` and `vf-vllm`).

Verifiers 0.1.6 was the last release with its own trainer and server, so this folder is a separate project with package
versions from that time. In two terminals, from the root of a clone, on a Linux machine with four NVIDIA GPUs:

    CUDA_VISIBLE_DEVICES=0 uv run --project examples/vf_grpo --extra vllm vf-vllm --model Qwen/Qwen2.5-1.5B-Instruct \\
        --host 127.0.0.1 --port 8000 --max-model-len 2048 --generation-config vllm --enforce-eager
    CUDA_VISIBLE_DEVICES=1,2,3 uv run --project examples/vf_grpo --extra vllm accelerate launch \\
        --config-file configs/zero3.yaml --num-processes 3 examples/vf_grpo/train.py --model Qwen/Qwen2.5-1.5B-Instruct

Restart the server before each run, because the trainer assumes that the server has the model's initial weights.
"""

import argparse

import torch
import verifiers as vf
import yaml


class GRPOTrainer(vf.GRPOTrainer):
    def _get_per_token_logps(self, model, input_ids, attention_mask, *args, **kwargs):
        # Upstream passes its loss mask as the attention mask. The loss mask is 0 on the prompt, so it hides the
        # question. Sequences are padded on the right, so a mask of ones is correct for every token that contributes to
        # the loss.
        return super()._get_per_token_logps(model, input_ids, torch.ones_like(attention_mask), *args, **kwargs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="name or folder, as passed to vf-vllm")
    parser.add_argument("--gym", type=yaml.safe_load, default="leg_counting", help="a task, or several tasks in YAML")
    parser.add_argument("--output-dir", default="outputs/vf_grpo")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--batch-size", type=int, default=8, help="rollouts per micro-batch on each process")
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches per step on each process")
    parser.add_argument("--max-tokens", type=int, default=1024, help="maximum new tokens")
    parser.add_argument("--port", type=int, default=8000, help="port of vf-vllm on this machine")
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    env = vf.load_environment("rg-env", gym=options.gym)
    args = vf.GRPOConfig(  # created before the model, so that ZeRO-3 loads the model in shards
        output_dir=options.output_dir, max_steps=options.max_steps, save_only_model=True, save_steps=100,
        logging_steps=1, report_to="none", disable_tqdm=True, bf16=gpu, use_cpu=not gpu, gradient_checkpointing=gpu,
        max_data_workers=1, per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulation,
        num_generations=8, max_prompt_length=1024, max_tokens=options.max_tokens, max_seq_len=1024 + options.max_tokens,
        learning_rate=options.learning_rate, lr_scheduler_type="constant", adam_beta2=0.95, loss_type="bnpo",
        scale_rewards=True, beta=0.0, sync_ref_model=False, num_batches_ahead=0,
        vllm_server_host="127.0.0.1", vllm_server_port=options.port,
    )  # fmt: skip
    kwargs = {"torch_dtype": torch.float32, "attn_implementation": "sdpa", "use_cache": False}
    model, tokenizer = vf.get_model_and_tokenizer(options.model, use_liger=gpu, model_kwargs=kwargs)
    trainer = GRPOTrainer(model, env, args, tokenizer)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
