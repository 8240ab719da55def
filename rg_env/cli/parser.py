"""The parser of a command: whole option names, and for an unknown one the name that it has here.

CommandParser(prog="rg-env tasks", examples=["rg-env tasks --category logic"]).parse_known_args(...)
"""

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rg_env.errors import InputError

_OTHER_NAMES = {
    # names that rg_env had before
    "--out": ("--output-dir",),
    "--task": ("--tasks",),
    "--rollouts": ("--rollouts-per-example", "--max-rollouts"),
    "--vllm-host": ("--host",),
    "--vllm-port": ("--port",),
    "--per-device-batch-size": ("--per-device-train-batch-size",),
    # names of other tools
    "--limit": ("--num-examples",),
    "--output": ("--output-dir",),
    "--output-path": ("--output-dir", "--output"),
    "--model-args": ("--models", "--model"),
    "--max-new-tokens": ("--max-tokens",),
    "--max-gen-toks": ("--max-tokens",),
    "--num-processes": ("--processes",),
    "--resume-from-checkpoint": ("--resume",),
}
"""What options are called that a command may have here."""


class CommandParser(argparse.ArgumentParser):
    """Options cannot be abbreviated. Keyword `examples`: commands that `--help` ends with."""

    def __init__(self, *given: Any, examples: Sequence[str] = (), **options: Any):
        super().__init__(*given, **{"allow_abbrev": False, **options})
        self.examples = tuple(examples)
        self._arguments: list[str] = []
        self.set_defaults(parser=self)

    def format_help(self) -> str:
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """As argparse does it, unless an option is called otherwise: it may be the one that is missing."""
        for argument in self._arguments:
            if argument.startswith("--") and self._called(argument):
                raise self.unknown(argument)
        super().error(message)

    def unknown(self, argument: str) -> InputError:
        """The error for an argument that the command does not have."""
        flag, _, value = argument.partition("=")
        if not flag.startswith("-"):
            return InputError(f"{self.prog}: unexpected argument {argument!r}; `{self.prog} --help` shows the usage")
        name = flag.lstrip("-").replace("-", "_")
        if called := self._called(flag):
            hint = f"use {called}"
        elif name in ("config", "config_file", "config_path", "config_name"):
            hint = f"give the path of the config alone: {self.prog} configs/FILE.yaml"
        elif near := difflib.get_close_matches(flag, self._names(), n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif any(action.nargs == argparse.REMAINDER for action in self._actions):
            hint = "other options come after the model"
        elif key := self._key({"steps": "max_steps"}.get(name, name)):
            hint = f"it is a key of configs: {key}={value or 'VALUE'}"
        else:
            hint = f"`{self.prog} --help` lists the options"
        return InputError(f"{self.prog} has no option {flag!r}: {hint}")

    def _names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _called(self, argument: str) -> str | None:
        """The option of this command that an option it does not have means here."""
        flag, names = argument.partition("=")[0], self._names()
        plain = f"--{flag.lstrip('-').replace('_', '-')}"
        here = (each for each in (plain, *_OTHER_NAMES.get(plain, ())) if each in names)
        return None if flag in names else next(here, None)

    def _key(self, name: str) -> str | None:
        """The key of a config with this name, for commands that take overrides."""
        if not any(action.dest in ("overrides", "script") for action in self._actions):
            return None
        from rg_env.core.config.parsing import unknown_key
        from rg_env.evaluation.config import EvalConfig
        from rg_env.training.config.schema import TrainConfig

        schema = EvalConfig if self.prog.endswith(" eval") else TrainConfig
        match = re.search(r"did you mean (\S+?\.\S+?)[ ?]", unknown_key(schema, (name,)))
        return match[1] if match else None
