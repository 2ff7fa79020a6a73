"""``parcade.Arcade``: raw consoles on the CPU or a GPU."""

from pathlib import Path

from .arcade import Arcade


def make_arcade(
    game: str | Path, num_consoles: int, device: str = "cpu", repeat_action_probability: float = 0.0
) -> Arcade:
    """``num_consoles`` consoles of one ROM, given by game name or path.

    With ``device="cuda"`` they live on a GPU, and the arrays they return live there too.
    Errors: ValueError for an unknown game or device and for wrong shapes.
    """
    if device == "cpu":
        return Arcade(game, num_consoles, repeat_action_probability)
    if device != "cuda":
        raise ValueError(f"device={device!r}: expected 'cpu' or 'cuda'")
    from .cuda.arcade import DeviceArcade

    return DeviceArcade(game, num_consoles, repeat_action_probability)
