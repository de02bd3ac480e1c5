"""The filter of system calls: what it says of every call, by an interpreter of its instructions, and really."""

import errno
import platform
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.sandbox.seccomp import ALLOW, KILL, NEWEST, REFUSE, RULES, Rule, When, filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE, UNSHARE, SOCKET, IOCTL = 56, 272, 41, 16


def interpret(program: bytes, *, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel's interpreter of classic BPF returns, for the instructions there are."""
    packet = struct.pack("=IIQ6Q", number, arch, 0, *arguments)
    words = list(struct.iter_unpack("=HBBI", program))
    accumulator, at, steps = 0, 0, 0
    while True:
        code, if_true, if_false, value = words[at]  # leaving the program is an IndexError
        at, steps = at + 1, steps + 1
        assert steps <= len(words), "jumps only go forward"
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", packet, value)
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x25:
                at += if_true if accumulator > value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


def holds(when: When, arguments: tuple[int, ...]) -> bool:
    low = arguments[when.argument] & 0xFFFFFFFF
    if when.test == "has any bit of":
        return any(low & value for value in when.values)
    return (low in when.values) == (when.test == "is one of")


def verdict(rules: tuple[Rule, ...], machine: str, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """The slow and obvious twin: the list read from top to bottom."""
    if arch != ARCHITECTURES[machine]:
        return KILL
    if number > NEWEST:
        return REFUSE | errno.ENOSYS
    for rule in rules:
        if getattr(rule, machine) == number and all(holds(when, arguments) for when in rule.when):
            return REFUSE | rule.errno
    return ALLOW


VALUES = sorted({value for rule in RULES for when in rule.when for value in when.values})
ARGUMENTS = st.tuples(
    *[
        st.one_of(
            st.sampled_from(VALUES),
            st.sampled_from([1 << bit for bit in range(64)]),
            st.sampled_from(VALUES).map(lambda value: value | 1 << 40),  # the kernel does not look at the high half
            st.integers(0, (1 << 64) - 1),
        )
    ]
    * 6
)
NUMBERS = st.one_of(
    st.sampled_from(sorted({rule.x86_64 for rule in RULES if rule.x86_64 is not None})),
    st.sampled_from(sorted({rule.aarch64 for rule in RULES if rule.aarch64 is not None})),
    st.integers(0, 600),
    st.integers(0, (1 << 32) - 1),
)


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
@given(number=NUMBERS, arguments=ARGUMENTS, arch=st.sampled_from([*ARCHITECTURES.values(), 0x40000003, 0, 0xFFFFFFFF]))
@example(number=SOCKET, arguments=(40, 1, 0, 0, 0, 0), arch=ARCHITECTURES["x86_64"])
@example(number=SOCKET, arguments=(16, 3, 9, 0, 0, 0), arch=ARCHITECTURES["x86_64"])
def test_the_filter_is_the_list(machine: str, number: int, arguments: tuple[int, ...], arch: int) -> None:
    program = filter_program(machine)
    assert program is not None
    said = interpret(program, arch=arch, number=number, arguments=arguments)
    assert said == verdict(RULES, machine, arch, number, arguments)


def rule(number: int, code: int, when: list[When]) -> Rule:
    return Rule(f"n{number}", number, number, code, tuple(when))


RULE = st.builds(
    rule,
    st.integers(0, 6),
    st.sampled_from([errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT]),
    st.lists(
        st.builds(
            When,
            st.integers(0, 5),
            st.sampled_from(["has any bit of", "is one of", "is none of"]),
            st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
        ),
        max_size=3,
    ),
)


@given(st.lists(RULE, max_size=8).map(tuple), st.integers(0, 7), st.tuples(*[st.integers(0, 9) for _ in range(6)]))
def test_any_list_is_compiled_to_what_it_says(rules: tuple[Rule, ...], number: int, arguments: tuple[int, ...]) -> None:
    program = filter_program("x86_64", rules)
    assert program is not None
    arch = ARCHITECTURES["x86_64"]
    said = interpret(program, arch=arch, number=number, arguments=arguments)
    assert said == verdict(rules, "x86_64", arch, number, arguments)


def ask(name: str, *arguments: int) -> int:
    program = filter_program("x86_64")
    assert program is not None
    number = next(rule.x86_64 for rule in RULES if rule.name == name)
    assert number is not None
    padded = (*arguments, *[0] * (6 - len(arguments)))
    return interpret(program, arch=ARCHITECTURES["x86_64"], number=number, arguments=padded)


def test_what_everyday_programs_call_is_allowed() -> None:
    thread = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | 0x100000 | 0x200000
    assert ask("clone", thread) == ALLOW
    assert ask("clone", 0x01200000 | 17) == ALLOW  # fork
    assert ask("clone", 0x4000 | 0x100 | 17) == ALLOW  # vfork
    assert ask("unshare", 0x400) == ALLOW  # its own file descriptors
    for family in (1, 2, 10, 16):
        assert ask("socket", family) == ALLOW
    assert ask("ioctl", 0, 0x5401) == ALLOW  # TCGETS


def test_namespaces_are_refused_each_by_itself() -> None:
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask("clone", bit | 17) == REFUSE | errno.EPERM
        assert ask("unshare", bit) == REFUSE | errno.EPERM
    assert ask("unshare", 0x80) == REFUSE | errno.EPERM  # time
    assert ask("clone3") == REFUSE | errno.ENOSYS  # whose flags cannot be seen


def test_sockets_that_no_network_namespace_holds_are_refused() -> None:
    for family in (40, 38, 17, 31, 44):  # vsock, the kernel's ciphers, packets, bluetooth, express data path
        assert ask("socket", family, 1) == REFUSE | errno.EAFNOSUPPORT
    assert ask("socket", 16, 3, 9) == REFUSE | errno.EPROTONOSUPPORT  # netlink: audit


def test_a_machine_unknown_has_no_filter() -> None:
    assert filter_program("s390x") is None


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_the_kernels(machine: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    found = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    newest = max(map(int, found.values()))
    for rule in RULES:
        number = getattr(rule, machine)
        if number is None or number <= newest:
            assert found.get(rule.name) == (None if number is None else str(number)), rule.name


CALLS = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import _spawner_confine as confine
libc = ctypes.CDLL(None, use_errno=True)
confine.check(libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
confine.filter_calls(bytes.fromhex(sys.argv[2]))
for line in sys.argv[3:]:
    number, *arguments = map(int, line.split())
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    print(number, ctypes.get_errno() if result < 0 else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_the_kernel_reads_the_filter_as_we_do(tmp_path: Path) -> None:
    program = filter_program()
    assert program is not None
    calls = {
        "39": 0,  # getpid
        f"{UNSHARE} {0x10000000}": errno.EPERM,
        f"{UNSHARE} {0x400}": 0,
        f"{CLONE} {0x10000000 | 17} 0 0 0 0": errno.EPERM,
        "435 0 0": errno.ENOSYS,
        f"{SOCKET} 40 1 0": errno.EAFNOSUPPORT,
        f"{SOCKET} 1 1 0": 0,
        f"{SOCKET} 16 3 0": 0,
        f"{SOCKET} 16 3 9": errno.EPROTONOSUPPORT,
        f"{IOCTL} 0 {0x5412} 0": errno.EPERM,
        f"{IOCTL} 0 {0x5412 | 1 << 32} 0": errno.EPERM,
        "425 8 0": errno.EPERM,
        f"{NEWEST + 1}": errno.ENOSYS,
        f"{0x40000000 | 39}": errno.ENOSYS,  # getpid of x32
    }
    script = tmp_path / "calls.py"
    script.write_text(textwrap.dedent(CALLS))
    beside = str(Path(__file__).parents[2] / "agentkit" / "sandbox")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script), beside, program.hex(), *calls], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert said == list(calls.values())


FOREIGN = """
#include <unistd.h>
int main(void) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
    _exit(result > 0 ? 0 : 1);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other architecture of x86_64")
def test_calls_of_another_architecture_kill(tmp_path: Path) -> None:
    (tmp_path / "foreign.c").write_text(FOREIGN)
    try:
        made = subprocess.run(["gcc", "foreign.c", "-o", "foreign"], cwd=tmp_path, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no gcc")
    assert made.returncode == 0, made.stderr
    if subprocess.run([tmp_path / "foreign"]).returncode != 0:
        pytest.skip("this kernel knows no 32-bit calls")
    program = filter_program()
    assert program is not None
    script = tmp_path / "calls.py"
    script.write_text(textwrap.dedent(CALLS) + f"\nos.execv({str(tmp_path / 'foreign')!r}, ['foreign'])\n")
    beside = str(Path(__file__).parents[2] / "agentkit" / "sandbox")
    done = subprocess.run([sys.executable, "-I", "-S", str(script), beside, program.hex()], capture_output=True)
    assert done.returncode == -31, done  # SIGSYS
