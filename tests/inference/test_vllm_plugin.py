"""The plugin's entry point, where there is no vLLM: it must never be what keeps a program from starting."""

import sys

import pytest

from rg_env.inference import vllm_plugin


def test_it_imports_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.ENV_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "verifiers.inference.vllm_server", None)  # importing it would raise
    vllm_plugin.register()


def test_without_a_server_of_verifiers_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some other vLLM, started where the variable happens to be set."""
    monkeypatch.setenv(vllm_plugin.ENV_VARIABLE, "1")
    monkeypatch.setitem(sys.modules, "verifiers.inference.vllm_server", None)
    vllm_plugin.register()
