"""A process that compiles some of the separate functions into Numba's cache; `side_by_side.py` starts several of these.

A function is compiled here without those that it calls by name. All that is needed of them, types and symbols, follows from
their signatures, so no function waits for another. Each is optimised once, as a whole, with the kernels that it is made of;
Numba by itself optimises every kernel and makes machine code of it before it becomes a part of its caller. And Numba's own
bookkeeping is made cheaper. Together that is half the work.

It rests on private parts of Numba, and changes them, so it is done in a process that does nothing else. Where one of them is
no longer what it was, the process fails, and `jit.prepare` compiles everything in Numba's own way.

Protocol: a line on stdin names a function, a line on stdout says that it is in the cache. The process ends with its stdin.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator

import llvmlite.binding as llvm
from numba.core import codegen, compiler, cpu, funcdesc, sigutils, typed_passes, typing, untyped_passes
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher, _FunctionCompiler
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction

from . import jit

SEPARATE_UID = 0
"""What tells functions of one name and signature apart in symbols. Numba counts from 1, in the order of compilation."""


def main() -> None:
    """Compile what stdin names, until it ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent gets Ctrl-C too, and ends this process by closing its stdin
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(names,), daemon=True).start()
    functions = jit.separate_functions()
    _change_numba({dispatcher.py_func for dispatcher, _ in functions.values()})
    for dispatcher, signature in functions.values():
        _declare(dispatcher, signature)
    while True:
        name = names.get()
        _compile(*functions[name])
        print(name, file=replies, flush=True)


