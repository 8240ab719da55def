"""Stand-in for vLLM's server on a machine with GPUs: it takes the same arguments and answers requests without a model.

Writes its arguments and each request as lines to the file STAND_IN_LOG, and exits with an error if its model is
STAND_IN_FAILS.
"""

import argparse
import json
import os
import signal
import sys
from typing import Any

from chat_server import ChatServer


def note(**fields: Any) -> None:
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write(json.dumps({"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "pid": os.getpid(), **fields}) + "\n")


def handle(number: int, body: dict[str, Any]) -> float:
    roles = [message["role"] for message in body["messages"]]
    note(request=roles, sampling={name: value for name, value in body.items() if name not in ("model", "messages")})
    return 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    for text in ("--model", "--host", "--lora-modules", "--logprobs-mode", "--generation-config"):
        parser.add_argument(text)
    for number in ("--port", "--max-lora-rank", "--max-model-len"):
        parser.add_argument(number, type=int)
    parser.add_argument("--enable-lora", action="store_true")
    options = parser.parse_args()
    note(start=vars(options))
    if options.model == os.environ.get("STAND_IN_FAILS"):
        sys.exit("torch.OutOfMemoryError: there is not enough of it")
    served = options.lora_modules.split("=")[0] if options.lora_modules else options.model
    with ChatServer(lambda question: "<answer>1</answer>", model=served, trouble=handle, port=options.port):
        signal.pause()


if __name__ == "__main__":
    main()
