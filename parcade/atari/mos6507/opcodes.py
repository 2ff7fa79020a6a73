"""Table of the 6507's opcodes.

Each row contains the opcode byte, mnemonic, addressing mode, kind of memory access and base cycles.
``+`` marks indexed reads that take one more cycle when the effective address is in another page than
the base address. Branches (``rel``) take one more cycle when taken, or two more when the target is
in another page than the instruction after the branch.

Cycles and semantics are those of ale-py 0.12.1's core ("M6502Low"), not of the real chip: an
instruction's base cycles are added *before* its memory accesses, read-modify-write instructions make
no dummy reads or writes, and the twelve bytes not listed here halt the CPU.

Modes: ``imp`` implied, ``acc`` accumulator, ``imm`` immediate, ``zp zpx zpy`` zero page,
``abs absx absy`` absolute, ``ind`` indirect (JMP only), ``indx`` (zp,X), ``indy`` (zp),Y, ``rel`` branch.
Kinds: ``none`` no operand in memory, ``read``, ``write``, ``rmw`` read-modify-write, ``branch``, ``jump``.
"""

from typing import NamedTuple

import numpy as np

TABLE = """
00 BRK imp  none   7
01 ORA indx read   6
03 SLO indx rmw    8  undocumented
04 NOP zp   read   3  undocumented
05 ORA zp   read   3
06 ASL zp   rmw    5
07 SLO zp   rmw    5  undocumented
08 PHP imp  none   3
09 ORA imm  read   2
0A ASL acc  none   2
0B ANC imm  read   2  undocumented
0C NOP abs  read   4  undocumented
0D ORA abs  read   4
0E ASL abs  rmw    6
0F SLO abs  rmw    6  undocumented
10 BPL rel  branch 2
11 ORA indy read   5+
13 SLO indy rmw    8  undocumented
14 NOP zpx  read   4  undocumented
15 ORA zpx  read   4
16 ASL zpx  rmw    6
17 SLO zpx  rmw    6  undocumented
18 CLC imp  none   2
19 ORA absy read   4+
1A NOP imp  none   2  undocumented
1B SLO absy rmw    7  undocumented
1C NOP absx read   4+ undocumented
1D ORA absx read   4+
1E ASL absx rmw    7
1F SLO absx rmw    7  undocumented
20 JSR abs  jump   6
21 AND indx read   6
23 RLA indx rmw    8  undocumented
24 BIT zp   read   3
25 AND zp   read   3
26 ROL zp   rmw    5
27 RLA zp   rmw    5  undocumented
28 PLP imp  none   4
29 AND imm  read   2
2A ROL acc  none   2
2B ANC imm  read   2  undocumented
2C BIT abs  read   4
2D AND abs  read   4
2E ROL abs  rmw    6
2F RLA abs  rmw    6  undocumented
30 BMI rel  branch 2
31 AND indy read   5+
33 RLA indy rmw    8  undocumented
34 NOP zpx  read   4  undocumented
35 AND zpx  read   4
36 ROL zpx  rmw    6
37 RLA zpx  rmw    6  undocumented
38 SEC imp  none   2
39 AND absy read   4+
3A NOP imp  none   2  undocumented
3B RLA absy rmw    7  undocumented
3C NOP absx read   4+ undocumented
3D AND absx read   4+
3E ROL absx rmw    7
3F RLA absx rmw    7  undocumented
40 RTI imp  none   6
41 EOR indx read   6
43 SRE indx rmw    8  undocumented
44 NOP zp   read   3  undocumented
45 EOR zp   read   3
46 LSR zp   rmw    5
47 SRE zp   rmw    5  undocumented
48 PHA imp  none   3
49 EOR imm  read   2
4A LSR acc  none   2
4B ASR imm  read   2  undocumented
4C JMP abs  jump   3
4D EOR abs  read   4
4E LSR abs  rmw    6
4F SRE abs  rmw    6  undocumented
50 BVC rel  branch 2
51 EOR indy read   5+
53 SRE indy rmw    8  undocumented
54 NOP zpx  read   4  undocumented
55 EOR zpx  read   4
56 LSR zpx  rmw    6
57 SRE zpx  rmw    6  undocumented
58 CLI imp  none   2
59 EOR absy read   4+
5A NOP imp  none   2  undocumented
5B SRE absy rmw    7  undocumented
5C NOP absx read   4+ undocumented
5D EOR absx read   4+
5E LSR absx rmw    7
5F SRE absx rmw    7  undocumented
60 RTS imp  none   6
61 ADC indx read   6
63 RRA indx rmw    8  undocumented
64 NOP zp   read   3  undocumented
65 ADC zp   read   3
66 ROR zp   rmw    5
67 RRA zp   rmw    5  undocumented
68 PLA imp  none   4
69 ADC imm  read   2
6A ROR acc  none   2
6B ARR imm  read   2  undocumented
6C JMP ind  jump   5
6D ADC abs  read   4
6E ROR abs  rmw    6
6F RRA abs  rmw    6  undocumented
70 BVS rel  branch 2
71 ADC indy read   5+
73 RRA indy rmw    8  undocumented
74 NOP zpx  read   4  undocumented
75 ADC zpx  read   4
76 ROR zpx  rmw    6
77 RRA zpx  rmw    6  undocumented
78 SEI imp  none   2
79 ADC absy read   4+
7A NOP imp  none   2  undocumented
7B RRA absy rmw    7  undocumented
7C NOP absx read   4+ undocumented
7D ADC absx read   4+
7E ROR absx rmw    7
7F RRA absx rmw    7  undocumented
80 NOP imm  read   2  undocumented
81 STA indx write  6
82 NOP imm  read   2  undocumented
83 SAX indx write  6  undocumented
84 STY zp   write  3
85 STA zp   write  3
86 STX zp   write  3
87 SAX zp   write  3  undocumented
88 DEY imp  none   2
89 NOP imm  read   2  undocumented
8A TXA imp  none   2
8B ANE imm  read   2  undocumented
8C STY abs  write  4
8D STA abs  write  4
8E STX abs  write  4
8F SAX abs  write  4  undocumented
90 BCC rel  branch 2
91 STA indy write  6
93 SHA indy write  6  undocumented
94 STY zpx  write  4
95 STA zpx  write  4
96 STX zpy  write  4
97 SAX zpy  write  4  undocumented
98 TYA imp  none   2
99 STA absy write  5
9A TXS imp  none   2
9B SHS absy write  5  undocumented
9C SHY absx write  5  undocumented
9D STA absx write  5
9E SHX absy write  5  undocumented
9F SHA absy write  5  undocumented
A0 LDY imm  read   2
A1 LDA indx read   6
A2 LDX imm  read   2
A3 LAX indx read   6  undocumented
A4 LDY zp   read   3
A5 LDA zp   read   3
A6 LDX zp   read   3
A7 LAX zp   read   4  undocumented
A8 TAY imp  none   2
A9 LDA imm  read   2
AA TAX imp  none   2
AB LXA imm  read   2  undocumented
AC LDY abs  read   4
AD LDA abs  read   4
AE LDX abs  read   4
AF LAX abs  read   4  undocumented
B0 BCS rel  branch 2
B1 LDA indy read   5+
B3 LAX indy read   5+ undocumented
B4 LDY zpx  read   4
B5 LDA zpx  read   4
B6 LDX zpy  read   4
B7 LAX zpy  read   4  undocumented
B8 CLV imp  none   2
B9 LDA absy read   4+
BA TSX imp  none   2
BB LAS absy read   4+ undocumented
BC LDY absx read   4+
BD LDA absx read   4+
BE LDX absy read   4+
BF LAX absy read   4+ undocumented
C0 CPY imm  read   2
C1 CMP indx read   6
C2 NOP imm  read   2  undocumented
C3 DCP indx rmw    8  undocumented
C4 CPY zp   read   3
C5 CMP zp   read   3
C6 DEC zp   rmw    5
C7 DCP zp   rmw    5  undocumented
C8 INY imp  none   2
C9 CMP imm  read   2
CA DEX imp  none   2
CB SBX imm  read   2  undocumented
CC CPY abs  read   4
CD CMP abs  read   4
CE DEC abs  rmw    6
CF DCP abs  rmw    6  undocumented
D0 BNE rel  branch 2
D1 CMP indy read   5+
D3 DCP indy rmw    8  undocumented
D4 NOP zpx  read   4  undocumented
D5 CMP zpx  read   4
D6 DEC zpx  rmw    6
D7 DCP zpx  rmw    6  undocumented
D8 CLD imp  none   2
D9 CMP absy read   4+
DA NOP imp  none   2  undocumented
DB DCP absy rmw    7  undocumented
DC NOP absx read   4+ undocumented
DD CMP absx read   4+
DE DEC absx rmw    7
DF DCP absx rmw    7  undocumented
E0 CPX imm  read   2
E1 SBC indx read   6
E2 NOP imm  read   2  undocumented
E3 ISB indx rmw    8  undocumented
E4 CPX zp   read   3
E5 SBC zp   read   3
E6 INC zp   rmw    5
E7 ISB zp   rmw    5  undocumented
E8 INX imp  none   2
E9 SBC imm  read   2
EA NOP imp  none   2
EB SBC imm  read   2  undocumented
EC CPX abs  read   4
ED SBC abs  read   4
EE INC abs  rmw    6
EF ISB abs  rmw    6  undocumented
F0 BEQ rel  branch 2
F1 SBC indy read   5+
F3 ISB indy rmw    8  undocumented
F4 NOP zpx  read   4  undocumented
F5 SBC zpx  read   4
F6 INC zpx  rmw    6
F7 ISB zpx  rmw    6  undocumented
F8 SED imp  none   2
F9 SBC absy read   4+
FA NOP imp  none   2  undocumented
FB ISB absy rmw    7  undocumented
FC NOP absx read   4+ undocumented
FD SBC absx read   4+
FE INC absx rmw    7
FF ISB absx rmw    7  undocumented
"""


