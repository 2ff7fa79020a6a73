"""Command-line flags from dataclasses, with one-line errors."""

from __future__ import annotations

import contextlib
import difflib
import io
import itertools
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal, localcontext
from typing import Any, TypeVar

from parcade.errors import UsageError

T = TypeVar("T")
EXPONENTS = {"k": 3, "M": 6, "G": 9}
"""Powers of ten that may end an integer."""
MOST_DIGITS = 40
"""Longer numbers are left as they are, and then refused as no integers."""


def parse(
    flags: type[T],
    arguments: list[str],
    *,
    prog: str,
    default: T | None = None,
    whose: Callable[[str], str] = lambda flag: "",
    also: Sequence[str] = (),
) -> T:
    """Parse command-line arguments into a dataclass; fields of nested dataclasses become top-level flags.

    ``whose`` returns advice for an unknown flag, e.g. where it belongs, or an empty string. ``also`` are the
    names of flags that were split off before, of which an unknown flag may be a misspelling.

    Errors: UsageError of one line that says what was given and expected, with the nearest name. ``--help``
    prints the help and exits with 0.
    """
    import tyro

    flags = _with_help_marks(flags)
    arguments = _plain_numbers(arguments, _whole_number_flags(flags))
    if any(word in ("-h", "--help") for word in arguments):
        _fill_paragraphs(flags)
        return _parse(flags, arguments, prog, default)
    out = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "2000"  # keeps tyro from wrapping the message
    try:
        with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
            # Looking for comments on the fields, for the help, takes half of the time.
            return _parse(flags, arguments, prog, default, tyro.conf.HelptextFromCommentsOff)
    except SystemExit as error:
        if error.code in (0, None):
            raise
        raise UsageError(_one_line(out.getvalue(), prog, whose, [*also, *_names(flags)])) from None
    except tyro.UnsupportedTypeAnnotationError as error:  # a programming error, not the user's
        raise AssertionError(str(error)) from error
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)


def _with_help_marks(flags: type[T]) -> type[T]:
    """Turn annotations of fields into tyro's, so that dataclasses need not import tyro.

    ``"positional"`` makes a positional; another text replaces the default in the help.
    """
    import tyro

    for name, hint in typing.get_type_hints(flags, include_extras=True).items():
        mark = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, str)), "")
        if mark == "positional":
            may_be_left_out = hasattr(flags, name)  # it has a default
            # tyro calls the empty tuple the default of several words.
            required = {} if may_be_left_out else {"help_behavior_hint": "(required)"}
            flags.__annotations__[name] = positional(name, hint.__origin__, may_be_left_out, **required)
        elif mark:
            shown = tyro.conf.arg(help_behavior_hint=f"(default: {mark})")
            flags.__annotations__[name] = typing.Annotated[hint.__origin__, shown]
    return flags


def positional(name: str, kind: Any, may_be_left_out: bool = False, **help_text: str) -> Any:
    """Return the type of a tyro positional, which help and messages call by its name in capitals.

    Brackets show that it may be left out.
    """
    import tyro

    shown = tyro.conf.arg(metavar=f"[{name.upper()}]" if may_be_left_out else name.upper(), **help_text)
    return tyro.conf.Positional[typing.Annotated[kind, shown]]


def _fill_paragraphs(flags: type) -> None:
    """Join the lines of the fields' docstrings, nested ones too. tyro's help would keep the line breaks."""
    import docstring_parser

    for kind in flags.__mro__[:-1]:
        described = []
        with contextlib.suppress(OSError, TypeError):  # a class without source
            described = docstring_parser.parse_from_object(kind).params
        own = {each.arg_name: each.description for each in described}
        for field in fields(kind) if is_dataclass(kind) else ():
            if own.get(field.name) and "help" not in field.metadata:
                paragraphs = own[field.name].split("\n\n")
                filled = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
                field.metadata = types.MappingProxyType({**field.metadata, "help": filled})
    for hint in typing.get_type_hints(flags).values():
        if is_dataclass(hint):
            _fill_paragraphs(hint)


def _kinds_of_flags(flags: type) -> Iterator[tuple[str, set[Any]]]:
    """Yield the name of every flag, including those of nested dataclasses, and its types other than None."""
    for name, hint in typing.get_type_hints(flags).items():
        kinds = set(typing.get_args(hint) or [hint]) - {type(None)}
        nested = [kind for kind in kinds if is_dataclass(kind)]
        for kind in nested:
            yield from _kinds_of_flags(kind)
        if not nested:
            yield name.replace("_", "-"), kinds


def _names(flags: type) -> list[str]:
    """Return the names of all flags, without positional arguments."""
    import tyro

    hints = typing.get_type_hints(flags, include_extras=True).items()
    positionals = {name for name, hint in hints if tyro.conf.Positional in getattr(hint, "__metadata__", ())}
    return [name for name, _ in _kinds_of_flags(flags) if name not in positionals]


def _whole_number_flags(flags: type) -> set[str]:
    """Return the names of the integer flags, those of ``int | None`` included."""
    return {name for name, kinds in _kinds_of_flags(flags) if kinds == {int}}


