"""A harness for Verifiers' v1 API that asks once, in this process: no sandbox, no program, no tools.

Every request goes through the interception endpoint that Verifiers gives, so traces hold all there is to know. Other
tasksets can use it too, by the id "rg-env", if their prompts are text.
"""

import functools
import ssl
from typing import Any

import httpx
import openai
import verifiers.v1 as vf
from pydantic import Field

from rg_env.core.prompts import build_messages


class SingleTurnHarnessConfig(vf.HarnessConfig):
    """Options of `SingleTurnHarness`."""

    request_timeout: float | None = Field(3600.0, gt=0, allow_inf_nan=False)
    """Seconds that one answer may take; None: no limit."""
    max_retries: int = Field(2, ge=0)
    """How often a request is repeated that failed for a reason that may pass (by the client of `openai`)."""


class SingleTurnHarness(vf.Harness[SingleTurnHarnessConfig]):
    """One chat completion for the task's prompt, with its system prompt in a system message."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData | None = None,
    ) -> vf.ProgramResult:
        """Ask. A call that fails is told as a program's failure would be: Verifiers knows the cause."""
        system, prompt = self.resolve_prompt(trace.task.data if data is None else data)  # 0.2 gives no `data`
        messages: Any = chat_of(system, prompt)
        try:
            async with httpx.AsyncClient(verify=_certificates(), timeout=self.config.request_timeout) as transport:
                client = openai.AsyncOpenAI(
                    base_url=endpoint,
                    api_key=secret,
                    max_retries=self.config.max_retries,
                    timeout=self.config.request_timeout,
                    http_client=transport,
                )
                await client.chat.completions.create(model=ctx.model, messages=messages)
        except openai.OpenAIError as error:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def chat_of(system: str | None, prompt: object) -> list[dict[str, str]]:
    """A task's system prompt and prompt (text, or messages of text) as chat messages.

    Raises:
        TypeError: no prompt, or one with images or tools.
    """
    if isinstance(prompt, str):
        return [dict(message) for message in build_messages(prompt, system)]
    messages: Any = prompt if isinstance(prompt, list) else []
    for message in messages:
        if message.role == "tool" or not isinstance(message.content, str) or getattr(message, "tool_calls", None):
            raise TypeError("the prompt is not text alone")
    if not messages:
        raise TypeError("there is no prompt")
    chat = [{"role": message.role, "content": message.content} for message in messages]
    return ([] if system is None else [{"role": "system", "content": system}]) + chat


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: doing so takes longer than a request to this machine."""
    return httpx.create_ssl_context()


if hasattr(vf, "SingleAgentEnv"):  # not in 0.2, where the harness has its own runtime

    class SingleTurnEnvConfig(vf.SingleAgentEnvConfig):
        """One agent, in this process."""

        agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        """By default Verifiers would rent a sandbox, which needs a login; nothing is run here."""

    class SingleTurnEnv(vf.SingleAgentEnv, vf.Env[SingleTurnEnvConfig]):
        """What evaluating the taskset by its name uses."""
