"""The GPU's form of a ROM's machine code on the CPU: the same text, but a lane returns at every meeting.

What happens at a meeting, who leads and who goes on with the leader, is `play_group`: the rule that `translate/lanes.py` writes for a
warp. Tests hold the lanes against the CPU's own form; `lanes_together` counts how well a warp stays together, without a GPU.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int32, c_void_p
from typing import NamedTuple

import numpy as np

from .. import console, cpu6507, rules, tia
from .. import state as st
from ..arcade import Arcade
from ..translate import machine_code, rom_image, tracing
from ..translate.accesses import ENDED, GOING, INTERPRET, LATCH
from ..translate.assembly import CPU_POINTERS
from ..translate.lanes import STOPPED, LaneTranslator
from ..translate.recompiler import Translator

CALL = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32)
LAST = 1 << 40  # the clock of a lane that has ended


class LanesOnCpu(LaneTranslator):
    """Lanes that never find their group whole, and return at every meeting."""

    pointers = CPU_POINTERS

    def head(self) -> None:
        """That of the CPU's form."""
        Translator.head(self)

    def active_lanes(self) -> str:
        """Never what LIVE is, which stays 0."""
        return "-1"

    def meet(self) -> None:
        """Return with the lane's status."""
        Translator.give_back(self, self.get("STATUS"))

    def choose_place(self) -> None:
        """Nothing: a lane finds its place again by its PC."""


class Code(NamedTuple):
    """Compiled code; `engine` keeps it in memory. The CPU's own form has no places to meet."""

    engine: object
    call: object
    places: dict[int, int]


class Play(NamedTuple):
    """What a group did."""

    meetings: int
    instructions: int  # of the 6507, done as machine code, all lanes
    passes: int  # the most of a lane in each part from meeting to meeting, summed: a warp that is always whole makes instructions / lanes


class Row(NamedTuple):
    """A console's rows."""

    s: np.ndarray
    memory: np.ndarray
    rom: np.ndarray
    screen: np.ndarray


def compile_form(translator: Translator) -> Code:
    """Either form of a ROM's code, ready to be called."""
    engine, address = machine_code.load_object(machine_code.compile_assembly(translator.assembly()))
    return Code(engine, CALL(address), getattr(translator, "places", {}))


def lanes_of(arcade: Arcade) -> LanesOnCpu:
    """The lanes' form of an arcade's ROM."""
    rom = arcade.machine.rom
    kind = int(arcade.machine.powered["state"][0, st.CART_KIND])
    seen, entered = tracing.trace(arcade.machine.powered, rom, arcade.machine.program)
    code, reached = rom_image.find_code(rom_image.Image(rom, kind), seen)
    return LanesOnCpu(rom_image.Image(rom, kind), code, reached | entered)


def play_group(lanes: list[Row], code: Code, limit: int) -> Play:
    """An update of every lane, as `cpu6507.run` plays it with machine code that meets."""
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
    """Lanes, what each has done, and the status it waits with."""

    def __init__(self, lanes: list[Row], code: Code, limit: int) -> None:
        self.lanes, self.code, self.limit = lanes, code, limit
        self.done, self.status = [0] * len(lanes), [GOING] * len(lanes)
        self.translated = 0

    def run(self, k: int) -> None:
        """Lane k from where it is to its next meeting."""
        s, memory, rom, _ = self.lanes[k]
        left = self.limit - self.done[k]
        answer = self.code.call(s.ctypes.data, memory.ctypes.data, rom.ctypes.data, left, self.status[k], 1)
        assert 0 <= answer >> 2 <= left
        self.done[k] += answer >> 2
        self.translated += answer >> 2
        self.status[k] = answer & 3

    def key(self, k: int) -> tuple[int, int]:
        """Lane k's clock and place."""
        if self.status[k] == ENDED:
            return LAST, STOPPED
        s = self.lanes[k].s
        if self.status[k] != GOING:
            return int(s[st.CYCLES]), STOPPED
        return int(s[st.CYCLES]), self.code.places[int(s[st.CART_BANK]) >> 12 << 16 | int(s[st.CPU_PC])]

    def next_turn(self) -> list[int]:
        """Who goes on with the leader; all that can go on after the group has returned. Nobody once all have ended."""
        keys = [self.key(k) for k in range(len(self.lanes))]
        leader = min(keys)[1]
        if leader != STOPPED:
            return [k for k, key in enumerate(keys) if key[1] == leader]
        for k in range(len(self.lanes)):
            self.serve(k)
        return [k for k, status in enumerate(self.status) if status != ENDED]

    def serve(self, k: int) -> None:
        """What a stopped lane waits for."""
        row = self.lanes[k]
        if self.status[k] == LATCH:
            tia.serve(row.s, row.screen, tia.CATCH_UP)
        elif self.status[k] == INTERPRET:
            self.status[k] = ENDED
            if self.done[k] < self.limit:
                cpu6507.step(*row)
                self.done[k] += 1
                if self.done[k] < self.limit and not row.s[st.FRAME_ENDED] and not row.s[st.CPU_JAMMED]:
                    self.status[k] = GOING


class Lanes:
    """Consoles of an arcade that go on as a group of lanes from where they are."""

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
        """One video frame of every console with ale-py action ids [n]."""
        program = self.machine.program
        for row, action in zip(self.rows, actions, strict=True):
            row.s[st.ACTION] = action
            console.apply_controls(row.s, int(action))
            console.begin_update(row.s, row.memory)
        played = play_group(self.rows, self.code, console.INSTRUCTION_LIMIT)
        for row in self.rows:
            console.end_update(row.s, row.screen)
            rules.execute(row.s, row.memory, program, program[rules.AT_STEP])
        return played


class Together(NamedTuple):
    """How a warp of a game's consoles stays together."""

    meetings_a_frame: float
    instructions_a_frame: float
    lanes_active: float  # of all, while the translated 6507 runs


def lanes_together(game: str, frames: int, *, lanes: int = 32, warm_up_frames: int = 300) -> Together:
    """Play a warp of consoles that have drifted apart: begun with up to 30 no-ops, random actions held for four frames."""
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
