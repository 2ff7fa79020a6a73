"""Compile the LLVM assembly of a ROM to machine code, and call it from the kernels.

The last 8 bytes of the ROM image (`cartridge.expand_image`) hold the address of the function, or 0 if there
is none, so kernels need no extra argument. The address may change while consoles play (`rom_code.py`). On a
GPU the function is linked to the kernels (`cuda/kernels.py`), and the bytes only show that it exists.
"""

import contextlib
import os
from collections.abc import Iterator

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..compiling.jit import inlined
from ..primitives.atomics import load_bytes
from ..primitives.warp import meets
from .accesses import INTERPRET

ADDRESS_BYTES = 8
GPU_NAME = "parcade_run"
LOCAL_MEMORY, GLOBAL_MEMORY = 5, 1  # address spaces of a GPU
# sm_80 and PTX 7.0 introduced redux.sync, the minimum over a warp.
GPU_TRIPLE, OLDEST_GPU, PTX_VERSION = "nvptx64-nvidia-cuda", "sm_80", "+ptx70"
# For tests: code is generated in a fifth of the time, and takes 1.5 times as long to run.
QUICK_CODE = "PARCADE_QUICK_CODE"
# Limit of the register allocator's search for places to split variables, and LLVM's default. The lower one
# saves up to a third of the time to generate code; the code is as fast.
SPLITTING, DEFAULT_SPLITTING = "-grow-region-complexity-budget=100", "-grow-region-complexity-budget=10000"


@intrinsic
def call_machine_code(typing_context, address, state, memory, rom, limit, status, group):
    """Call a ROM's function at `address`, or on a GPU the linked one; return its result as int64."""
    from llvmlite import ir

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[1:4], arguments[1:4], strict=True)
        ]
        numbers = [builder.trunc(value, word) for value in arguments[4:]]
        call = _call_on_gpu if "nvptx" in builder.module.triple else _call_at
        return builder.sext(call(builder, arguments[0], data, numbers), ir.IntType(64))

    return types.int64(types.int64, state, memory, rom, types.int64, types.int64, types.int64), generate


def _call_at(builder, address, data, numbers):
    from llvmlite import ir

    pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = ir.FunctionType(word, [pointer] * 3 + [word] * 3)
    target = builder.inttoptr(address, function.as_pointer())
    return builder.call(target, [*(builder.bitcast(array, pointer) for array in data), *numbers])


def _call_on_gpu(builder, _address, data, numbers):
    """Call the linked function with integer addresses in the arrays' memory: local, local, global."""
    from llvmlite import ir

    wide, word, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(word, [wide] * 3 + [word] * 3), GPU_NAME
    )
    meets(builder, function)
    addresses = []
    for array, space in zip(data, (LOCAL_MEMORY, LOCAL_MEMORY, GLOBAL_MEMORY), strict=True):
        generic = builder.bitcast(array, byte.as_pointer())
        addresses.append(builder.ptrtoint(builder.addrspacecast(generic, byte.as_pointer(space)), wide))
    return builder.call(function, [*addresses, *numbers])


@inlined
def run_machine_code(s, memory, rom, limit, status, group):
    """Run at most `limit` instructions of the ROM's machine code; return n << 2 | status.

    `recompiler.py` defines the status. Without machine code, it is INTERPRET.
    """
    address = load_bytes(rom, len(rom) - ADDRESS_BYTES)
    if address == 0:
        return np.int64(INTERPRET)
    return call_machine_code(address, s, memory, rom, limit, status, group)


def _target_machine():
    """Return this machine as an LLVM target. An engine takes ownership of its target machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_level(),
        reloc="pic",
        codemodel="small",
    )


def _level() -> int:
    return 0 if os.environ.get(QUICK_CODE, "") not in ("", "0") else 2


def target_name() -> str:
    """Return a string that identifies the compiler version and level, and the target processor."""
    import llvmlite
    import llvmlite.binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    return f"{llvmlite.__version__} {_level()} {processor}"


def compile_assembly(assembly: str) -> bytes:
    """Optimise LLVM assembly and return an object file. The caller holds the lock `compiling`."""
    machine = _target_machine()
    module = _optimised(assembly, machine, "run")
    with _less_splitting():
        return machine.emit_object(module)


@contextlib.contextmanager
def _less_splitting() -> Iterator[None]:
    """Change an option of LLVM, which the complete process shares, for the time of one compilation."""
    import llvmlite.binding as llvm

    llvm.set_option("parcade", SPLITTING)
    try:
        yield
    finally:
        llvm.set_option("parcade", DEFAULT_SPLITTING)


def compile_for_gpu(assembly: str) -> str:
    """Optimise LLVM assembly of `lanes.py` and return PTX, for the driver or the linker to compile."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(GPU_TRIPLE)
    machine = target.create_target_machine(
        cpu=OLDEST_GPU, features=PTX_VERSION, opt=3, reloc="default", codemodel="default"
    )
    return machine.emit_assembly(_optimised(assembly, machine, GPU_NAME))


def _optimised(assembly: str, machine, name: str):
    """Parse LLVM assembly for a target and run the passes on the function `name`; return the module."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(assembly)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module.get_function(name), builder)
    return module


def load_object(code: bytes) -> tuple:
    """Load an object file; return the engine, which must be kept alive, and the address of its `run`."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    # use_lmm allocates one block of memory for all sections; see compiling/jit.py.
    engine = llvm.create_mcjit_compiler(empty, machine, use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address("run")
