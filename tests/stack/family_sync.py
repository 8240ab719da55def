"""Sync weights to vLLM for small random models of several families. vLLM runs in this process.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 python tests/stack/family_sync.py FOLDER

For each family, vLLM loads one model and then receives the weights of another. The script prints a line of JSON with
the largest difference between vLLM's log-probabilities of a prompt and a model's: before the sync, from the loaded
model (`loaded`) and the other model (`other`); after the sync, from the other model (`synced`). The line also has the
names of the tensors that, when they are read back, differ from the other model's before the sync (`differed`) and after
it (`missing`), and of those that cannot be compared (`unproven`).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from model_families import EXPERTS, SERVED
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, ModelRegistry, SamplingParams

from rg_env.inference.vllm.plugin import BACKEND, EXTENSION
from rg_env.inference.vllm.shared_weights import mapped, pack, reserve
from rg_env.tiny import POLICY_DIR
from rg_env.training.vllm_engine import model_logprobs
from rg_env.training.weight_sync import Arrival, ServerModel, buckets, computed, sources

CONFIGS = {**SERVED, **EXPERTS}
PROMPT = list(range(5, 45))
CPU = torch.device("cpu")
BUCKET = 2**24


class Workers:
    """The workers of a model in this process, with the method of `VllmServer` that `Arrival` calls."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def on_workers(self, method: str, *arguments: Any, timeout_s: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._llm.collective_rpc(method, args=arguments)
        return found


def served_logprobs(llm: Any) -> torch.Tensor:
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    logprobs = llm.generate({"prompt_token_ids": PROMPT}, sampling, use_tqdm=False)[0].prompt_logprobs[1:]
    return torch.tensor([logprobs[i][token].logprob for i, token in enumerate(PROMPT[1:])])


def random_model(config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # norms and biases are initialized to constants, which both models would share
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def record(name: str, folder: Path) -> dict[str, Any]:
    before, after = random_model(CONFIGS[name], 0), random_model(CONFIGS[name], 1)
    before.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY_DIR).save_pretrained(folder)
    # Otherwise vLLM starts a process for each architecture to inspect it.
    architecture = before.config.architectures[0]
    ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
    llm = LLM(
        model=str(folder), enforce_eager=True, dtype="float32", max_model_len=128, max_num_seqs=2,
        enable_prefix_caching=False, disable_sliding_window=True, disable_log_stats=True,
        weight_transfer_config={"backend": BACKEND}, worker_extension_cls=EXTENSION,
    )  # fmt: skip
    workers: Any = Workers(llm)

    def compared() -> tuple[list[str], list[str]]:
        """Return the names of the tensors that did not arrive and of those that cannot be compared, for a trainer that
        connects now."""
        arrival = Arrival(ServerModel.of(workers, sources(after), 0))
        arrival.start()
        arrival.add(computed(sources(after)))
        return arrival.missing(workers, 0), arrival.unproven

    def distance(model: Any) -> float:
        return float((model_logprobs(model, PROMPT, CPU) - served_logprobs(llm)).abs().max())

    def send() -> None:
        path = reserve(f"families-{os.getpid()}", BUCKET)
        try:
            memory = mapped(path)
            llm.init_weight_transfer_engine({"init_info": {"path": str(path)}})
        finally:
            path.unlink()
        llm.start_weight_update()
        for bucket in buckets(sources(after), 50_000):
            tensors = pack(computed(bucket), memory)
            named = [(each.name, each.dtype, list(each.shape)) for each in tensors]
            llm.update_weights({"update_info": {"start": 0, "tensors": named}})
        llm.finish_weight_update()

    unsynced = {"name": name, "loaded": distance(before), "other": distance(after)}
    missing, unproven = compared()
    unsynced["differed"] = sorted({*missing, *unproven})
    send()
    missing, unproven = compared()
    return {**unsynced, "synced": distance(after), "missing": missing, "unproven": unproven}


if __name__ == "__main__":
    for number, name in enumerate(CONFIGS):
        print("RECORD " + json.dumps(record(name, Path(sys.argv[-1]) / str(number))), flush=True)
