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
from rg_env.inference.vllm.plugin import BACKEND
from rg_env.inference.vllm.read_back import columns_digest, sampled_columns, whole_digest
from rg_env.inference.vllm.shared_weights import SHAPE, PackedTensor, mapped, unpack
from rg_env.tiny import POLICY_DIR
from rg_env.training.vllm_engine import model_logprobs


class StandIn(LoopbackServer):
    """Server that works like vLLM 0.32 with the backend `rg_env_shm`, except for the attributes below.

    Attributes:
        model: the model whose weights are updated.
        paths: paths of all requests.
        bodies: bodies of the requests for completions.
        lost: names of tensors that the server silently does not load.
        packed: names of matrices that the server computes with in a packed form, which can be read only in part.
        rearranged: names of tensors whose order the server changes.
        unreadable: names of tensors that cannot be read back.
        fails_at: a path whose first `failures` requests get an error response with `status`.
        waits_at: a path whose requests are answered only once `go` is set.
    """

    def __init__(self, **otherwise: Any) -> None:
        dtype = getattr(torch, otherwise.get("dtype", "float32"))
        self.model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=dtype).eval()
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.lost: set[str] = set()
        self.packed: set[str] = set()
        self.rearranged: set[str] = set()
        self.unreadable: set[str] = set()
        self.fails_at = self.waits_at = ""
        self.status, self.failures = 500, 10**9
        self.go, self.aborted = threading.Event(), threading.Event()
        self._reports = {
            "version": "0.32.0", "processed": True, "backend": BACKEND, "dtype": "float32", "quantization": None,
            **otherwise,
        }  # fmt: skip
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
                return {}
            case "/collective_rpc":
                act = {"rg_env_layout": self._layout, "rg_env_digests": self._digests}[body["method"]]
                return {"results": [act(*body["args"])]}
            case "/abort_requests":
                self.aborted.set()
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
                self.bodies.append(body)
                value = 0.0 if self._reports["processed"] else -1.5
                choice = {"index": 0, "token_ids": [5], "finish_reason": "length"}
                return {"choices": [{**choice, "logprobs": {"token_logprobs": [value]}}]}
        raise KeyError(path)

    def _load(self, start: int, tensors: list[Any]) -> None:
        assert self._memory is not None
        own = self._weights()
        with torch.no_grad():
            for name, value in unpack([PackedTensor(n, d, tuple(s)) for n, d, s in tensors], self._memory[start:]):
                if name not in self.lost:
                    own[name].copy_(value)

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: each.detach() for name, each in self.model.named_parameters(remove_duplicate=False)}

    def _layout(self, tensors: list[Any]) -> dict[str, Any]:
        own = self._weights()
        assert {name: list(own[name].shape) for name, _ in tensors} == dict(tensors)
        held = {
            name: [str(own[name].dtype).removeprefix("torch."), name not in self.packed, name in self.packed]
            for name, _ in tensors
            if name not in self.unreadable
        }
        shape = {name: getattr(self.model.config, name, None) for name in SHAPE} | self._reports.get("shape", {})
        return {**self._reports, "shape": shape, "tensors": held, "problem": "no" if self.unreadable else None}

    def _digests(self, round_: int) -> dict[str, list[int]]:
        found = {}
        for name, tensor in self._weights().items():
            if name in self.packed:
                count = len(tensor) * len(sampled_columns(tensor.shape[1], round_))
                found[name] = [count, int(columns_digest(tensor, round_))]
            elif name not in self.unreadable:
                read = tensor.flip(0) if name in self.rearranged else tensor
                found[name] = [tensor.numel(), int(whole_digest(read))]
        return found

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
