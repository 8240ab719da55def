"""Stand-in for the program `vllm` on a machine with GPUs: its arguments, addresses and HTTP responses, without a model.

What it was started with, and each request, is a line of the file that STAND_IN_LOG names; a model that STAND_IN_FAILS
names ends at once.
"""

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GPU = os.environ["CUDA_VISIBLE_DEVICES"]
LOCK = threading.Lock()


def note(**told: Any) -> None:
    with LOCK, open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write(json.dumps({"gpu": GPU, "pid": os.getpid(), **told}) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served = ""

    def do_GET(self) -> None:
        listed = [{"id": self.served, "object": "model", "created": 0, "owned_by": "vllm"}]
        self._reply({"object": "list", "data": listed} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        note(request=[message["role"] for message in asked["messages"]])
        time.sleep(0.05)
        message = {"role": "assistant", "content": "<answer>1</answer>"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self._reply({"id": "c", "object": "chat.completion", "choices": [choice], "model": asked["model"]})

    def _reply(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for text in ("--model", "--host", "--lora-modules"):
        parser.add_argument(text)
    for number in ("--port", "--max-lora-rank", "--max-model-len"):
        parser.add_argument(number, type=int)
    parser.add_argument("--enable-lora", action="store_true")
    options = parser.parse_args()
    note(start=vars(options))
    if options.model == os.environ.get("STAND_IN_FAILS"):
        sys.exit("torch.OutOfMemoryError: there is not enough of it")
    Handler.served = options.lora_modules.split("=")[0] if options.lora_modules else options.model
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
