"""What a grader is."""

from collections.abc import Callable, Mapping
from typing import Any

Entry = Mapping[str, Any]
"""The library's item in JSON form: `question`, `answer`, `metadata`."""
Config = Mapping[str, Any]
"""The options that the user gave; what is not named has the library's default."""
Grader = Callable[[str, Entry, Config], float]
"""(answer, entry, config) -> real progress in [0, 1], 1.0 for right. Never raises on any answer."""
