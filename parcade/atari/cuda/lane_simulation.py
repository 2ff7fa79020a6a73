"""Simulate a GPU warp on the CPU with a ROM's GPU code, where a lane returns at every meeting.

`play_group` implements a meeting (the leader, and the lanes that continue with it) by the rule that
`translate/lanes.py` generates for a warp. Tests compare the lanes with the CPU code; `lanes_together`
measures divergence without a GPU.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int32, c_void_p
from typing import NamedTuple

import numpy as np

from .. import console, rule_machine, rules
from .. import state as st
from ..arcade import Arcade
from ..mos6507 import interpreter
from ..tia import chip as tia
from ..translate import machine_code, rom_image, tracing
from ..translate.accesses import ENDED, GOING, INTERPRET, LATCH
from ..translate.assembly import CPU_POINTERS
from ..translate.lanes import STOPPED, LaneTranslator
from ..translate.notes import named
from ..translate.recompiler import Translator

CALL = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32)
LAST = 1 << 40  # clock of a lane that has ended


class LanesOnCpu(LaneTranslator):
    """Lanes whose group is never complete, so that they return at every meeting."""

    pointers = CPU_POINTERS

    def head(self) -> None:
        """Write the function head of the CPU code."""
        Translator.head(self)

    def active_lanes(self) -> str:
        """Return a mask that never equals LIVE, which stays 0."""
        return "-1"

    def meet(self) -> None:
        """Return with the lane's status."""
        Translator.give_back(self, self.get("STATUS"))

    def choose_place(self) -> None:
        """Write nothing: a lane finds its place again by its PC."""


class Code(NamedTuple):
    """Compiled code; `engine` keeps it in memory. `places` is empty for the CPU code."""

    engine: object
    call: object
    places: dict[int, int]


class Play(NamedTuple):
    """Work done by a group."""

    meetings: int
    instructions: int  # 6507 instructions run as machine code, all lanes
    # Largest instruction count of a lane between two meetings, summed; instructions / lanes if none diverge.
    passes: int


class Row(NamedTuple):
    """The arrays of one console."""

    s: np.ndarray
    memory: np.ndarray
    rom: np.ndarray
    screen: np.ndarray


def compile_form(translator: Translator) -> Code:
    """Compile the CPU code or the lane code of a ROM."""
    engine, address = machine_code.load_object(machine_code.compile_assembly(translator.assembly()))
    return Code(engine, CALL(address), getattr(translator, "places", {}))


def lanes_of(arcade: Arcade) -> LanesOnCpu:
    """Return the translator of an arcade's ROM to lane code."""
    rom = arcade.machine.rom
    kind = int(arcade.machine.powered["state"][0, st.CART_KIND])
    seen, entered = named(tracing.trace(arcade.machine.powered, rom, arcade.machine.program), kind)
    code, reached = rom_image.find_code(rom_image.Image(rom, kind), seen)
    return LanesOnCpu(rom_image.Image(rom, kind), code, reached | entered)


def play_group(lanes: list[Row], code: Code, limit: int) -> Play:
    """Run one update of every lane, as `interpreter.run` does on a GPU."""
    group = _Group(lanes, code, limit)
    meetings = passes = 0
    turn = list(range(len(lanes)))
    while turn:
        before = list(group.done)
        for k in turn:
            group.run(k)
        passes += max(group.done[k] - before[k] for k in turn)
        meetings += 1
        turn = group.next_turn()
    return Play(meetings, group.translated, passes)


