"""Compare saving and restoring a console with playing a frame, and with ale-py, interleaved.

    python benchmarks/states.py [--game montezuma_revenge] [--calls 2000] [--repeats 7] [--out FILE]

CPU time of this process in microseconds per console, of one console of ale-py, and of one, 8 and 64 of an
``Arcade``. A restore is followed by one frame, whose time is subtracted: a part of the work may happen there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
from script_arguments import game_name, output_file, script_parser, whole_number

from parcade import Arcade
from parcade.machine.facts import commit, machine

RESULT = Path(__file__).resolve().parent / "results" / "states.json"
PLAYED_BEFORE = 500
COUNTS = (1, 8, 64)


class AleConsole:
    """One console of ale-py, with the operations of ``ArcadeConsoles``."""

    num_consoles = 1

    def __init__(self, game: str) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", 0)
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.loadROM(ale_py.roms.get_rom_path(game))
        self._actions = self._ale.getMinimalActionSet()

    def play(self, choice: int) -> None:
        if self._ale.game_over():
            self._ale.reset_game()
        self._ale.act(self._actions[choice % len(self._actions)])

    def save(self) -> Any:
        return self._ale.cloneState()

    def restore(self, state: Any) -> None:
        self._ale.restoreState(state)

    def bytes_of(self, state: Any) -> dict[str, int]:
        serialized = state.serialize()
        return {"raw": len(serialized), "compressed": len(zlib.compress(serialized, 1))}


class ArcadeConsoles:
    """Consoles of an ``Arcade``."""

    def __init__(self, game: str, num_consoles: int) -> None:
        self.num_consoles = num_consoles
        self._arcade = Arcade(game, num_consoles)
        self._arcade.reset(seed=0)
        self._actions = self._arcade.actions

    def play(self, choice: int) -> None:
        if self._arcade.game_over.any():
            self._arcade.reset(mask=self._arcade.game_over)
        self._arcade.act(self._actions[choice % len(self._actions)])

    def save(self) -> Any:
        return self._arcade.get_state()

    def restore(self, state: Any) -> None:
        self._arcade.set_state(state)

    def bytes_of(self, state: Any) -> dict[str, int]:
        content = b"".join(array[0].tobytes() for name, array in state.items() if name in self._arcade.arrays)
        return {"raw": len(content), "compressed": len(zlib.compress(content, 1))}


def microseconds(console: AleConsole | ArcadeConsoles, operation: Callable[[int], Any], calls: int) -> float:
    """CPU time of a call, per console."""
    start = time.process_time()
    for number in range(calls):
        operation(number)
    return (time.process_time() - start) / calls / console.num_consoles * 1e6


def measure(console: AleConsole | ArcadeConsoles, calls: int) -> dict[str, float]:
    """Return the microseconds of each operation."""
    choices = np.random.default_rng(0).integers(18, size=max(calls, PLAYED_BEFORE)).tolist()
    for choice in choices[:PLAYED_BEFORE]:
        console.play(choice)
    state = console.save()

    def restore_and_play(number: int) -> None:
        console.restore(state)
        console.play(choices[number])

    frame = microseconds(console, lambda number: console.play(choices[number]), calls)
    return {
        "frame": frame,
        "save": microseconds(console, lambda number: console.save(), calls),
        "restore": microseconds(console, restore_and_play, calls) - frame,
    }


def main() -> None:
    """Measure and write the results."""
    parser = script_parser(__doc__)
    parser.add_argument("--game", type=game_name, default="montezuma_revenge")
    parser.add_argument("--calls", type=whole_number, default=2000)
    parser.add_argument("--repeats", type=whole_number, default=7)
    parser.add_argument("--out", type=output_file, default=RESULT)
    flags = parser.parse_args()
    kinds = {"ale-py": lambda: AleConsole(flags.game)}
    kinds |= {f"parcade, {count}": lambda count=count: ArcadeConsoles(flags.game, count) for count in COUNTS}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for _ in range(flags.repeats):
        for name, make in kinds.items():
            found[name].append(measure(make(), flags.calls))
    result: dict[str, Any] = {"command": f"python benchmarks/states.py {' '.join(sys.argv[1:])}".strip()}
    result |= {"game": flags.game, "microseconds": {}, "bytes": {}}
    for name, rounds in found.items():
        console = kinds[name]()
        result["bytes"][name] = console.bytes_of(console.save())
        result["microseconds"][name] = {}
        for operation in rounds[0]:
            values = [each[operation] for each in rounds]
            result["microseconds"][name][operation] = {"median": statistics.median(values), "all": values}
            spread = f"[{min(values):.1f}, {max(values):.1f}]"
            print(f"{name:12} {operation:8} {statistics.median(values):6.1f} us {spread}", flush=True)
        print(f"{name:12} bytes {result['bytes'][name]}", flush=True)
    flags.out.write_text(json.dumps({**result, "commit": commit(), "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