def _read(names: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        names.put(line.strip())
    os._exit(0)  # at once, whatever is being compiled: nobody waits for it any more


# --- how Numba is changed ----------------------------------------------------------------------------------------


class _FewPasses(compiler.CompilerBase):
    """Numba's pipeline without passes for what kernels do not contain: closures, literal types, array expressions."""

    def define_pipelines(self):
        passes = PassManager("few passes")
        for each in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.RewriteSemanticConstants,
            untyped_passes.GenericRewrites,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.AnnotateTypes,
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


def _change_numba(separate: set) -> None:
    """Have Numba translate kernels into LLVM's language and no further, and look nothing up twice."""
    _name_the_same_in_every_process(separate)
    _leave_kernels_as_they_are_lowered(separate)
    _remember_types_of_calls()


def _name_the_same_in_every_process(separate: set) -> None:
    from_function = FunctionIdentity.from_function.__func__

    def identify(cls, function):
        identity = from_function(cls, function)
        if function in separate:
            identity.unique_id = SEPARATE_UID
            identity.unique_name = f"{identity.func_qualname}${SEPARATE_UID}"
        return identity

    FunctionIdentity.from_function = classmethod(identify)


def _leave_kernels_as_they_are_lowered(separate: set) -> None:
    def customize(function_compiler, flags):
        flags.no_cfunc_wrapper = True
        flags.no_cpython_wrapper = function_compiler.py_func not in separate
        return flags

    def keep_module(library):
        library._finalized = True

    def add_module(library, module):
        module.data_layout = library.codegen._data_layout
        library._final_module.link_in(module)

    def remember(dispatcher, result):
        dispatcher.overloads[tuple(result.signature.args)] = result

    _FunctionCompiler._customize_flags = customize
    codegen.JITCodeLibrary.finalize = keep_module
    codegen.CPUCodeLibrary.add_llvm_module = add_module
    cpu.CPUContext.get_executable = lambda context, library, description, environment: (
        object()
    )  # a key; nothing is called here
    Dispatcher.add_overload = remember


def _remember_types_of_calls() -> None:
    """Numba goes through all templates of a function at each of its calls, comparing its 40 compiler flags by the way."""
    resolve = BaseFunction.get_call_type
    known: dict = {}

    def resolve_once(function, context, args, kws):
        key = function, tuple(args), tuple(kws.items())
        if key not in known:
            known[key] = resolve(function, context, args, kws)
        return known[key]

    BaseFunction.get_call_type = resolve_once
    TargetConfig.__eq__ = lambda flags, other: (
        isinstance(other, TargetConfig) and flags._values == other._values
    )
    TargetConfig.__hash__ = lambda flags: 0  # Numba's is the same for all as well


# --- a function --------------------------------------------------------------------------------------------------


def _declare(dispatcher, signature: str) -> None:
    """Make a separate function known to those that call it, without its code."""
    context = dispatcher.targetctx
    context.refresh()
    dispatcher._compiler.pipeline_class = _FewPasses
    arguments, returned = sigutils.normalize_signature(signature)
    description = _describe(dispatcher, tuple(arguments), returned)
    library = context.codegen().create_library(description.qualname)
    library.finalize()
    result = compiler.compile_result(
        typing_context=dispatcher.typingctx,
        target_context=context,
        entry_point=object(),
        library=library,
        signature=typing.signature(returned, *arguments),
        objectmode=False,
        fndesc=description,
    )
    context.insert_user_function(result.entry_point, description, [library])
    dispatcher.add_overload(result)
    dispatcher.disable_compile()  # else Numba would compile it again for each constant that a caller passes


def _describe(dispatcher, arguments: tuple, returned) -> funcdesc.PythonFunctionDescriptor:
    """What the function will be called, among other things."""
    flags = compiler.Flags()
    dispatcher.targetdescr.options.parse_as_flags(flags, dispatcher.targetoptions)
    flags = dispatcher._compiler._customize_flags(flags)
    identity = FunctionIdentity.from_function(dispatcher.py_func)
    return funcdesc.PythonFunctionDescriptor(
        native=True,
        modname=dispatcher.py_func.__module__,
        qualname=identity.func_qualname,
        unique_name=identity.unique_name,
        doc="",
        typemap=None,
        restype=returned,
        calltypes=None,
        args=tuple(identity.arg_names),
        kws=(),
        mangler=dispatcher.targetctx.mangler,
        argtypes=arguments,
        inline=flags.forceinline,
        noalias=flags.noalias,
        abi_tags=[flags.get_mangle_string()],
        uid=identity.unique_id,
    )


def _compile(dispatcher, signature: str) -> None:
    """Compile one function and write it into Numba's cache. Errors: RuntimeError where callers know it by another name."""
    arguments, returned = sigutils.normalize_signature(signature)
    declared = dispatcher.overloads[tuple(arguments)].fndesc.mangled_name
    dispatcher.enable_caching()
    result = dispatcher._compiler.compile(arguments, returned)
    if result.fndesc.mangled_name != declared:
        raise RuntimeError(f"{result.fndesc.mangled_name} was declared as {declared}")
    _emit(result.library, result.fndesc)
    dispatcher._cache.save_overload(signature, result)


def _emit(library, description) -> None:
    """Link a function with its kernels, optimise all, and give the library the object file that Numba keeps."""
    module = library._final_module
    for kernel in _kernels(library):
        module.link_in(kernel._final_module, preserve=True)
    exported = (description.llvm_func_name, description.llvm_cpython_wrapper_name)
    for function in module.functions:
        if not function.is_declaration:  # kernels have names that another process gives to others of its own
            function.linkage = "external" if function.name in exported else "internal"
    library._optimize_final_module()
    module.verify()
    library.enable_object_caching()
    library._compiled_object = library.codegen._tm.emit_object(module)
    # Next to the object Numba keeps LLVM's code for inlining. Nobody inlines this, so only the names are kept.
    library._shared_module = llvm.parse_assembly(
        "\n".join(f'define void @"{name}"() {{ ret void }}' for name in exported)
    )


def _kernels(library) -> Iterator:
    """The libraries of all kernels that a function is made of, each once."""
    seen, todo = {id(library)}, list(library._linking_libraries)
    while todo:
        kernel = todo.pop()
        if id(kernel) not in seen:
            seen.add(id(kernel))
            yield kernel
            todo += kernel._linking_libraries
