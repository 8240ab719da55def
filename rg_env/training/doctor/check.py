"""One finding of the doctor, and how it is shown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it.

    "failed" would stop the run, "warning" would let it go on worse than it could, or not as meant.
    """

    name: str
    status: Status
    finding: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.status == "failed" and not self.fix:
            raise ValueError(f"the failed check {self.name!r} has no fix")

    def line(self) -> str:
        """One line, whatever an error's text holds."""
        text = f"{self.finding}; fix: {self.fix}" if self.fix else self.finding
        return f"{self.status:<8} {self.name:<13} {' '.join(text.split())}"


def closing_line(checks: Sequence[Check]) -> str:
    """How many there are of each kind."""
    count = {status: sum(check.status == status for check in checks) for status in ("ok", "warning", "failed")}
    plural = "" if count["warning"] == 1 else "s"
    return f"{count['ok']} ok, {count['warning']} warning{plural}, {count['failed']} failed"


def as_json(checks: Iterable[Check]) -> str:
    return json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False)


def gigabytes(size: float) -> str:
    """Bytes as text: 10^9 each, as GPUs and disks are sold."""
    if size < 9.5e8:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"
