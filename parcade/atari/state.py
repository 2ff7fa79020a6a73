"""The shape table: the layout of a console's complete state.

A console is one row of each of four numpy arrays:

| array  | shape                           | dtype  | contents                                             |
|--------|---------------------------------|--------|------------------------------------------------------|
| state  | [num_consoles, ROW_WORDS]       | int32  | every register, counter and log; words listed below  |
| memory | [num_consoles, 256]             | uint8  | 0-127 RIOT RAM ($80-$FF), 128-255 cartridge RAM      |
| screen | [num_consoles, 2 * height * 20] | uint64 | two frame buffers, 8 palette indices per word        |
| random | [num_consoles, 3, 625]          | uint32 | three mt19937 streams: 624 words and an index        |

In a word of `screen`, the leftmost pixel is the lowest byte.

The three streams are `SYSTEM_STREAM` (RAM fill and initial timer values), `STICKY_STREAM` (repeated actions)
and `NOOP_STREAM` (no-op starts of the vector environment).

Clocks are colour clocks: 3 per CPU cycle, 228 per scanline. Clocks and cycles count from the start of the
frame. The *visible area* of a frame is the scanlines that are drawn into its frame buffer. Numbers with
a $ in comments are addresses.
"""

import numpy as np

VERSION = 1

PICTURE_WIDTH = 160
LINE_WORDS = 20  # uint64 words per scanline of a frame buffer

# --- 6507 ---------------------------------------------------------------------------------------------------
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
CPU_JAMMED = 10  # the CPU has executed an opcode that halts it
CYCLES = 11  # CPU cycles since the start of the frame
BUS = 12  # last byte on the data bus; only valid within one instruction

# --- RIOT (6532) --------------------------------------------------------------------------------------------
RIOT_TIMER = 13
RIOT_SHIFT = 14  # 0, 3, 6, 10
RIOT_SET_CYCLE = 15
RIOT_READ_CYCLE = 16  # cycle of the first read after the timer expired
RIOT_READ_FLAG = 17
RIOT_DDRA = 18

# --- inputs from controllers and switches -------------------------------------------------------------------
IN_SWCHA = 19
IN_SWCHB = 20
IN_INPT4 = 21  # 0x80 if not pressed
IN_INPT5 = 22
IN_CHARGE = 23  # 4 words, INPT0-3: cycles to charge, CHARGE_AT_ONCE or CHARGE_NEVER
CHARGE_AT_ONCE = -1
CHARGE_NEVER = -2

# --- frame timing: the part of the TIA that the CPU observes immediately ------------------------------------
FRAME_START = 27  # clock, <= 0
VSYNC_FINISH = 28  # clock from which switching VSYNC off ends the frame
LINE_LIMIT = 29  # a TIA write at or after this clock ends the frame
FRAME_ENDED = 30
PARTIAL = 31  # the last `run_update` stopped within a frame
SCANLINES = 32  # number of scanlines of the last frame, so far if it is not complete
DUMP = 33  # VBLANK bit 7: the paddle capacitors are grounded
DUMP_OFF_CYCLE = 34

# --- log of TIA accesses ------------------------------------------------------------------------------------
LOG_SLOT = 35  # slot of the current frame, 0-2
LOG_COUNT = 36  # entries in the current slot
LOG_DONE = 37  # entries already applied to the live TIA
LOG_BASE = 38  # cycle from which the times of entries count
# One bit per frame, bit 0 the last complete frame, bit 1 the one before: it ended within the visible area.
RECENT_CUTS = 39
OBSERVED = 40  # draw the current frame while it runs
SLOT_COUNT = 41  # 3 words: entries of each slot's frame
SLOT_DRAWN = 44  # 3 words: PENDING, DRAWN or DRAWING (tia/chip.py), for each slot's frame
PICTURE = 47  # 0 or 1: frame buffer of the current frame

# --- cartridge ----------------------------------------------------------------------------------------------
CART_KIND = 48
CART_BANK = 49  # offset of the mapped 4K bank in the image
DPC_TOP = 50  # 8 words each
DPC_BOTTOM = 58
DPC_COUNTER = 66
DPC_FLAG = 74
DPC_MUSIC = 82
DPC_RANDOM = 90
DPC_MARK_CYCLE = 91
DPC_FRACTION = 92  # 2 words: a float64, low word first


# --- constants of the ROM -----------------------------------------------------------------------------------
ROM_YSTART = 94  # first drawn scanline
ROM_HEIGHT = 95  # drawn scanlines
ROM_PAL = 96
ROM_MAX_LINES = 97  # a frame ends after this many scanlines at the latest
ROM_HMOVE_BLANKS = 98
ROM_LEFT_PADDLES = 99
ROM_RIGHT_PADDLES = 100
ROM_SWAP_PADDLES = 101
ROM_SWAP_PORTS = 102
ROM_BOOT_DIFFICULTY = 103  # difficulty switches during the detection of PAL or NTSC

