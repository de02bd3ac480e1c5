"""A program of the guest's, and its pipes."""

import base64
import fcntl
import socket
import struct
import termios


class Program:
    """A program's pipes: `ins` it reads, `outs` it writes, `files` are read when it has ended."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self.channel: socket.socket | None = channel
        self.ins: dict[int, tuple[int, bytearray]] = {}
        self.shut: set[int] = set()
        self.outs: dict[int, int] = {}
        self.files: dict[int, int] = {}


def as_text(data: bytes) -> str:
    """`data` as JSON can carry it."""
    return base64.b64encode(data).decode()


def waiting(fd: int) -> int:
    """How many bytes can be read from a pipe now."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
