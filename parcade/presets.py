"""Presets: names for flags that were found to belong together. A flag given beside a preset wins."""

from __future__ import annotations

from parcade.errors import unknown_name

PRESETS: dict[str, str] = {
    # Karpathy 2016, "Deep Reinforcement Learning: Pong from Pixels".
    "karpathy_2016": "--algorithm reinforce --env-preset karpathy_2016 --total-frames 400000000",
}


def preset_flags(name: str) -> list[str]:
    """The flags a preset stands for. Errors: UsageError with the nearest name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name].split()
