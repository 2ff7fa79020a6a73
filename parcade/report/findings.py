"""A finding: what was seen, the figures that show it, and what to do. The doctor and the profile's advice both speak
so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["problem", "warning", "note"]
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One observation. ``rule`` is its stable name; ``evidence`` holds the figures; ``fix`` names the flag or
    command."""

    rule: str
    level: Level
    says: str
    evidence: str
    fix: str

    def line(self) -> str:
        """All of it on one line."""
        return f"{self.level}: {self.says} ({self.evidence}); {self.fix}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def by_gravity(findings: Iterable[Finding]) -> list[Finding]:
    """Problems first, then warnings, then notes; in their order otherwise."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
