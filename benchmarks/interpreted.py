"""Count the 6507 instructions per frame that run as machine code and in the interpreter, with reasons.

    python benchmarks/interpreted.py [--games pong breakout ... | all] [--frames 600] [--out FILE]

Plays random actions, each held for four frames, like `interpreter.run`: machine code until it returns, one
instruction in the interpreter, machine code again. Each interpreted instruction is counted under the reason
why machine code stopped. `latches` counts reads of collision latches, for which machine code waits until the
TIA has caught up. `log_entries` counts the entries of the TIA's log (`tia/log.py`).
"""

from __future__ import annotations

import collections
import json
from ctypes import CFUNCTYPE, c_int32, c_void_p

import numpy as np
from script_arguments import game_name_or_all, output_file, script_parser, whole_number

from parcade.atari import Arcade, cartridge, console, games, rule_machine, rules
from parcade.atari import state as st
from parcade.atari.mos6507 import interpreter
from parcade.atari.tia import chip as tia
from parcade.atari.translate import machine_code, recompiler, rom_image, tracing
from parcade.atari.translate.accesses import GOING, LATCH
from parcade.atari.translate.notes import named

GAMES = ("pong", "breakout", "seaquest", "qbert", "beam_rider", "space_invaders")
HOLD_FRAMES = 4
TIA_NAMES = {0: "VSYNC", 1: "VBLANK", 2: "WSYNC"}


