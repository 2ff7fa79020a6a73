"""The shape table: where every bit of a console's state lives.

A console is one row of each of four plain numpy arrays:

| array  | shape                           | dtype  | contents                                               |
|--------|---------------------------------|--------|--------------------------------------------------------|
| state  | [num_consoles, ROW_WORDS]       | int32  | every register, counter and log; the constants below   |
| memory | [num_consoles, 256]             | uint8  | 0-127 RIOT RAM ($80-$FF), 128-255 cartridge RAM        |
| screen | [num_consoles, 2 * height * 20] | uint64 | two pictures, 8 palette indices a word, pixel 0 lowest |
| random | [num_consoles, 3, 625]          | uint32 | three mt19937 streams: 624 words and an index          |

The three streams: `SYSTEM_STREAM` (RAM fill and timer start values), `STICKY_STREAM` (repeated actions),
`NOOP_STREAM` (no-op starts of the vector environment).

Clocks are colour clocks (3 to a CPU cycle, 228 to a scanline), counted like cycles from the start of
the frame. Numbers in comments are addresses or units.
"""

import numpy as np

VERSION = 1

PICTURE_WIDTH = 160
LINE_WORDS = 20  # uint64 words to a scanline of the picture

# --- 6507 -----------------------------------------------------------------------------------------------------
CPU_A = 0
CPU_X = 1
CPU_Y = 2
CPU_SP = 3
CPU_PC = 4
CPU_NZ = 5  # Z is set when the low byte is 0, N when bit 7 or bit 15 is set
CPU_C = 6
CPU_V = 7
CPU_D = 8
CPU_I = 9
CPU_JAMMED = 10  # an opcode that halts the chip was met
CYCLES = 11  # CPU cycles since the last frame start
BUS = 12  # last byte on the data bus; only valid inside one instruction

# --- RIOT (6532) ------------------------------------------------------------------------------------------------
RIOT_TIMER = 13
RIOT_SHIFT = 14  # 0, 3, 6, 10
RIOT_SET_CYCLE = 15
RIOT_READ_CYCLE = 16  # cycle of the first read after the timer expired
RIOT_READ_FLAG = 17
RIOT_DDRA = 18

# --- what the controllers and switches show -----------------------------------------------------------------------
IN_SWCHA = 19
IN_SWCHB = 20
IN_INPT4 = 21  # 0x80 not pressed
IN_INPT5 = 22
IN_CHARGE = 23  # 4 words, INPT0-3: cycles to charge, CHARGE_AT_ONCE or CHARGE_NEVER
CHARGE_AT_ONCE = -1
CHARGE_NEVER = -2

# --- frame timing: the part of the TIA that the CPU sees at once ----------------------------------------------------
FRAME_START = 27  # clock, <= 0
VSYNC_FINISH = 28  # clock from which switching VSYNC off ends the frame
LINE_LIMIT = 29  # a TIA write at or after this clock ends the frame
FRAME_ENDED = 30
PARTIAL = 31  # the last update stopped inside a frame
SCANLINES = 32  # of the last complete frame
DUMP = 33  # VBLANK bit 7: paddle capacitors are grounded
DUMP_OFF_CYCLE = 34

# --- log of TIA accesses --------------------------------------------------------------------------------------------
LOG_SLOT = 35  # the slot of the current frame, 0-2
LOG_COUNT = 36  # entries in the current slot
LOG_DONE = 37  # entries the live TIA has taken in
LOG_BASE = 38  # cycle that entry times count from
RECENT_CUTS = (
    39  # of the last two complete frames, bit 0 the last one: it ended above the picture's last line
)
OBSERVED = 40  # draw the current frame while it runs
SLOT_COUNT = 41  # 3 words: entries of each slot's frame
SLOT_DRAWN = 44  # 3 words: the slot's frame is already on its picture
PICTURE = 47  # 0 or 1: the picture of the current frame

# --- cartridge ------------------------------------------------------------------------------------------------------
CART_KIND = 48
CART_BANK = 49  # offset of the mapped 4K into the image
DPC_TOP = 50  # 8 words each
DPC_BOTTOM = 58
DPC_COUNTER = 66
DPC_FLAG = 74
DPC_MUSIC = 82
DPC_RANDOM = 90
DPC_MARK_CYCLE = 91
DPC_FRACTION = 92  # 2 words: a float64, low word first

CHIP_WORDS = 94  # the words above, of the chips and the cartridge

# --- constants of the ROM -------------------------------------------------------------------------------------------
ROM_YSTART = 94  # first drawn scanline
ROM_HEIGHT = 95  # drawn scanlines
ROM_PAL = 96
ROM_MAX_LINES = 97  # a frame is cut after so many scanlines
ROM_HMOVE_BLANKS = 98
ROM_LEFT_PADDLES = 99
ROM_RIGHT_PADDLES = 100
ROM_SWAP_PADDLES = 101
ROM_SWAP_PORTS = 102
ROM_BOOT_DIFFICULTY = 103  # switches while the television standard is detected

