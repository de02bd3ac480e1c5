"""Standard streams that are closed, broken or full: what is said there is worth less than what is done."""

import io
import os
import sys
from typing import TextIO


def fill_standard_streams() -> None:
    """Have all three standard streams: one that was closed before the start goes nowhere.

    Else the next file that is opened, a log say, would have its number, and whatever writes to stderr by number writes
    into that file. And stdout takes every character, whatever the locale.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _fill(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115  # for as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: what a locale cannot show is no reason to die


def tell(text: str) -> None:
    """Print `text`, or nothing where stdout takes no more."""
    try:
        print(text, flush=True)
    except OSError:
        lose(sys.stdout)


def lose(stream: TextIO) -> None:
    """Let what `stream` still holds go nowhere, or the interpreter complains of it on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def _fill(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