class Opcode(NamedTuple):
    """One row of `TABLE`."""

    byte: int
    mnemonic: str
    mode: str
    kind: str
    cycles: int
    page_cross_extra: int
    undocumented: bool


def parse_table(text: str = TABLE) -> dict[int, Opcode]:
    """Return the rows of the table by opcode byte."""
    opcodes = {}
    for line in text.strip().splitlines():
        byte, mnemonic, mode, kind, cycles, *rest = line.split()
        opcodes[int(byte, 16)] = Opcode(
            byte=int(byte, 16),
            mnemonic=mnemonic,
            mode=mode,
            kind=kind,
            cycles=int(cycles.rstrip("+")),
            page_cross_extra=int(cycles.endswith("+")),
            undocumented=bool(rest),
        )
    return opcodes


OPCODES = parse_table()

# Codes of modes, kinds and operations for the interpreter. Bytes that halt the CPU have operation HLT.
MODES = ("imp", "acc", "imm", "zp", "zpx", "zpy", "abs", "absx", "absy", "ind", "indx", "indy", "rel")
KINDS = ("none", "read", "write", "rmw", "branch", "jump")
OPERATIONS = ("HLT", *sorted({row.mnemonic for row in OPCODES.values()}))

MODE = np.zeros(256, np.uint8)
KIND = np.zeros(256, np.uint8)
OPERATION = np.zeros(256, np.uint8)
CYCLES = np.zeros(256, np.uint8)
PAGE_EXTRA = np.zeros(256, np.uint8)
for _byte, _row in OPCODES.items():
    MODE[_byte] = MODES.index(_row.mode)
    KIND[_byte] = KINDS.index(_row.kind)
    OPERATION[_byte] = OPERATIONS.index(_row.mnemonic)
    CYCLES[_byte] = _row.cycles
    PAGE_EXTRA[_byte] = _row.page_cross_extra

LENGTH = {"imp": 1, "acc": 1, "imm": 2, "zp": 2, "zpx": 2, "zpy": 2, "abs": 3, "absx": 3, "absy": 3}
LENGTH |= {"ind": 3, "indx": 2, "indy": 2, "rel": 2}
