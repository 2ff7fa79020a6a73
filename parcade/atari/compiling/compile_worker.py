"""A process that compiles separate functions into Numba's cache. `side_by_side.py` starts several of them.

A function is compiled without the separate functions that it calls. Their types and symbols follow from their
signatures, so functions compile in any order. Each function is optimised once, together with its kernels;
stock Numba optimises every kernel and generates machine code for it before linking it into its caller.
Numba's bookkeeping is also made cheaper. Together this halves the work.

This process uses and patches private parts of Numba, so it does nothing else. If a Numba version has changed
one of them, the process fails and `prepare` compiles everything the standard way.

Protocol: each line on stdin names a function; each line on stdout reports that the function is in the cache.
The process exits when its stdin closes.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import llvmlite.binding as llvm
from numba.core import codegen, compiler, cpu, funcdesc, sigutils, typed_passes, typing, untyped_passes
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher, _FunctionCompiler
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction

from . import jit

SEPARATE_UID = 0
"""Identifier in the symbols of all separate functions, equal in every process.

Numba numbers functions from 1 in the order of compilation, which differs between processes.
"""


def main() -> None:
    """Compile the functions named on stdin until it closes."""
    # The parent receives Ctrl-C too and closes this process's stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    os._exit(0)  # immediately: nothing waits for a compilation in progress


# --- patches of Numba ---------------------------------------------------------------------------------------


def _change_numba(separate: set) -> None:
    """Make Numba stop after lowering kernels to LLVM IR, and do only what these functions need."""
    _run_few_passes()
    _import_registries_once()
    _name_the_same_in_every_process(separate)
    _leave_kernels_as_they_are_lowered(separate)
    _remember_types_of_calls()


def _run_few_passes() -> None:
    """Leave out the passes for closures, literal types, array expressions and annotated listings.

    The functions contain none of these. The pass that deletes variables is left out too: it serves reference
    counts.
    """

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
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]

    compiler.Compiler.define_pipelines = define_pipelines


def _import_registries_once() -> None:
    """Make Numba look for the modules of its own registries once, instead of before every compilation."""
    for context in (typing.Context, cpu.CPUContext):
        context.load_additional_registries = _with_known_registries(context)


def _with_known_registries(context: type) -> Callable:
    """Return ``load_additional_registries``, which from its second call on installs what is new in them."""
    load = context.load_additional_registries
    known: list = []

    def load_known(self):
        if not known:
            install = self.install_registry
            self.install_registry = lambda registry: (known.append(registry), install(registry))
            load(self)
            del self.install_registry
        for registry in known:
            self.install_registry(registry)

    return load_known


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
    # The entry point is only used as a key: this process never calls the function.
    cpu.CPUContext.get_executable = lambda context, library, description, environment: object()
    Dispatcher.add_overload = remember


def _remember_types_of_calls() -> None:
    """Cache the type of each call.

    Numba tries all templates of a function at each call, and compares 40 compiler flags each time.
    """
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
    TargetConfig.__hash__ = lambda flags: 0  # in Numba, too, all flags have the same hash


# --- compiling one function ---------------------------------------------------------------------------------


def _declare(dispatcher, signature: str) -> None:
    """Declare a separate function to its callers, without code."""
    context = dispatcher.targetctx
    context.refresh()
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
    dispatcher.disable_compile()  # otherwise Numba recompiles it for each constant that a caller passes


def _describe(dispatcher, arguments: tuple, returned) -> funcdesc.PythonFunctionDescriptor:
    """Build the function's descriptor, which contains its mangled name."""
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
    """Compile one function and write it into Numba's cache.

    Errors: RuntimeError if its symbol differs from the one declared to its callers.
    """
    arguments, returned = sigutils.normalize_signature(signature)
    declared = dispatcher.overloads[tuple(arguments)].fndesc.mangled_name
    dispatcher.enable_caching()
    result = dispatcher._compiler.compile(arguments, returned)
    if result.fndesc.mangled_name != declared:
        raise RuntimeError(f"{result.fndesc.mangled_name} was declared as {declared}")
    _emit(result.library, result.fndesc)
    dispatcher._cache.save_overload(signature, result)


def _emit(library, description) -> None:
    """Link a function with its kernels, optimise the result, and set the object file that Numba caches."""
    module = library._final_module
    for kernel in _kernels(library):
        module.link_in(kernel._final_module, preserve=True)
    exported = (description.llvm_func_name, description.llvm_cpython_wrapper_name)
    for function in module.functions:
        if not function.is_declaration:  # another process may use the same names for other kernels
            function.linkage = "external" if function.name in exported else "internal"
    library._optimize_final_module()
    module.verify()
    library.enable_object_caching()
    library._compiled_object = library.codegen._tm.emit_object(module)
    # Numba also caches LLVM IR for inlining. Separate functions are never inlined: keep only their names.
    library._shared_module = llvm.parse_assembly(
        "\n".join(f'define void @"{name}"() {{ ret void }}' for name in exported)
    )


def _kernels(library) -> Iterator:
    """Yield the libraries of all kernels that a function links, each once."""
    seen, todo = {id(library)}, list(library._linking_libraries)
    while todo:
        kernel = todo.pop()
        if id(kernel) not in seen:
            seen.add(id(kernel))
            yield kernel
            todo += kernel._linking_libraries
