"""What a terminal shows, from the bytes that a program wrote to it. Sans-IO, memory O(rows x columns).

pyte draws; what reaches it is chosen here, since the bytes may be made to harm:

- sequences that carry strings (titles, device control) are swallowed whole, and given up on after 4096 characters: they
  are of no use to a reader, and the program that never ends one must not hide the rest of its output;
- of the control sequences only those that move, erase, insert, delete or switch screens go on, with short parameters;
- a character without a width of its own is composed with the one before or dropped, so a cell holds one character;
- nothing is ever answered: a program that asks the terminal who it is hears nothing.
"""

import codecs
import re
import unicodedata
from typing import Any

from agentkit.extras import require

PURPOSE = "a terminal in a sandbox"
LONGEST_STRING = 4096
_KEPT_CURSORS = 16

_PLAIN = re.compile("[^\x1b]+")
_SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<parameters>[0-?]{0,64})(?P<between>[ -/]{0,8})(?P<final>[@-~])"
    r"|(?P<string>[\]PX^_])"
    r"|[ -/]{1,8}[0-~]"
    r"|(?P<single>[0-OQ-WYZ\\`-~]))"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[ -/]{0,8})")
_END_OF_STRING = re.compile("[\x07\x18\x1a\x1b]")
_NUMBERS = re.compile(r"\??[0-9]{0,4}(?:;[0-9]{0,4}){0,31}")
_DRAWING = frozenset("@ABCDEFGHJKLMPXadefghlmr`")
_ALTERNATE = frozenset({"47", "1047", "1049"})
_WIDTH_MODE = "3"  # 132 columns: the terminal has the size it was made with
_SINGLES = frozenset("78DEHMc")
_SPACING = "\b\t\n\v\f\r"
_DROPPED = {code: None for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in _SPACING}


class Emulator:
    """The screen of one terminal."""

    def __init__(self, rows: int, columns: int) -> None:
        self._pyte: Any = require("pyte", extra="terminal", purpose=PURPOSE)
        self._width: Any = require("wcwidth", extra="terminal", purpose=PURPOSE).wcwidth
        self.rows = rows
        self.columns = columns
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._string: int | None = None
        """How much of a string was swallowed, while one is open."""
        self._main: Any = None
        """The main screen, while the alternate one is shown."""
        self._show(self._pyte.Screen(columns, rows))

    def feed(self, data: bytes) -> None:
        """Take the next bytes; whatever they are, this does not fail."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        at = 0
        while at < len(text):
            if self._string is not None:
                at = self._swallow(text, at)
            elif plain := _PLAIN.match(text, at):
                self._draw(plain.group())
                at = plain.end()
            elif found := _SEQUENCE.match(text, at):
                self._obey(found)
                at = found.end()
            elif _BEGUN.fullmatch(text, at):
                self._held = text[at:]
                return
            else:
                at += 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The rows of the screen, without trailing blanks."""
        buffer = self._screen.buffer
        drawn = ("".join(buffer[row][column].data for column in range(self.columns)) for row in range(self.rows))
        return tuple(line.rstrip() for line in drawn)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, from 0."""
        return min(self._screen.cursor.y, self.rows - 1), min(self._screen.cursor.x, self.columns - 1)

    def _show(self, screen: Any) -> None:
        self._screen = screen
        self._stream = self._pyte.Stream(screen)

    def _swallow(self, text: str, at: int) -> int:
        """Skip what belongs to an open string; returns where it ends, or the end of `text`."""
        swallowed = self._string or 0
        end = _END_OF_STRING.search(text, at, at + LONGEST_STRING - swallowed)
        if end is None:
            stop = min(len(text), at + LONGEST_STRING - swallowed)
            swallowed += stop - at
            self._string = swallowed if swallowed < LONGEST_STRING else None
            return stop
        if end.group() != "\x1b":
            self._string = None
            return end.end()
        if end.end() == len(text):  # is it the terminator, or the next sequence?
            self._string = swallowed + end.start() - at
            self._held = "\x1b"
            return len(text)
        self._string = None
        return end.end() + 1 if text[end.end()] == "\\" else end.start()

    def _obey(self, found: re.Match[str]) -> None:
        final, parameters = found["final"], found["parameters"]
        if found["string"]:
            self._string = 0
        elif found["single"]:
            if found["single"] in _SINGLES:
                self._pass_on(found.group())
        elif final in _DRAWING and not found["between"] and _NUMBERS.fullmatch(parameters):
            if final in "hl" and parameters.startswith("?"):
                self._switch(parameters[1:].split(";"), on=final == "h")
            else:
                self._pass_on(found.group())

    def _switch(self, modes: list[str], *, on: bool) -> None:
        if on and self._main is None and not _ALTERNATE.isdisjoint(modes):
            self._main = self._screen
            self._show(self._pyte.Screen(self.columns, self.rows))
        elif not on and self._main is not None and not _ALTERNATE.isdisjoint(modes):
            self._show(self._main)
            self._main = None
        kept = [mode for mode in modes if mode not in _ALTERNATE and mode.lstrip("0") != _WIDTH_MODE]
        if kept:
            self._pass_on(f"\x1b[?{';'.join(kept)}{'h' if on else 'l'}")

    def _draw(self, text: str) -> None:
        text = text.translate(_DROPPED)
        if text.isascii():
            self._pass_on(text)
            return
        run: list[str] = []
        for letter in text:
            if letter in _SPACING or self._width(letter) > 0:
                if unicodedata.category(letter) != "Cf":  # those that change how others are read
                    run.append(letter)
            elif unicodedata.combining(letter):
                self._pass_on("".join(run))
                run.clear()
                if len(unicodedata.normalize("NFC", self._before() + letter)) == 1:
                    self._pass_on(letter)
        self._pass_on("".join(run))

    def _before(self) -> str:
        """What a letter without a width would be composed with; two letters where there is nothing."""
        screen = self._screen
        x, y = screen.cursor.x, screen.cursor.y
        if x == 0 and y == 0:
            return "  "
        found: str = screen.buffer[y][x - 1].data if x else screen.buffer[y - 1][self.columns - 1].data
        return found or "  "

    def _pass_on(self, text: str) -> None:
        try:
            self._stream.feed(text)
        except Exception:  # pyte calls its methods with as many parameters as the program wrote; it goes on after that
            return
        del self._screen.savepoints[:-_KEPT_CURSORS]
