"""System calls that programs inside a sandbox are refused, as a classic BPF filter for seccomp.

A list of what is refused, not of what is allowed: whatever a compiler, debugger or language runtime calls works, but
what reaches for the kernel's riskier parts does not. Four groups are refused:

- new namespaces and mounts: a nested user namespace gives its maker capabilities, and with them most of the kernel's
  bugs. `clone3` is ENOSYS since its flags are out of a filter's reach; every libc then falls back to `clone`.
- what is not in any namespace: keyrings, `vsock` and other exotic sockets, the kernel's log, clocks and modules.
- large and often faulty parts with nothing for everyday programs: io_uring, bpf, perf events, userfaultfd.
- system calls newer than this list (ENOSYS, as if the kernel were older), and those of foreign architectures (the
  process is killed): 32-bit programs do not run.

`ptrace` stays: debuggers are everyday programs, and it reaches nothing but the sandbox's own processes.

    load arch ── other than ours ──▶ kill
    load number ── newer than the list ──▶ ENOSYS
    for each refused number: equal? ── its rules' conditions hold? ──▶ errno
    allow
"""

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from attrs import frozen

NEWEST = 469
"""The highest system call known here (`file_setattr`, Linux 6.17)."""
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000

_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_NEW_TIME = 0x80  # of `unshare`; in `clone` the low byte is a signal
_TIOCSTI, _TIOCLINUX, _TIOCCONS = 0x5412, 0x541C, 0x541D
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENTS = 0, 4, 16


@frozen
class When:
    """A condition on the low 32 bits of an argument, which is all that the kernel reads of those here."""

    argument: int
    test: Literal["has any bit of", "is one of", "is none of"]
    values: tuple[int, ...]


@frozen
class Rule:
    """A system call, by its numbers on x86_64 and aarch64 (None where it has none), refused when all of `when` hold."""

    name: str
    x86_64: int | None
    aarch64: int | None
    errno: int = errno.EPERM
    when: tuple[When, ...] = ()


_FAMILIES = When(0, "is none of", (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK))
_NETLINK = (When(0, "is one of", (_AF_NETLINK,)), When(2, "is none of", (_NETLINK_ROUTE,)))

RULES: tuple[Rule, ...] = (
    Rule("clone", 56, 220, when=(When(0, "has any bit of", (_NAMESPACES,)),)),
    Rule("clone3", 435, 435, errno.ENOSYS),
    Rule("unshare", 272, 97, when=(When(0, "has any bit of", (_NAMESPACES | _NEW_TIME,)),)),
    Rule("setns", 308, 268),
    Rule("mount", 165, 40),
    Rule("umount2", 166, 39),
    Rule("pivot_root", 155, 41),
    Rule("open_tree", 428, 428),
    Rule("move_mount", 429, 429),
    Rule("fsopen", 430, 430),
    Rule("fsconfig", 431, 431),
    Rule("fsmount", 432, 432),
    Rule("fspick", 433, 433),
    Rule("mount_setattr", 442, 442),
    Rule("open_tree_attr", 467, 467),
    Rule("open_by_handle_at", 304, 265),
    Rule("quotactl", 179, 60),
    Rule("quotactl_fd", 443, 443),
    Rule("swapon", 167, 224),
    Rule("swapoff", 168, 225),
    Rule("acct", 163, 89),
    Rule("fanotify_init", 300, 262),
    Rule("socket", 41, 198, errno.EAFNOSUPPORT, (_FAMILIES,)),
    Rule("socket", 41, 198, errno.EPROTONOSUPPORT, _NETLINK),
    Rule("socketpair", 53, 199, errno.EAFNOSUPPORT, (_FAMILIES,)),
    Rule("ioctl", 16, 29, when=(When(1, "is one of", (_TIOCSTI, _TIOCLINUX, _TIOCCONS)),)),
    Rule("add_key", 248, 217),
    Rule("request_key", 249, 218),
    Rule("keyctl", 250, 219),
    Rule("syslog", 103, 116),
    Rule("settimeofday", 164, 170),
    Rule("clock_settime", 227, 112),
    Rule("reboot", 169, 142),
    Rule("vhangup", 153, 58),
    Rule("kexec_load", 246, 104),
    Rule("kexec_file_load", 320, 294),
    Rule("init_module", 175, 105),
    Rule("finit_module", 313, 273),
    Rule("delete_module", 176, 106),
    Rule("create_module", 174, None),
    Rule("get_kernel_syms", 177, None),
    Rule("query_module", 178, None),
    Rule("bpf", 321, 280),
    Rule("perf_event_open", 298, 241),
    Rule("userfaultfd", 323, 282),
    Rule("io_uring_setup", 425, 425),
    Rule("io_uring_enter", 426, 426),
    Rule("io_uring_register", 427, 427),
    Rule("iopl", 172, None),
    Rule("ioperm", 173, None),
    Rule("modify_ldt", 154, None),
    Rule("uselib", 134, None),
    Rule("ustat", 136, None),
    Rule("sysfs", 139, None),
    Rule("_sysctl", 156, None),
    Rule("nfsservctl", 180, 42),
    Rule("lookup_dcookie", 212, 18),
)

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def filter_program(machine: str | None = None, rules: Sequence[Rule] = RULES) -> bytes | None:
    """The filter for `machine` (this one) as an array of the kernel's `struct sock_filter`, or None for one unknown.

    Load it with `prctl(PR_SET_SECCOMP)` after no_new_privs, or give it to bwrap's `--seccomp`.
    """
    name = machine or platform.machine()
    if name not in _ARCHITECTURES:
        return None
    words = list(_instructions(_ARCHITECTURES[name], _by_number(name, rules)))
    return b"".join(struct.pack("=HBBI", *word) for word in words)