class _Group:
    """Lanes, the number of instructions each has done, and the status each waits with."""

    def __init__(self, lanes: list[Row], code: Code, limit: int) -> None:
        self.lanes, self.code, self.limit = lanes, code, limit
        self.done, self.status = [0] * len(lanes), [GOING] * len(lanes)
        self.translated = 0

    def run(self, k: int) -> None:
        """Run lane k to its next meeting."""
        s, memory, rom, _ = self.lanes[k]
        left = self.limit - self.done[k]
        answer = self.code.call(s.ctypes.data, memory.ctypes.data, rom.ctypes.data, left, self.status[k], 1)
        assert 0 <= answer >> 2 <= left
        self.done[k] += answer >> 2
        self.translated += answer >> 2
        self.status[k] = answer & 3

    def key(self, k: int) -> tuple[int, int]:
        """Return lane k's clock and place."""
        if self.status[k] == ENDED:
            return LAST, STOPPED
        s = self.lanes[k].s
        if self.status[k] != GOING:
            return int(s[st.CYCLES]), STOPPED
        return int(s[st.CYCLES]), self.code.places[int(s[st.CART_BANK]) >> 12 << 16 | int(s[st.CPU_PC])]

    def next_turn(self) -> list[int]:
        """Return the lanes that run next: those at the leader's place.

        If the group returns, all lanes that have not ended run next. The list is empty when all lanes have
        ended.
        """
        keys = [self.key(k) for k in range(len(self.lanes))]
        leader = min(keys)[1]
        if leader != STOPPED:
            return [k for k, key in enumerate(keys) if key[1] == leader]
        for k in range(len(self.lanes)):
            self.serve(k)
        return [k for k, status in enumerate(self.status) if status != ENDED]

    def serve(self, k: int) -> None:
        """Do the work that a stopped lane waits for."""
        row = self.lanes[k]
        if self.status[k] == LATCH:
            tia.serve(row.s, row.screen, tia.CATCH_UP)
        elif self.status[k] == INTERPRET:
            self.status[k] = ENDED
            if self.done[k] < self.limit:
                interpreter.step(*row)
                self.done[k] += 1
                if self.done[k] < self.limit and not row.s[st.FRAME_ENDED] and not row.s[st.CPU_JAMMED]:
                    self.status[k] = GOING


class Lanes:
    """Copies of an arcade's consoles that continue as one group of lanes."""

    def __init__(self, arcade: Arcade) -> None:
        self.machine = arcade.machine
        self.code = compile_form(lanes_of(arcade))
        self.arrays = {name: array.copy() for name, array in arcade.arrays.items()}
        arrays = self.arrays
        self.rows = [
            Row(arrays["state"][e], arrays["memory"][e], self.machine.rom, arrays["screen"][e])
            for e in range(arcade.num_consoles)
        ]

    def act(self, actions: np.ndarray) -> Play:
        """Emulate one video frame of every console with ale-py action ids [n]."""
        program = self.machine.program
        for row, action in zip(self.rows, actions, strict=True):
            row.s[st.ACTION] = action
            console.apply_controls(row.s, int(action), 0)
            console.begin_update(row.s)
        played = play_group(self.rows, self.code, console.INSTRUCTION_LIMIT)
        for row in self.rows:
            console.end_update(row.s, row.screen)
            rule_machine.execute(row.s, row.memory, program, int(program[rules.AT_STEP]))
        return played


class Together(NamedTuple):
    """Divergence of a warp that runs consoles of one game."""

    meetings_a_frame: float
    instructions_a_frame: float
    lanes_active: float  # mean number of active lanes while machine code runs


def lanes_together(game: str, frames: int, *, lanes: int = 32, warm_up_frames: int = 300) -> Together:
    """Run a warp of consoles that differ by up to 30 no-ops and by random actions, held for four frames."""
    random = np.random.default_rng(0)
    arcade = Arcade(game, lanes)
    arcade.reset(seed=np.arange(lanes))
    noops = random.integers(0, 31, lanes)
    for frame in range(warm_up_frames):
        if frame % 4 == 0:
            actions = random.choice(arcade.actions, lanes)
        arcade.act(np.where(frame < noops, 0, actions))
        over = arcade.game_over
        if over.any():
            arcade.reset(mask=over)
    group = Lanes(arcade)
    played = []
    for frame in range(frames):
        if frame % 4 == 0:
            actions = random.choice(arcade.actions, lanes)
        played.append(group.act(actions))
    meetings, instructions, passes = np.sum(played, axis=0)
    return Together(meetings / frames, instructions / frames / lanes, instructions / passes)
