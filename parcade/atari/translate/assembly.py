"""Generate LLVM assembly: values, words of a console's state, bytes of its arrays, registers as variables."""

from collections.abc import Callable
from typing import Any

# Types of a function's pointer arguments. On a GPU address space 5 is local memory, 1 is global memory.
CPU_POINTERS = {"s": "ptr", "memory": "ptr", "rom": "ptr"}
GPU_POINTERS = {"s": "ptr addrspace(5)", "memory": "ptr addrspace(5)", "rom": "ptr addrspace(1)"}


class Assembly:
    """Lines of a function with arguments ``%s`` (words of the state) and byte arrays such as ``%memory``."""

    pointers = CPU_POINTERS

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.block = ""  # label of the current basic block

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(name + ":")
        self.block = name

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def value(self, text: str) -> str:
        name = "%" + self.fresh()
        self.line(f"{name} = {text}")
        return name

    def op(self, operation: str, a: int | str, b: int | str) -> str:
        return self.value(f"{operation} i32 {a}, {b}")

    def test(self, condition: str, a: int | str, b: int | str) -> str:
        """Compare two values; return an i1."""
        return self.value(f"icmp {condition} i32 {a}, {b}")

    def bit(self, condition: str, a: int | str, b: int | str) -> str:
        """Compare two values; return an i32, 0 or 1."""
        return self.value(f"zext i1 {self.test(condition, a, b)} to i32")

    def either(self, condition: str, yes: Callable[[], int | str], no: Callable[[], int | str]) -> str:
        """Branch on an i1: run the code of `yes` or of `no`; return the value of the branch that ran."""
        ways = self.either_do(condition, yes, no)
        return self.value("phi i32 " + ", ".join(f"[ {value}, %{block} ]" for value, block in ways))

    def either_do(
        self, condition: str, yes: Callable[[], Any], no: Callable[[], Any]
    ) -> list[tuple[Any, str]]:
        """Branch like `either` without a phi; return the result and the final block of both branches."""
        at_yes, at_no, join = self.fresh("y"), self.fresh("n"), self.fresh("j")
        self.line(f"br i1 {condition}, label %{at_yes}, label %{at_no}")
        ways = []
        for name, write in ((at_yes, yes), (at_no, no)):
            self.label(name)
            ways.append((write(), self.block))
            self.line(f"br label %{join}")
        self.label(join)
        return ways

    def get(self, register: str) -> str:
        return self.value(f"load i32, ptr %{register}")

    def put(self, register: str, value: int | str) -> None:
        self.line(f"store i32 {value}, ptr %{register}")

    def word(self, index: int | str) -> str:
        """Load a word of the console's state."""
        index = self.value(f"zext i32 {index} to i64") if isinstance(index, str) else index
        kind = self.pointers["s"]
        return self.value(f"load i32, {kind} {self.value(f'getelementptr i32, {kind} %s, i64 {index}')}")

    def put_word(self, index: int | str, value: int | str) -> None:
        index = self.value(f"zext i32 {index} to i64") if isinstance(index, str) else index
        kind = self.pointers["s"]
        self.line(f"store i32 {value}, {kind} {self.value(f'getelementptr i32, {kind} %s, i64 {index}')}")

    def byte(self, array: str, index: int | str) -> str:
        loaded = self.value(f"load i8, {self.pointers[array]} {self.place(array, index)}")
        return self.value(f"zext i8 {loaded} to i32")

    def put_byte(self, array: str, index: int | str, value: int | str) -> None:
        self.line(
            f"store i8 {self.value(f'trunc i32 {value} to i8')}, "
            f"{self.pointers[array]} {self.place(array, index)}"
        )

    def place(self, array: str, index: int | str) -> str:
        if not isinstance(index, int):
            index = self.value(f"zext i32 {index} to i64")
        return self.value(f"getelementptr i8, {self.pointers[array]} %{array}, i64 {index}")
