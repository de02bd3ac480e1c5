"""The guest's own rules, where a race would have to be won to see them from outside."""

import base64
import os
import socket

import pytest
from agentkit_swerex import _guest


def test_a_status_never_overtakes_what_was_printed_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program prints and reports between two looks of the guest."""
    near, far = socket.socketpair()
    printed, reported = os.pipe(), os.pipe()
    program = _guest.Program(1, near)
    program.outs = {61: reported[0], 60: printed[0]}
    guest = _guest.Guest.__new__(_guest.Guest)
    guest.events, guest.size, guest.first_event = [], 0, 0.0
    look = _guest.waiting
    looks = 0

    def meanwhile(fd: int) -> int:
        nonlocal looks
        found = look(fd)
        looks += 1
        if looks == 1:
            os.write(printed[1], b"out")
            os.write(reported[1], b"status")
        return found

    monkeypatch.setattr(_guest, "waiting", meanwhile)
    guest.read_program(program)
    guest.read_program(program)
    said = [(event[2], base64.b64decode(event[3])) for event in guest.events]
    assert said == [(60, b"out"), (61, b"status")]
    for fd in (*printed, *reported):
        os.close(fd)
    near.close()
    far.close()
