"""Machine code of a ROM, made from `recompiler.translate`: compiled by LLVM, kept on disk, called from the kernels.

The address of the function stands in the last 8 bytes of the image (`cartridge.expand_image`), 0 when there is none, so
kernels need no further argument for it.
"""

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from ..jit import inlined

ADDRESS_BYTES = 8


@intrinsic
def call_machine_code(typing_context, address, state, memory, rom, limit):
    """Call ``i32 run(s, memory, rom, limit)`` at `address`; returns the number of instructions done, int64."""
    from llvmlite import ir

    def generate(context, builder, signature, arguments):
        if "nvptx" in builder.module.triple:  # a GPU only interprets
            return ir.Constant(ir.IntType(64), 0)
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(word, [pointer, pointer, pointer, word])
        data = [
            builder.bitcast(context.make_array(kind)(context, builder, value).data, pointer)
            for kind, value in zip(signature.args[1:4], arguments[1:4], strict=True)
        ]
        target = builder.inttoptr(arguments[0], function.as_pointer())
        return builder.sext(builder.call(target, [*data, builder.trunc(arguments[4], word)]), ir.IntType(64))

    return types.int64(types.int64, state, memory, rom, types.int64), generate


@inlined
def run_machine_code(s, memory, rom, limit):
    """Run at most `limit` instructions of the ROM's machine code; returns how many, 0 where it has none for this place."""
    address = np.int64(0)
    at = len(rom) - ADDRESS_BYTES
    for k in range(ADDRESS_BYTES):
        address |= np.int64(rom[at + k]) << (8 * k)
    if address == 0:
        return np.int64(0)
    return call_machine_code(address, s, memory, rom, limit)


def _target_machine():
    """This machine as LLVM's target. An engine takes possession of the one it is made with."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, reloc="pic", codemodel="small"
    )


def target_name() -> str:
    """The processor that code is made for, and by which compiler."""
    import llvmlite
    import llvmlite.binding as llvm

    return f"{llvmlite.__version__} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def compile_assembly(assembly: str) -> bytes:
    """Optimise LLVM assembly and give the object file."""
    import llvmlite.binding as llvm

    machine = _target_machine()
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
    passes.run(module.get_function("run"), builder)
    return machine.emit_object(module)


def load_object(code: bytes) -> tuple:
    """Put an object file into memory; returns what must be kept and the address of its `run`."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    engine = llvm.create_mcjit_compiler(empty, machine, use_lmm=True)  # one block of memory for all sections: see jit.py
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address("run")
