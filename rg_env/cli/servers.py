"""Options for `rg-env serve` and `rg-env vllm`, which serve models with the embedded engine and with vLLM,
respectively."""

import argparse
import json
import os
from functools import partial
from typing import Any


def add(commands: Any) -> None:
    """Add `rg-env serve` and `rg-env vllm` to the subcommands."""
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP on 127.0.0.1, for any OpenAI client",
        epilog="Endpoints: /v1/chat/completions, /v1/completions and /v1/models. A request's `model` "
        "must match --model or be empty. Any other value results in a 404 error.",
        examples=[
            "rg-env serve --model outputs/RUN",
            "lm_eval --model local-chat-completions --model_args model=outputs/RUN,"
            "base_url=http://127.0.0.1:8000/v1/chat/completions --apply_chat_template --tasks gsm8k",
        ],
    )
    option = serve.add_argument
    option("--model", required=True, help="model folder, checkpoint, LoRA adapter, run, name on the Hub, or 'tiny'")
    option("--port", type=int, default=8000, help="port (0 for any free port); default: 8000")
    option("--seed", type=int, help="sampling seed; default: random")
    option(
        "--system-prompt",
        metavar="TEXT",
        help="system prompt for chats without one ('' for none); default: the prompt used in training",
    )
    serve.set_defaults(run=_serve)

    vllm = commands.add_parser(
        "vllm",
        help="start a vLLM server that accepts weights from a training run",
        usage="rg-env vllm MODEL [--host HOST] [--port N] [vLLM options]",
        examples=["rg-env vllm Qwen/Qwen2.5-7B-Instruct --port 8000 --max-model-len 2048 --tensor-parallel-size 2"],
        advice="pass the model first, then vLLM's options: rg-env vllm MODEL ...",
    )
    vllm.add_argument("model", help="model folder, name on the Hub, or 'tiny'")
    vllm.add_argument("options", nargs=argparse.REMAINDER, metavar="option", help="any vLLM option")
    vllm.set_defaults(run=_vllm)


def _serve(options: argparse.Namespace) -> int:
    from rg_env.core.text import shortened
    from rg_env.evaluation.load import eval_config_of
    from rg_env.evaluation.models import base_model
    from rg_env.evaluation.trained import as_trained

    config, _ = as_trained(eval_config_of([f"models={json.dumps([options.model])}", "tasks=chain_sum"]))
    # Import rg_env.training first, because it reports how to install torch if torch is missing.
    from rg_env.training import best_device, load_policy

    from rg_env.inference.embedded.engine import EmbeddedEngine  # isort: skip
    from rg_env.inference.embedded.server import HOST, bind, serve, with_prompt
    from rg_env.inference.models import with_adapters
    from rg_env.tiny import TINY

    with bind(options.port) as listener:  # check the port before loading the model, which may take minutes
        # The tiny policy was trained only with the default prompt.
        trained, text = bool(config.prompt.model_fields_set) or options.model == TINY, options.system_prompt
        prompt = config.prompt.model_copy(update={} if text is None else {"system_prompt": text, "preamble": ""})
        (model,) = (each.model for each in config.models.values())
        base = base_model(model)
        policy = load_policy(model) if base is None else with_adapters(load_policy(base), model)
        policy.model.to(best_device())
        engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=options.model, seed=options.seed)
        if trained and text is None:
            print(f"using the training system prompt for chats without one: {shortened(prompt.system_prompt)}")
        address = f"http://{HOST}:{listener.getsockname()[1]}/v1"
        print(
            f"serving {options.model!r} at {address} (Ctrl-C to stop); use this name as `model` in requests", flush=True
        )
        serve(engine, listener, partial(with_prompt, prompt) if trained or text else list)
    return 0


def _vllm(options: argparse.Namespace) -> int:
    from rg_env.inference.machine import Machine, machine_gpus
    from rg_env.inference.vllm.client import vllm_command

    Machine.here().check_installed()
    gpus = machine_gpus()
    if not gpus and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        print(
            "vLLM reserves most of this machine's memory for its KV cache; if vLLM runs out of memory, set "
            "VLLM_CPU_KVCACHE_SPACE to the size of the cache in GiB, such as 1",
            flush=True,
        )
    environment, arguments = vllm_command(options.model, options.options, len(gpus))
    # Replace this process so that signals reach the server directly.
    os.execve(arguments[0], arguments, {**os.environ, **environment})
