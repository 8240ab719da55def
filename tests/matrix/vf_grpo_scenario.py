"""Build the trainer of examples/vf_grpo/train.py without vLLM, and compare its log-probabilities with upstream's.

    PYTHON tests/matrix/vf_grpo_scenario.py FOLDER

PYTHON is the interpreter of the example's environment. Stand-ins replace the two vLLM classes that the trainer's
client imports, and a local server answers the client. Prints the results as a line of JSON.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
import verifiers as vf

from rg_env.tiny import POLICY_DIR, TASKS

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "vf_grpo"))
import train


class Server(BaseHTTPRequestHandler):
    """The routes of `vf-vllm` that the client calls while the trainer is built."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        body = json.dumps({"world_size": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def stand_in_for_vllm() -> None:
    for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        sys.modules[name] = ModuleType(name)
    communicator = ModuleType("vllm.distributed.device_communicators.pynccl")
    communicator.PyNcclCommunicator = lambda group, device: SimpleNamespace(group=group)  # type: ignore[attr-defined]
    utils = ModuleType("vllm.distributed.utils")
    utils.StatelessProcessGroup = SimpleNamespace(create=SimpleNamespace)  # type: ignore[attr-defined]
    sys.modules |= {communicator.__name__: communicator, utils.__name__: utils}
    from verifiers.inference import vllm_client

    vllm_client.is_vllm_available = lambda: True


def build_trainer(folder: Path, port: int) -> Any:
    """Return the trainer that the script builds, before training."""
    made: list[Any] = []
    train.GRPOTrainer.save_model = lambda self: None
    train.GRPOTrainer.train = lambda self: made.append(self)
    gym = json.dumps({"name": "leg_counting", "config": TASKS["leg_counting"]})
    sys.argv = ["train.py", "--model", str(POLICY_DIR), "--gym", gym, "--output-dir", str(folder), "--max-steps", "7",
                "--learning-rate", "1e-4", "--batch-size", "32", "--max-tokens", "90", "--port", str(port)]  # fmt: skip
    train.main()
    (trainer,) = made
    return trainer


def compare(trainer: Any) -> dict[str, float]:
    """Return the largest differences of log-probabilities over the tokens that contribute to the loss.

    The batch has two prompts of different lengths, with the trainer's own padding and mask.
    """
    tokenizer = trainer.processing_class
    questions = trainer.train_dataset.select(range(40))["prompt"]
    prompts = sorted((tokenizer.apply_chat_template(each, add_generation_prompt=True) for each in questions), key=len)
    pair, completion = [prompts[0], prompts[-1]], tokenizer.encode("3 cat: 3 x 4 = 12 <answer>12</answer>")
    assert len(pair[0]) < len(pair[1])
    model = trainer.model.eval()

    def logps(kind: Any, prompts: list[list[int]]) -> torch.Tensor:
        """Return the completion's log-probabilities after each prompt, (2, C), from `kind` or a plain forward pass."""
        if kind is None:
            found = []
            for prompt in prompts:
                ids = torch.tensor([prompt + completion])
                every = torch.log_softmax(model(ids).logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])
                found.append(every[0, -len(completion) :, 0])
            return torch.stack(found)
        masks = [[0] * len(prompt) for prompt in prompts]
        ones = [[1] * len(completion)] * 2
        batch = trainer._ids_to_tensors(prompts, masks, [completion] * 2, ones, torch.device("cpu"))
        every = kind._get_per_token_logps(trainer, model, batch["ids"], batch["mask"], batch["ids"].size(1) - 1)
        return every[batch["mask"][:, 1:].bool()].view(2, -1)

    # The completion's first token is left out: it is predicted at the prompt's last token, which affects it even where
    # upstream's mask hides the prompt.
    changed = [prompt[::-1] for prompt in pair]
    found = {}
    with torch.no_grad():
        direct = logps(None, pair)
        for name, kind in (("ours", train.GRPOTrainer), ("upstream", vf.GRPOTrainer)):
            given = logps(kind, pair)
            found[f"{name} - direct"] = float((given - direct)[:, 1:].abs().max())
            found[f"{name}, another prompt"] = float((given - logps(kind, changed))[:, 1:].abs().max())
    return found


if __name__ == "__main__":
    stand_in_for_vllm()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trainer = build_trainer(Path(sys.argv[1]), server.server_address[1])
    args = trainer.args
    print(json.dumps({
        "verifiers": vf.__version__,
        "requests": list(Server.requests),
        "rows": len(trainer.train_dataset),
        "rewards": trainer.env.rubric.get_reward_func_names(),
        "settings": [args.max_steps, args.learning_rate, args.generation_batch_size, args.max_tokens],
        "model": trainer._get_model_name() == str(POLICY_DIR),
        "logprobs": compare(trainer),
    }))  # fmt: skip
