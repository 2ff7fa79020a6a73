"""The same machine code for a GPU, where the 32 consoles of a warp run it together.

Lanes that take different branches diverge, and the warp then runs them one after the other. To reconverge,
lanes meet at every iteration of a loop and at the start of every scanline: a lane stores where it continues
(`PLACE`, a number) and waits for its group (`primitives/warp.py`). The lane with the lowest clock is the
leader. All lanes at the leader's place continue with it; the others keep waiting. If all running lanes of a
group arrive together, they continue without a meeting.

A lane that requires the interpreter or the TIA also waits at the meeting. When it becomes the leader, the
whole group returns; lanes that could have continued return with status GOING. The leader therefore always
advances, and no lane waits for one that has ended.

A lane whose frame has ended is called with `status` ENDED; it only takes part in the meetings of its group.
"""

import numpy as np

from .accesses import ENDED, GOING
from .assembly import GPU_POINTERS
from .machine_code import GPU_NAME
from .recompiler import Translator
from .rom_image import Image, find_code

PLACE_BITS = 13  # low bits of a meeting's key, below the clock
STOPPED = (1 << PLACE_BITS) - 1  # place of a lane that must return
INTRINSICS = """\
declare i32 @llvm.nvvm.activemask()
declare i32 @llvm.nvvm.vote.ballot.sync(i32, i1)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare i32 @llvm.nvvm.redux.sync.umin(i32, i32)
"""


class LaneTranslator(Translator):
    """Generate the GPU function of a ROM as LLVM assembly. Errors: ValueError for too many meeting places."""

    pointers = GPU_POINTERS
    small_calls = ""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.places: dict[int, int] = {}  # meeting places: name of an instruction to its number

    def jump(self, name: int, *, meets: bool) -> None:
        """Jump to an instruction; if `meets`, hold a meeting there unless the group is complete."""
        if not meets:
            self.line(f"br label %i{name}")
            return
        place = self.places.setdefault(name, len(self.places))
        self.entries.add(name)  # after a return from a meeting, a lane continues here
        whole, meeting = self.fresh("w"), self.fresh("m")
        self.line(
            f"br i1 {self.test('eq', self.active_lanes(), self.get('LIVE'))}, "
            f"label %{whole}, label %{meeting}"
        )
        self.label(whole)
        self.line(f"br label %i{name}")
        self.label(meeting)
        self.put("PC", name & 0xFFFF)
        self.put("PLACE", place)
        self.line("br label %meeting")

    def active_lanes(self) -> str:
        """Return the mask of the lanes that are active here."""
        return self.value("call i32 @llvm.nvvm.activemask()")

    def give_back(self, status: int | str) -> None:
        """Wait for the group with a status other than GOING."""
        self.put("STATUS", status)
        self.line("br label %meeting")

    def head(self) -> None:
        """Write the function head; addresses in local and global memory are passed as integers."""
        self.lines.append(
            f"define i32 @{GPU_NAME}(i64 %own, i64 %bytes, i64 %image, i32 %limit, i32 %status, i32 %group) "
            "nounwind convergent {"
        )
        self.label("entry")
        for name, number in (("s", "own"), ("memory", "bytes"), ("rom", "image")):
            self.line(f"%{name} = inttoptr i64 %{number} to {self.pointers[name]}")

    def load_console(self) -> None:
        """Write the local variables of the CPU code, and those of meetings."""
        super().load_console()
        for name in ("STATUS", "PLACE", "LIVE"):
            self.line(f"%{name} = alloca i32")
            self.put(name, 0)
        resuming, ending = self.fresh("r"), self.fresh("e")
        self.line(f"br i1 {self.test('eq', '%status', ENDED)}, label %{ending}, label %{resuming}")
        self.label(ending)
        self.give_back(ENDED)
        self.label(resuming)

    def choose_way(self) -> None:
        """Write the dispatch from the entry block to an instruction, and the meeting."""
        super().choose_way()
        self.label("meeting")
        self.meet()
        self.choose_place()
        if len(self.places) >= STOPPED:
            raise ValueError(f"the code has {len(self.places)} meeting places; expected fewer than {STOPPED}")

    def choose_place(self) -> None:
        """Write the jump from a meeting to the leader's place, and the return to the caller."""
        self.label("choose")
        ways = " ".join(f"i32 {place}, label %i{name}" for name, place in self.places.items())
        self.line(f"switch i32 {self.get('PLACE')}, label %never [ {ways} ]")
        self.label("never")
        self.line("unreachable")
        self.label("return")
        super().give_back(self.get("STATUS"))

    def key(self) -> tuple[str, str]:
        """Return a lane's sort key at a meeting (clock above place; ended lanes last) and its place."""
        status = self.get("STATUS")
        place = self.value(
            f"select i1 {self.test('eq', status, GOING)}, i32 {self.get('PLACE')}, i32 {STOPPED}"
        )
        key = self.op("or", self.op("shl", self.get("CYCLES"), PLACE_BITS), place)
        return self.value(f"select i1 {self.test('eq', status, ENDED)}, i32 -1, i32 {key}"), place

    def meet(self) -> None:
        """Wait for all lanes of the group; lanes at the leader's place continue, or the group returns."""
        self.line("call void @llvm.nvvm.bar.warp.sync(i32 %group)")
        key, place = self.key()
        least = self.value(f"call i32 @llvm.nvvm.redux.sync.umin(i32 {key}, i32 %group)")
        lives = self.test("ne", self.get("STATUS"), ENDED)
        self.put("LIVE", self.value(f"call i32 @llvm.nvvm.vote.ballot.sync(i32 %group, i1 {lives})"))
        leader = self.op("and", least, STOPPED)
        on = self.fresh("o")
        self.line(f"br i1 {self.test('eq', leader, STOPPED)}, label %return, label %{on}")
        self.label(on)
        self.line(f"br i1 {self.test('eq', place, leader)}, label %choose, label %meeting")

    def assembly(self) -> str:
        """Return the complete module as LLVM assembly."""
        return INTRINSICS + super().assembly()


def translate(rom: np.ndarray, kind: int, seen: list[int], entries: set[int]) -> str:
    """Return GPU assembly; the GPU version of `recompiler.translate`."""
    image = Image(rom, kind)
    code, reached = find_code(image, seen)
    return LaneTranslator(image, code, reached | entries).assembly()
