"""The GPU's form of a ROM's machine code on the CPU: the same text, but a lane returns at every meeting.

What happens there, who is the leader and who goes on with it, is `play_group`: the rule that `lanes.py` writes for a warp.
"""

from ctypes import CFUNCTYPE, c_int32, c_void_p
from typing import NamedTuple

import numpy as np

from parcade.atari import cpu6507, tia
from parcade.atari import state as st
from parcade.atari.translate import machine_code
from parcade.atari.translate.accesses import ENDED, GOING, INTERPRET, LATCH
from parcade.atari.translate.assembly import CPU_POINTERS
from parcade.atari.translate.lanes import STOPPED, LaneTranslator
from parcade.atari.translate.recompiler import Translator

CALL = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32)


class LanesOnCpu(LaneTranslator):
    """Lanes that never find themselves whole, and return at every meeting."""

    pointers = CPU_POINTERS

    def head(self) -> None:
        Translator.head(self)

    def active_lanes(self) -> str:
        return "-1"  # LIVE stays 0

    def meet(self) -> None:
        Translator.give_back(self, self.get("STATUS"))

    def choose_place(self) -> None:
        """A lane finds its place again by its PC."""
        self.label("never")
        self.line("unreachable")


class Code(NamedTuple):
    """Compiled code; `engine` keeps it in memory. The CPU's own form has no places to meet."""

    engine: object
    call: object
    places: dict[int, int]


def compile_form(translator: Translator) -> Code:
    """Either form of a ROM's code, ready to be called."""
    engine, address = machine_code.load_object(machine_code.compile_assembly(translator.assembly()))
    return Code(engine, CALL(address), getattr(translator, "places", {}))


def place_of(rows: tuple, code: Code) -> int:
    return code.places[int(rows[0][st.CART_BANK]) >> 12 << 16 | int(rows[0][st.CPU_PC])]


def play_group(lanes: list[tuple], code: Code, limit: int) -> tuple[int, int]:
    """An update of every lane, (s, memory, rom, screen) each; returns meetings and instructions done as machine code."""
    done, status, meetings, ran = [0] * len(lanes), [GOING] * len(lanes), 0, 0
    turn = list(range(len(lanes)))
    while any(state != ENDED for state in status):
        for k in turn:  # these run from one meeting to the next
            s, memory, rom, _ = lanes[k]
            answer = code.call(s.ctypes.data, memory.ctypes.data, rom.ctypes.data, limit - done[k], status[k], 1)
            assert 0 <= answer >> 2 <= limit - done[k]
            done[k], ran, status[k] = done[k] + (answer >> 2), ran + (answer >> 2), answer & 3
        meetings += 1
        keys = [
            ((int(rows[0][st.CYCLES]), place_of(rows, code) if state == GOING else STOPPED) if state != ENDED else (1 << 40, STOPPED))
            for rows, state in zip(lanes, status, strict=True)
        ]
        leader = min(keys)[1]
        if leader != STOPPED:
            turn = [k for k, key in enumerate(keys) if status[k] == GOING and key[1] == leader]
            assert turn, "the leader goes on"
            continue
        turn = []
        for k, rows in enumerate(lanes):  # the group has returned: `cpu6507.run`
            if status[k] == LATCH:
                tia.serve(rows[0], rows[3], tia.CATCH_UP)
            elif status[k] == INTERPRET:
                status[k] = ENDED
                if done[k] < limit:
                    cpu6507.step(*rows)
                    done[k] += 1
                    if done[k] < limit and not rows[0][st.FRAME_ENDED] and not rows[0][st.CPU_JAMMED]:
                        status[k] = GOING
        turn = [k for k in range(len(lanes)) if status[k] != ENDED]
    return meetings, ran


def play_group_of_states(state: dict[str, np.ndarray], rom: np.ndarray, code: Code, limit: int) -> tuple[int, int]:
    """`play_group` on rows of `state.allocate`'s arrays."""
    return play_group([(state["state"][e], state["memory"][e], rom, state["screen"][e]) for e in range(len(state["state"]))], code, limit)
