"""Extension for griffe, which reads docstrings for the documentation site (mkdocs.yml): show the arguments of
`ReasoningGym`, with types and defaults, for the entry points that pass them on."""

from typing import Any

import griffe  # type: ignore[import-not-found]  # installed only with the dependency group docs

PASSED_ON = ("adapters.v1.load_environment", "adapters.v1.ReasoningGymEnv.__init__")


class Signatures(griffe.Extension):
    """Replaces `*args, **options` by the parameters of `ReasoningGym`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the parameters and their descriptions; called by griffe when the package has been read."""
        origin = pkg["core.environment.ReasoningGym.__init__"]
        for path in PASSED_ON:
            entry = pkg[path]
            own = [each for each in entry.parameters if each.name not in ("self", "args", "options")]
            passed = [each for each in origin.parameters if each.name != "self" or entry.name == "__init__"]
            entry.parameters = griffe.Parameters(*passed, *own)