# --- the arcade around the console: controls, rules, counters -----------------------------------------------
PADDLE_A = 104  # resistance
PADDLE_B = 105
PADDLE_MIN = 106
PADDLE_MAX = 107
ACTION = 108  # last action of player A (joystick.py), which sticky actions repeat
FRAME_NUMBER = 109
EPISODE_FRAME_NUMBER = 110
MODE = 111
DIFFICULTY = 112  # bit 0 left A, bit 1 right A
PRESSED_RESET = 113
PRESSED_SELECT = 114
REWARD = 115
TERMINAL = 116
LIVES = 117
STICKY_THRESHOLD = 118  # 2 words: an action repeats if a draw is below it; 31 bits a word, low word first
RULE_VARIABLES = 120  # 15 words: variables of the game's rules, such as the score
NUM_RULE_VARIABLES = 15
ACTION_B = 135  # last action of player B
FRAMES_ALLOWED = 136  # `act` plays no more frames of an episode than these; 0 for no limit
RULE_STACK = 137  # 23 words: stack of the rules' stack machine
RULE_STACK_WORDS = 23

# --- TIA: the part that affects only the image and collisions -----------------------------------------------
TIA = 160  # the live registers, T_* below

T_LAST = 0  # clock up to which the frame is drawn
T_LEFT = 1  # clocks left in the scanline
T_LINE = 2  # scanline within the visible area
T_START = 3  # clock of the first drawn scanline
T_STOP = 4  # clock after the last drawn scanline
T_FRAME_START = 5
T_PICTURE = 6  # offset of the frame buffer in the screen row, in words
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
T_PF = 17  # $0D-$0F: 20 bits, leftmost pixel in the lowest bit
T_MIRRORED = 18  # CTRLPF bit 0 in effect
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
T_COLLISIONS = 37  # 15 bits, see tia/collisions.py
T_POSP0 = 38  # positions 0-159
T_POSP1 = 39
T_POSM0 = 40
T_POSM1 = 41
T_POSBL = 42
T_LAST_HMOVE = 43  # clock
T_COMB = 44  # HMOVE blanks the first 8 pixels of the line
T_ARK = 45  # the Cosmic Ark effect is active
T_ARK_COUNT = 46
T_SKIP0 = 47  # the first copy of player 0 is not displayed
T_SKIP1 = 48
T_M0_SHAPE = 49  # 0 as set by NUSIZ0, 1 at least 2 pixels wide, 2 hidden
T_COLOUR_LOSS = 50
T_FROM_LINE = 51  # lines above this one are not drawn; for copies that draw only a part of the frame
TIA_WORDS = 52

TIA_SNAPSHOTS = TIA + TIA_WORDS  # 3 blocks: TIA registers at the start of each slot's frame
LOG_CAPACITY = 2048
LOGS = TIA_SNAPSHOTS + 3 * TIA_WORDS  # 3 logs, one per slot

# --- what needs an entry in the log (tia/log.py) ------------------------------------------------------------
WRITTEN = LOGS + 3 * LOG_CAPACITY  # 64 words: the value last written to each TIA register; 0 if not known
# The last access needs no entry; it is at LOG_COUNT, where the next one overwrites it.
LOG_OPEN = WRITTEN + 64
ROW_WORDS = LOG_OPEN + 1
FIRST_ROW_WORDS = WRITTEN  # of states saved before these words existed

# --- memory -------------------------------------------------------------------------------------------------
RAM_BYTES = 128  # RIOT RAM
CART_RAM = 128
MEMORY_BYTES = 256

# --- random streams -----------------------------------------------------------------------------------------
SYSTEM_STREAM = 0
STICKY_STREAM = 1
NOOP_STREAM = 2


def allocate(num_consoles: int, height: int) -> dict[str, np.ndarray]:
    """Return the arrays for `num_consoles` consoles with `height` visible lines, all zero."""
    return {
        "state": np.zeros((num_consoles, ROW_WORDS), np.int32),
        "memory": np.zeros((num_consoles, MEMORY_BYTES), np.uint8),
        "screen": np.zeros((num_consoles, 2 * height * LINE_WORDS), np.uint64),
        "random": np.zeros((num_consoles, 3, 625), np.uint32),
    }


def with_all_words(saved: dict[str, np.ndarray], name: str = "state") -> dict[str, np.ndarray]:
    """Return saved arrays with all words of `state`, here called `name`: those added since are 0."""
    rows = saved.get(name)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != FIRST_ROW_WORDS:
        return saved
    return {**saved, name: np.pad(rows, ((0, 0), (0, ROW_WORDS - FIRST_ROW_WORDS)))}


def bytes_per_console(height: int) -> int:
    """Return the memory of one console in bytes: 4 * ROW_WORDS + 256 + 2 * 160 * height + 3 * 4 * 625."""
    return 4 * ROW_WORDS + MEMORY_BYTES + 2 * PICTURE_WIDTH * height + 3 * 4 * 625