# --- the arcade around the console: controls, rules, counters ---------------------------------------------------------
PADDLE_A = 104  # resistance
PADDLE_B = 105
PADDLE_MIN = 106
PADDLE_MAX = 107
ACTION = 108  # the remembered (sticky) action
FRAME_NUMBER = 109
EPISODE_FRAME_NUMBER = 110
MODE = 111
DIFFICULTY = 112  # bit 0 left A, bit 1 right A
PRESSED_RESET = 113
PRESSED_SELECT = 114
REWARD = 115
TERMINAL = 116
LIVES = 117
STICKY_THRESHOLD = 118  # 2 words: threshold of repeating an action, 31 bits a word, low word first
RULE_VARIABLES = 120  # 16 words: score, wanted mode, latches ... of the game's rules
NUM_RULE_VARIABLES = 16
RULE_STACK = 136  # 24 words: scratch of the rules' stack machine
RULE_STACK_WORDS = 24

# --- TIA: the part that only pictures and collisions depend on ----------------------------------------------------------
TIA = 160  # the live registers, T_* below

T_LAST = 0  # clock up to which the picture is drawn
T_LEFT = 1  # clocks left in the scanline
T_LINE = 2  # scanline of the picture
T_START = 3  # clock of the first drawn scanline
T_STOP = 4
T_FRAME_START = 5
T_PICTURE = 6  # offset of the picture in the screen row, words
T_VBLANK = 7  # $01
T_NUSIZ0 = 8  # $04
T_NUSIZ1 = 9  # $05
T_COLUP0 = 10  # $06
T_COLUP1 = 11  # $07
T_COLUPF = 12  # $08
T_COLUBK = 13  # $09
T_CTRLPF = 14  # $0A
T_REFP0 = 15  # $0B
T_REFP1 = 16  # $0C
T_PF = 17  # $0D-$0F: 20 bits, the leftmost pixel lowest
T_MIRRORED = 18  # CTRLPF bit 0 as the picture uses it
T_GRP0 = 19  # $1B
T_GRP1 = 20  # $1C
T_DELAYED_GRP0 = 21
T_DELAYED_GRP1 = 22
T_ENAM0 = 23  # $1D, 0 or 1
T_ENAM1 = 24  # $1E
T_ENABL = 25  # $1F
T_DELAYED_ENABL = 26
T_HMP0 = 27  # $20-$24, 0-15
T_HMP1 = 28
T_HMM0 = 29
T_HMM1 = 30
T_HMBL = 31
T_VDELP0 = 32  # $25
T_VDELP1 = 33  # $26
T_VDELBL = 34  # $27
T_RESMP0 = 35  # $28
T_RESMP1 = 36  # $29
T_COLLISIONS = 37  # 15 bits, COLLISION_* in tia.py
T_POSP0 = 38  # positions 0-159
T_POSP1 = 39
T_POSM0 = 40
T_POSM1 = 41
T_POSBL = 42
T_LAST_HMOVE = 43  # clock
T_COMB = 44  # HMOVE blanks the next 8 pixels of a line start
T_ARK = 45  # the Cosmic Ark effect
T_ARK_COUNT = 46
T_SKIP0 = 47  # the first copy of player 0 is not shown
T_SKIP1 = 48
T_M0_SHAPE = 49  # 0 as NUSIZ0 says, 1 at least 2 wide, 2 hidden
T_COLOUR_LOSS = 50
T_FROM_LINE = 51  # of a copy that draws a part of the picture: lines above this one are left out
TIA_WORDS = 52

TIA_SNAPSHOTS = TIA + TIA_WORDS  # 3 blocks: the TIA at the start of each slot's frame
LOG_CAPACITY = 2048
LOGS = TIA_SNAPSHOTS + 3 * TIA_WORDS  # 3 logs
ROW_WORDS = LOGS + 3 * LOG_CAPACITY

# --- memory -----------------------------------------------------------------------------------------------------------
RAM_BYTES = 128  # of the RIOT
CART_RAM = 128
MEMORY_BYTES = 256

# --- random streams -----------------------------------------------------------------------------------------------------
SYSTEM_STREAM = 0
STICKY_STREAM = 1
NOOP_STREAM = 2


def allocate(num_consoles: int, height: int) -> dict[str, np.ndarray]:
    """Arrays of the shape table for `num_consoles` consoles with pictures of `height` lines, all zero."""
    return {
        "state": np.zeros((num_consoles, ROW_WORDS), np.int32),
        "memory": np.zeros((num_consoles, MEMORY_BYTES), np.uint8),
        "screen": np.zeros((num_consoles, 2 * height * LINE_WORDS), np.uint64),
        "random": np.zeros((num_consoles, 3, 625), np.uint32),
    }


def bytes_per_console(height: int) -> int:
    """Memory of one console: 4 * ROW_WORDS + 256 + 2 * 160 * height + 3 * 4 * 625 bytes."""
    return 4 * ROW_WORDS + MEMORY_BYTES + 2 * PICTURE_WIDTH * height + 3 * 4 * 625
