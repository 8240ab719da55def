"""A server with a real model and the vLLM routes that weight sync uses, for tests without vLLM."""

import threading
from typing import Any

import torch
from loopback import LoopbackServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from rg_env.inference.vllm.client import VllmServer
from rg_env.inference.vllm.shared_weights import SHAPE, PackedTensor, mapped, unpack, write_header
from rg_env.tiny import POLICY_DIR
from rg_env.training.vllm_engine import model_logprobs


class StandIn(LoopbackServer):
    """Server that works like vLLM 0.32 with the backend `rg_env_shm`, except for the attributes below.

    Attributes:
        model: the float32 model whose weights are updated.
        paths: paths of all requests.
        lost: names of tensors that the server silently does not load.
        fails_at: a path whose first `failures` requests get an error response with `status`.
        waits_at: a path whose requests are answered only once `go` is set.
    """

    def __init__(self, **otherwise: Any) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval()
        self.paths: list[str] = []
        self.lost: set[str] = set()
        self.fails_at = self.waits_at = ""
        self.status, self.failures = 500, 10**9
        self.go = threading.Event()
        self._reports = {"version": "0.32.0", "processed": True, "dtype": "float32", "quantization": None, **otherwise}
        self._memory: torch.Tensor | None = None
        super().__init__([Route("/{path:path}", self._answer, methods=["GET", "POST"])])
        self.server = VllmServer("127.0.0.1", self.port)

    def __exit__(self, *_: object) -> None:
        self.go.set()
        super().__exit__()

    def _answer_to(self, path: str, body: dict[str, Any]) -> Any:
        match path:
            case "/health" | "/start_weight_update" | "/finish_weight_update" | "/reset_prefix_cache":
                return {}
            case "/version":
                return {"version": self._reports["version"]}
            case "/v1/models":
                return {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 512}]}
            case "/get_world_size":
                return {"world_size": 1}
            case "/init_weight_transfer_engine":
                if problem := self._reports.get("refuses"):
                    raise ValueError(problem)
                self._memory = mapped(body["init_info"]["path"])
                shape = {name: getattr(self.model.config, name, None) for name in SHAPE} | self._reports.get(
                    "shape", {}
                )
                write_header(self._memory, {**self._reports, "shape": shape})
                return {}
            case "/update_weights":
                self._load(**body["update_info"])
                return {}
            case "/v1/completions" if "prompt_logprobs" in body:
                found = model_logprobs(self.model, body["prompt"], torch.device("cpu")).tolist()
                rows = [
                    {str(token): {"logprob": value}} for token, value in zip(body["prompt"][1:], found, strict=True)
                ]
                return {"choices": [{"prompt_logprobs": [None, *rows]}]}
            case "/v1/completions":
                value = 0.0 if self._reports["processed"] else -1.5
                choice = {"index": 0, "token_ids": [5], "finish_reason": "length"}
                return {"choices": [{**choice, "logprobs": {"token_logprobs": [value]}}]}
        raise KeyError(path)

    def _load(self, start: int, tensors: list[Any]) -> None:
        assert self._memory is not None
        own = dict(self.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, value in unpack([PackedTensor(n, d, tuple(s)) for n, d, s in tensors], self._memory[start:]):
                if name not in self.lost:
                    own[name].copy_(value)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.paths.append(path)
        if path == self.waits_at:
            import asyncio

            await asyncio.to_thread(self.go.wait, 60)
        if path in self._reports.get("lacks", ()):
            return Response(status_code=404)
        if path == self.fails_at and self.failures:
            self.failures -= 1
            return Response(status_code=self.status)
        body = await request.json() if await request.body() else {}
        try:
            return JSONResponse(self._answer_to(path, body))
        except (KeyError, ValueError) as error:
            message = (
                f"Call to collective_rpc method failed: Worker failed with error '{error}', please check the stack"
            )
            return JSONResponse({"error": {"message": message}}, 500)
