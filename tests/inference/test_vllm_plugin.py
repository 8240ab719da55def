"""The plugin's entry point: it registers one backend, and never keeps a program from starting."""

import sys
from types import ModuleType

import pytest

from rg_env.inference.vllm import plugin

MODULE = "vllm.distributed.weight_transfer"


def test_without_vllm_or_with_an_older_one_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM before 0.32 has no factory to register with."""
    monkeypatch.setitem(sys.modules, MODULE, None)  # importing it raises ImportError
    plugin.register()
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))  # it has no factory
    plugin.register()


def test_it_registers_its_backend_once_however_often_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM calls plugins in every process, in some more than once, and refuses a name that it knows."""
    registered: list[tuple[str, ...]] = []

    class Factory:
        @staticmethod
        def register_engine(name: str, *place: str) -> None:
            if any(name == known[0] for known in registered):
                raise ValueError(f"{name} is registered already")
            registered.append((name, *place))

    module = ModuleType(MODULE)
    module.WeightTransferEngineFactory = Factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    plugin.register()
    plugin.register()
    assert registered == [("rg_env_shm", "rg_env.inference.vllm.backend", "SharedMemoryEngine")]
