"""Findings: an observation, its evidence and a fix.

The doctor and the advice of a profile both report findings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

Level = Literal["problem", "warning", "note"]
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One observation.

    ``rule`` is its stable name, ``evidence`` holds the numbers, ``fix`` names a flag or command.
    """

    rule: str
    level: Level
    _: KW_ONLY
    says: str
    evidence: str
    fix: str

    def line(self) -> str:
        """Return the finding as one line of text."""
        return f"{self.level}: {self.says} ({self.evidence}); {self.fix}"


def by_gravity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by level: problems, warnings, notes. The order within a level is kept."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