class Counter:
    """One console that counts its instructions as machine code or interpreted."""

    def __init__(self, game: str) -> None:
        arcade = Arcade(game, 1)
        machine = arcade.machine
        self.rows = tuple(arcade.arrays[name][0] for name in ("state", "memory"))
        self.rows = (*self.rows, machine.rom, arcade.arrays["screen"][0])
        self.random, self.program = arcade.arrays["random"][0], machine.program
        address = int.from_bytes(machine.rom[-machine_code.ADDRESS_BYTES :].tobytes(), "little")
        self.call = CFUNCTYPE(c_int32, *[c_void_p] * 3, *[c_int32] * 3)(address)
        self.pointers = [row.ctypes.data for row in self.rows[:3]]
        kind = int(self.rows[0][st.CART_KIND])
        self.image = rom_image.Image(machine.rom, kind)
        notes = tracing.trace(machine.powered, machine.rom, machine.program)
        seen, entered = named(notes, kind)
        self.code, reached = rom_image.find_code(self.image, seen)
        translator = recompiler.Translator(self.image, self.code, reached | entered)
        translator.assembly()
        self.entries = translator.entries
        self.translated = self.interpreted = self.latches = self.frames = self.log_entries = 0
        self.reasons: collections.Counter[str] = collections.Counter()
        arcade.reset(seed=1)
        self.arcade = arcade

    def frame(self, action: int) -> None:
        """Play a frame like `console.run_update`, and apply the game's rules."""
        s, memory = self.rows[:2]
        console.apply_controls(s, action, 0)
        console.begin_update(s)
        done = 0
        while done < console.INSTRUCTION_LIMIT and not s[st.CPU_JAMMED]:
            here = self.run(console.INSTRUCTION_LIMIT - done)
            self.translated += here
            done += here
            if done >= console.INSTRUCTION_LIMIT or s[st.FRAME_ENDED]:
                break
            near = console.INSTRUCTION_LIMIT - done <= len(self.code) + 1
            self.reasons["end of the 25,000 instructions" if near else self.reason(here)] += 1
            interpreter.step(*self.rows)
            self.interpreted += 1
            done += 1
            if s[st.FRAME_ENDED]:
                break
        console.end_update(s, self.rows[3])
        self.log_entries += int(s[st.SLOT_COUNT + s[st.LOG_SLOT]])
        rule_machine.execute(s, memory, self.program, int(self.program[rules.AT_STEP]))
        if s[st.TERMINAL]:
            console.reset_game(s, memory, self.rows[2], self.rows[3], self.random, self.program)
        self.frames += 1

    def run(self, limit: int) -> int:
        """Run machine code until the interpreter is needed; return the number of instructions."""
        done, status = 0, GOING
        while True:
            answer = self.call(*self.pointers, limit - done, status, 1)
            done, status = done + (answer >> 2), answer & 3
            if status != LATCH:
                return done
            self.latches += 1
            tia.serve(self.rows[0], self.rows[3], tia.CATCH_UP)

    def reason(self, here: int) -> str:
        """Why the next instruction is interpreted, after `here` instructions of machine code."""
        s = self.rows[0]
        pc = int(s[st.CPU_PC])
        name = (0 if self.image.kind == cartridge.FE else int(s[st.CART_BANK]) >> 12 << 16) | pc
        instruction = self.image.instruction(name)
        if instruction is None:
            return "code outside plain ROM"
        if name not in self.code:
            return "code nobody saw"
        if name not in self.entries and here == 0:
            return "no entry here"
        opcode = instruction.opcode
        if opcode.mnemonic in ("BRK", "RTI"):
            return opcode.mnemonic
        address = self.address(instruction)
        if address is not None and address & 0x1080 == 0 and opcode.kind != "jump":
            register = address & 0x3F
            if opcode.kind == "write" and register in TIA_NAMES:
                return (
                    f"{'undocumented ' if opcode.undocumented else ''}write to "
                    f"{TIA_NAMES[register]} ({opcode.mode})"
                )
            if opcode.kind == "read" and address & 0x0F < 8:
                return "read of a collision latch"
            return f"{opcode.kind} of the TIA {register:02X} {opcode.mnemonic} {opcode.mode}"
        if opcode.undocumented:
            return f"undocumented {opcode.mnemonic}"
        if opcode.mnemonic in ("ADC", "SBC") and s[st.CPU_D]:
            return "decimal ADC, SBC"
        if address is not None and address & 0x1280 == 0x280 and address & 5 == 4 and opcode.kind == "read":
            return "read of the timer"
        return f"{opcode.mnemonic} {opcode.mode}" + (
            f" {address:04X}" if address is not None and address & 0x1000 == 0 else ""
        )

    def address(self, instruction: rom_image.Instruction) -> int | None:
        """The address an instruction is about to access, or None."""
        s, memory = self.rows[:2]
        mode, at = instruction.opcode.mode, instruction.low
        index = {"zpx": st.CPU_X, "absx": st.CPU_X, "indx": st.CPU_X}.get(mode, st.CPU_Y)
        if mode in ("zp", "abs"):
            return at if mode == "zp" else instruction.address
        if mode in ("zpx", "zpy"):
            return (at + int(s[index])) & 0xFF
        if mode in ("absx", "absy"):
            return (instruction.address + int(s[index])) & 0xFFFF
        if mode in ("indx", "indy"):
            at = (at + int(s[index])) & 0xFF if mode == "indx" else at
            pointer = int(memory[at & 0x7F]) | int(memory[(at + 1) & 0x7F]) << 8
            return pointer if mode == "indx" else (pointer + int(s[index])) & 0xFFFF
        return None


def count(game: str, frames: int) -> dict[str, object]:
    """Row of a game: instructions per frame, and interpreted ones by reason, most frequent first."""
    counter = Counter(game)
    for action in (
        np.random.default_rng(0).integers(0, 18, -(-frames // HOLD_FRAMES)).repeat(HOLD_FRAMES)[:frames]
    ):
        counter.frame(int(action))
    reasons = {reason: round(number / frames, 2) for reason, number in counter.reasons.most_common()}
    return {
        "game": game,
        "machine_code": round(counter.translated / frames, 1),
        "interpreted": round(counter.interpreted / frames, 2),
        "latches": round(counter.latches / frames, 2),
        "log_entries": round(counter.log_entries / frames, 1),
        "reasons": reasons,
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--games", type=game_name_or_all, nargs="+", default=GAMES)
    parser.add_argument("--frames", type=whole_number, default=600)
    parser.add_argument("--out", type=output_file)
    arguments = parser.parse_args()
    rows = []
    for game in sorted(games.load_games()) if arguments.games == ["all"] else arguments.games:
        rows.append(count(game, arguments.frames))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
