"""A user for each sandbox that root starts: no two that live share one, whoever started them.

The kernel counts processes, locked memory and watches by user; sandboxes with one user between them would eat into
each other's. Users come in blocks. A process claims a block by an abstract socket, a name that the kernel gives to one
socket only and takes back when its process dies, however that happens; a block is let go with its last sandbox. The
names are those of one network namespace: processes in different ones draw their blocks at random, and share one with a
chance of 1 in 65536.
"""

import errno
import os
import random
import socket

from attrs import define, field

FIRST = 0x60000000
BLOCKS, SIZE = 0x10000, 0x1000


@define(eq=False)
class _Block:
    number: int
    claim: socket.socket
    used: set[int] = field(factory=set)
    next: int = 0


@define(eq=False)
class Uids:
    """Users for the sandboxes of this process."""

    _blocks: list[_Block] = field(factory=list)
    _home: int = 0

    def take(self) -> int:
        """A user that nothing on this machine has, until it is given back."""
        if self._home != os.getpid():  # forked: the blocks are the parent's
            for block in self._blocks:
                block.claim.close()
            self._blocks, self._home = [], os.getpid()
        for block in self._blocks:
            if len(block.used) < SIZE:
                break
        else:
            block = _claim()
            self._blocks.append(block)
        while block.next % SIZE in block.used:
            block.next += 1
        index = block.next % SIZE
        block.next += 1  # the longest unused is next: what remains of an earlier user has had time to go
        block.used.add(index)
        return FIRST + block.number * SIZE + index

    def give_back(self, uid: int) -> None:
        """Let another sandbox have it, once nothing of the first is left; safe to call twice."""
        number, index = divmod(uid - FIRST, SIZE)
        for block in [block for block in self._blocks if block.number == number]:
            block.used.discard(index)
            if not block.used:
                block.claim.close()
                self._blocks.remove(block)


def _claim() -> _Block:
    start = random.SystemRandom().randrange(BLOCKS)
    for offset in range(BLOCKS):
        number = (start + offset) % BLOCKS
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0agentkit-uids-{number}")
        except OSError as error:
            claim.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        return _Block(number, claim)
    raise OSError(errno.EAGAIN, "all users for sandboxes are taken")
