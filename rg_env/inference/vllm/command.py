"""The command that starts a vLLM server, for training, evaluations, `rg-env launch` and Slurm scripts.

    vllm_command("tiny", ["--port", "8000"], on_gpu=False)       # vLLM's own command
    serve_command("org/model", max_model_len=512)                # `rg-env vllm`, which runs vLLM's command
    parallel_sizes(None, None, 4, "org/model")                   # how such a server uses 4 GPUs

No other module names vLLM's program, so all servers sample from the same distribution. This module starts nothing and
imports neither torch nor vLLM.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rg_env.core.processes import Command, entered
from rg_env.core.run_folder import adapter_config, base_model
from rg_env.errors import InputError
from rg_env.inference.machine import HOST
from rg_env.inference.vllm.plugin import EXTENSION
from rg_env.tiny import POLICY_DIR, TINY

# The command `vllm` would fail if vLLM was installed under another distribution name, as CPU builds are.
_PROGRAM = (sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server")
_ADAPTER = "adapter"
_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's `--max-lora-rank` accepts, starting with the default."""


def vllm_command(model: str, options: Sequence[str] = (), *, on_gpu: bool, backend: str | None = None) -> Command:
    """Return the command that starts vLLM on this machine.

    `--logprobs-mode processed_logprobs` makes the server report the log-probabilities of the distribution that it
    samples from. `--generation-config vllm` keeps the model's generation config from changing that distribution.

    Args:
        model: model folder, name on the Hub, "tiny", or folder with LoRA adapters, which are served with their base
            model.
        options: vLLM's options. They come last and override the others.
        backend: weight-transfer backend. None starts a server that does not accept weights.

    Raises:
        InputError: the adapters do not name their base model.
    """
    adapters = adapter_config(model)
    arguments = [*_PROGRAM, "--model", _weights(base_model(model)), "--host", HOST]
    arguments += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    environment = {}
    if adapters is not None:
        rank = max([adapters.get("r") or 0, *(adapters.get("rank_pattern") or {}).values()])
        bound = next((each for each in _LORA_RANKS if each >= rank), _LORA_RANKS[-1])
        arguments += ["--enable-lora", "--lora-modules", f"{_ADAPTER}={model}", "--max-lora-rank", str(bound)]
    if not on_gpu:
        arguments += ["--dtype", "float32", "--enforce-eager"]
        # The size of the cache, in GiB. By default, vLLM reserves most of the machine's memory.
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    if backend is not None:
        arguments += ["--weight-transfer-config", json.dumps({"backend": backend})]
        arguments += ["--worker-extension-cls", EXTENSION]
        environment["VLLM_SERVER_DEV_MODE"] = "1"
        if not on_gpu:  # makes torch use huge pages, because each weight update reallocates all layers
            environment["THP_MEM_ALLOC_ENABLE"] = "1"
    return Command((*arguments, *options), environment)


def served_name(model: str) -> str:
    """Return the name of `model` in requests to a server that was started with `vllm_command(model)`."""
    return _weights(model) if adapter_config(model) is None else _ADAPTER


def _weights(model: str) -> str:
    return str(POLICY_DIR) if model == TINY else model


def serve_command(
    model: str,
    *,
    port: int | str = 8000,
    dtype: str | None = None,
    max_model_len: int | None = None,
    parallel: tuple[int, int] = (1, 1),
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the `rg-env vllm` command that starts a server able to receive weights from a trainer.

    Args:
        parallel: tensor and data parallel sizes.
        extra: arguments to append.
    """
    sizes = [None if size == 1 else size for size in parallel]
    names = ("--dtype", "--max-model-len", "--tensor-parallel-size", "--data-parallel-size")
    given = {name: value for name, value in zip(names, (dtype, max_model_len, *sizes), strict=True) if value}
    words = [str(word) for option in given.items() for word in option]
    return ["rg-env", "vllm", model, "--host", HOST, "--port", str(port), *words, *extra]


def start_hint(model: str = "MODEL", port: int = 8000) -> str:
    """Return a one-line command that starts a server."""
    return shlex.join([entered("rg-env"), *serve_command(model, port=port)[1:]])


# The sizes of a server on several GPUs


def parallel_sizes(tensor: int | None, data: int | None, gpus: int, model: str) -> tuple[int, int]:
    """Return the tensor and data parallel sizes for a server on `gpus` GPUs (0 for a CPU). If only one size is given,
    the other follows from the number of GPUs. If neither is given, the tensor parallel size is the largest divisor of
    `gpus` that the model's attention heads allow or, if the numbers of heads are unknown, the largest power of two, up
    to 8, that divides `gpus`.

    Raises:
        InputError: the product of the sizes is not the number of GPUs, or the model's attention heads do not allow the
            tensor parallel size.
    """
    gpus, heads = gpus or 1, attention_heads(model)
    attention, groups = heads or (0, 0)

    def divides_heads(size: int) -> bool:
        return attention % size == 0 and (groups % size == 0 or size % groups == 0)  # vLLM can replicate KV heads

    if tensor is None and data:
        tensor = gpus // data
    elif tensor is None:
        sizes = range(1, gpus + 1) if heads else (1, 2, 4, 8)
        tensor = max(size for size in sizes if gpus % size == 0 and divides_heads(size))
    data = data or max(1, gpus // tensor)
    if tensor * data != gpus or not divides_heads(tensor):
        rule = (
            f"; the tensor parallel size must divide the number of attention heads ({attention}), and divide or be a "
            f"multiple of the number of key-value heads ({groups}), in the config of {model}"
        )
        raise InputError(
            f"--tensor-parallel-size {tensor} x --data-parallel-size {data} must equal the number of vLLM's GPUs, "
            f"{gpus}" + (rule if heads else "")
        )
    return tensor, data


def guessed_sizes(model: str, gpus: int) -> list[str]:
    """Return a list with a warning that the parallel sizes are guesses. The list is empty unless there are several GPUs
    and the model's configuration is not on this machine."""
    if gpus < 2 or attention_heads(model):
        return []
    tensor, data = parallel_sizes(None, None, gpus, model)
    return [
        f"warning: tensor parallelism {tensor} x data parallelism {data} is a guess because the configuration of "
        f"{model} is not on this machine; set --tensor-parallel-size and --data-parallel-size if vLLM rejects it"
    ]


def attention_heads(model: str) -> tuple[int, int] | None:
    """Read the numbers of attention heads and key-value heads (0 if not given) from config.json in a folder or the Hub
    cache. Returns None if the file is not on this machine or cannot be parsed."""
    model = _weights(model)
    path: object = Path(model) / "config.json"
    try:
        if not Path(model).is_dir():
            from huggingface_hub import try_to_load_from_cache

            path = try_to_load_from_cache(model, "config.json")
        values = json.loads(Path(str(path)).read_text())
        text = values.get("text_config") or values
        return int(text.get("num_attention_heads") or 0), int(text.get("num_key_value_heads") or 0)
    except (ImportError, OSError, ValueError, TypeError, AttributeError):  # an invalid Hub name causes a ValueError
        return None
