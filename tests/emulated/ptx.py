"""The text of a kernel in PTX, as Triton writes it, read into instructions.

PTX is what a GPU's driver turns into machine code; what its instructions do is in NVIDIA's "PTX ISA".
"""

import re
from typing import NamedTuple

_KERNEL = re.compile(r"\.visible \.entry \w+\((.*?)\)\s*\.(?:req|max)ntid (\d+).*?\n\{(.*?)\n\}", re.S)
_PARAMETER = re.compile(r"\.param \.(\w+) (?:[^,]* )?(\w+)(?:,|\s*$)")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+(%?\w+)(?:<(\d+)>)?;")
_NO_CODE = re.compile(r"//[^\n]*|^\s*\.loc[^\n]*|\.reg [^;]*;", re.M)
_LABEL = re.compile(r"(\$\w+):\s*")
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+) )?(\S+)(.*)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^]]*\]|[^\s,]+")


class Instruction(NamedTuple):
    """For threads where `guard` is true, or, if `unless`, false: what is done, and with what."""

    text: str
    unless: bool
    guard: str | None
    name: list[str]
    operands: list[str]


class Kernel(NamedTuple):
    """A kernel: its parameters and registers with their types, and its code."""

    threads: int
    parameters: dict[str, str]
    registers: dict[str, str]
    code: list[Instruction]
    labels: dict[str, int]


def read(text: str) -> Kernel:
    """The first kernel of a text."""
    found = _KERNEL.search(text)
    assert found, "no kernel"
    parameters = {name: kind for kind, name in _PARAMETER.findall(found[1])}
    registers = {}
    for kind, name, count in _REGISTERS.findall(found[3]):
        registers |= {f"{name}{i}": kind for i in range(int(count))} if count else {name: kind}
    code: list[Instruction] = []
    labels = {}
    for statement in _NO_CODE.sub("", found[3]).split(";"):
        line = " ".join(statement.split()).lstrip("{} ")  # of a block of inline assembly
        while label := _LABEL.match(line):
            labels[label[1]], line = len(code), line[label.end() :].lstrip("{} ")
        if whole := _INSTRUCTION.match(line):
            unless, guard, name, rest = whole.groups()
            code.append(Instruction(line, bool(unless), guard, name.split("."), _OPERAND.findall(rest)))
    return Kernel(int(found[2]), parameters, registers, code, labels)