def _plain_numbers(arguments: list[str], whole: set[str]) -> list[str]:
    """Return the arguments with integers such as ``1e6``, ``2_000_000`` or ``10M`` in plain digits."""

    def plain(value: str) -> str:
        exponent = EXPONENTS.get(value[-1:], 0)
        # ArithmeticError: the value is no number, or beyond those of Decimal.
        with localcontext(prec=2 * MOST_DIGITS), contextlib.suppress(ArithmeticError):
            number = Decimal(value[:-1] if exponent else value).scaleb(exponent)
            is_short = number.is_finite() and number.adjusted() < MOST_DIGITS
            if is_short and number == number.to_integral_value() and not value.lstrip("-").isdigit():
                return str(int(number))
        return value

    done: list[str] = []
    for word in arguments:
        name, has_value, value = word.removeprefix("--").partition("=")
        before = done[-1].removeprefix("--") if done and done[-1].startswith("--") else ""
        if word.startswith("--") and has_value and name.replace("_", "-") in whole:
            done.append(f"--{name}={plain(value)}")
        else:
            done.append(plain(word) if before.replace("_", "-") in whole else word)
    return done


def _parse(flags: type[T], arguments: list[str], prog: str, default: T | None, *more: Any) -> T:
    import tyro

    words = {} if default is None else {"default": default}
    return tyro.cli(flags, args=arguments, prog=prog, config=(tyro.conf.OmitArgPrefixes, *more), **words)


def _missing(lines: list[str]) -> str:
    """Return the missing arguments by the lines of tyro's error: each with its flag, if it has one."""
    found = []
    for before, line in itertools.pairwise(lines):
        if line.endswith("(required)"):
            what = line.removesuffix(" (required)").rstrip(".")
            flag = f"{before.split()[0]}, " if before.startswith("--") else ""
            found.append(f"{flag}{what[:1].lower()}{what[1:]}")
    return "; ".join(found)


def _one_line(box: str, prog: str, whose: Callable[[str], str], known: Sequence[str]) -> str:
    """Reduce tyro's boxed error to one line: its message, or for an unknown flag, the nearest known one."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip().strip("│").strip() for line in box.splitlines()]
    lines = [line for line in lines if line and not re.match(r"^[╭╰]", line)]
    if len(lines) > 1 and set(lines[1]) <= set("-─"):  # the title and its rule, in an ASCII box
        del lines[:2]
    message = lines[0].rstrip(".") if lines else "the flags could not be read"
    # Remove the class name from errors that a dataclass raises itself.
    message = re.sub(r"^Error parsing (?!-)[\w.]+: ", "", message).removeprefix("Error parsing ")
    if message.startswith("Missing from"):
        message = f"an argument is missing: {_missing(lines) or 'the game'}"
    unknown = re.match(r"Unrecognized options: ([^\s,]+)", message)
    if unknown and not unknown[1].startswith("-"):
        return f"unexpected argument {unknown[1]!r}; see {prog} --help"
    if unknown and whose(unknown[1]):
        return f"unknown flag {unknown[1]}; {whose(unknown[1])}"
    if unknown:
        offered = [line.split()[0].rstrip(",") for line in lines[1:] if re.match(r"--[a-z]", line)]
        # tyro offers little for a name with its value; of all others, add what difflib takes for near.
        name = unknown[1].partition("=")[0]
        offered += [f"--{each}" for each in difflib.get_close_matches(name.removeprefix("--"), known)]
        near = difflib.get_close_matches(name, offered, n=1, cutoff=0.0)
        return f"unknown flag {unknown[1]}; " + (f"did you mean {near[0]}?" if near else f"see {prog} --help")
    message = re.sub(
        r"invalid literal for int\(\) with base 10: (.*)",
        r"expected an integer, e.g. 100, 4e6 or 4M; got \1",
        message,
    )
    for kind, what in (("FLOAT", "a number, e.g. 0.5"), ("INT", "an integer, e.g. 100, 4e6 or 4M")):
        optional = rf"no type matching \{{None\}}\|{kind} could be instantiated from \['(.*)'\]"
        message = re.sub(optional, rf"expected {what}; got '\1'", message)
    message = re.sub(
        r"could not convert string to float: (.*)", r"expected a number, e.g. 0.5; got \1", message
    )
    return f"{message}; see {prog} --help"


def split_flags(
    arguments: list[str], own: Sequence[str], *, switches: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Split the arguments of a command into its own flags with values, and the rest, which it passes on.

    ``switches`` are own flags that take no value. ``--`` and everything after it belong to the rest.
    ``--help`` belongs to the command if the rest has no positional argument.
    """
    mine: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        name, has_value, _ = word.removeprefix("--").replace("_", "-").partition("=")
        if word.startswith("--") and name in own:
            mine.append(word)
            if not has_value and name not in switches:
                mine += [value for value in [next(words, None)] if value is not None]
        else:
            rest.append(word)
    if [word for word in rest if word in ("-h", "--help")] and not [
        word for word in rest if not word.startswith("-")
    ]:
        return [*mine, "--help"], []
    return mine, rest