def unavailable() -> str | None:
    """Why programs cannot be filtered on this machine, or None."""
    if platform.machine() not in _ARCHITECTURES:
        return f"system calls are not filtered on {platform.machine()}, only on {' and '.join(_ARCHITECTURES)}"
    try:
        known = "Seccomp:" in Path("/proc/self/status").read_text()
    except OSError:
        known = False
    return None if known else "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)"


_Word = tuple[int, int, int, int]


def _by_number(machine: str, rules: Sequence[Rule]) -> dict[int, list[Rule]]:
    found: dict[int, list[Rule]] = {}
    for rule in rules:
        number: int | None = getattr(rule, machine)
        if number is not None:
            found.setdefault(number, []).append(rule)
    return found


def _instructions(architecture: int, refused: dict[int, list[Rule]]) -> Iterator[_Word]:
    yield (_LOAD, 0, 0, _AT_ARCH)
    yield (_EQUAL, 1, 0, architecture)
    yield (_RETURN, 0, 0, KILL)
    yield (_LOAD, 0, 0, _AT_NUMBER)
    yield (_GREATER, 0, 1, NEWEST)  # unsigned: also those of x32, which have bit 30 set
    yield (_RETURN, 0, 0, REFUSE | errno.ENOSYS)
    for number, rules in refused.items():
        block = [word for rule in rules for word in _rule(rule)]
        if rules[-1].when:
            block.append((_RETURN, 0, 0, ALLOW))  # the conditions have overwritten the number
        yield (_EQUAL, 0, len(block), number)
        yield from block
    yield (_RETURN, 0, 0, ALLOW)


def _rule(rule: Rule) -> list[_Word]:
    """Instructions that return the rule's errno, or run on past their end where a condition does not hold."""
    words: list[_Word] = [(_RETURN, 0, 0, REFUSE | rule.errno)]
    for when in reversed(rule.when):
        words = [*_condition(when, len(words)), *words]
    return words


def _condition(when: When, rest: int) -> list[_Word]:
    """Instructions that go on to the next one where `when` holds, and else past the `rest` that follows them."""
    words: list[_Word] = [(_LOAD, 0, 0, _AT_ARGUMENTS + 8 * when.argument)]  # little-endian: the low half comes first
    last = len(when.values) - 1
    for index, value in enumerate(when.values):
        left = last - index  # of our own instructions after this one
        if when.test == "is none of":
            words.append((_EQUAL, left + rest, 0, value))
        else:
            words.append((_ANY_BIT if when.test == "has any bit of" else _EQUAL, left, rest if not left else 0, value))
    return words
