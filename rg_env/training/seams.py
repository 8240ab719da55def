"""Where rg_env gets into verifiers 0.1.6 without changing it. Every such place stands in this file, with its reason.

1. `vf.GRPOTrainer.__init__` imports `VLLMClient` from a module that needs vLLM, and connects to a server at once. There
   is no parameter to give another client. `weight_client` puts ours in that place, for the constructor's time only.
2. The client's atexit hook posts to the server with no time limit, and waits for ever for a hung one. `vllm_client`
   gives a subclass whose farewell has a deadline.

All other changes are ordinary subclasses: `trainer.GRPOTrainer`, `rollouts.RolloutGenerator`.
"""

import logging
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import requests

from rg_env.errors import MissingExtraError, ServerError

_CLIENT_MODULE = "verifiers.inference.vllm_client"
FAREWELL_S = 3.0
"""How long a trainer waits, when it ends, for the server to take leave."""


class SharedWeights:
    """The weight-sync client of the embedded engine, which samples from the trainer's own weights: nothing to send."""

    def __init__(self, **_: Any):
        pass

    def init_communicator(self) -> None:
        pass


@contextmanager
def weight_client(client: Callable[..., Any]) -> Iterator[None]:
    """Within: `from verifiers.inference.vllm_client import VLLMClient` gives `client`."""
    stand_in = types.ModuleType(_CLIENT_MODULE)
    stand_in.VLLMClient = client  # type: ignore[attr-defined]
    before = sys.modules.get(_CLIENT_MODULE)
    sys.modules[_CLIENT_MODULE] = stand_in
    try:
        yield
    finally:
        if before is None:
            del sys.modules[_CLIENT_MODULE]
        else:
            sys.modules[_CLIENT_MODULE] = before


def vllm_client() -> type:
    """verifiers' `VLLMClient`, taught to leave in time.

    Raises:
        MissingExtraError: vLLM is not installed.
    """
    try:
        from verifiers.inference.vllm_client import VLLMClient
    except ImportError as error:
        raise MissingExtraError(
            f"the vllm engine needs vLLM beside the trainer ({error}): install it with `uv sync --extra vllm`, "
            "or use engine='embedded'"
        ) from error

    class PunctualVLLMClient(VLLMClient):
        def close_communicator(self) -> None:
            try:
                self.session.post(f"{self.server_url}/close_communicator", timeout=FAREWELL_S)
            except requests.RequestException as error:
                logging.getLogger(__name__).warning("the vLLM server did not take leave: %s", error)

    return PunctualVLLMClient


def wait_for_server(host: str, port: int, timeout_s: float) -> None:
    """Return once the vLLM server answers; asks at least once.

    Raises:
        ServerError: it does not within `timeout_s`.
    """
    url = f"http://{host}:{port}/health"
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            status = requests.get(url, timeout=5).status_code
            if status == 200:
                return
            problem = f"it answers /health with {status}"
        except requests.RequestException as error:
            problem = "nothing listens there" if isinstance(error, requests.ConnectionError) else str(error)
        if time.monotonic() >= deadline:
            raise ServerError(
                f"no vf-vllm server at {host}:{port} within {timeout_s:g} s ({problem}): start it with "
                f"`vf-vllm --model MODEL --host 127.0.0.1 --port {port}`, or train with the embedded engine"
            )
        time.sleep(min(2.0, max(0.1, deadline - time.monotonic())))
