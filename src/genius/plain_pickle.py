"""A reader of pickles that can run nothing: it knows plain values and containers, and no class or function.

A pickle is a program for a small stack machine, and Python's own reader calls whatever functions it names. This one
carries out the part of the machine that builds numbers, strings, lists and dictionaries. A call is handed to `call`
with the *name* of the function, never the function; what `call` does not know becomes an `Unknown`, which takes whatever
is done to it and keeps nothing. Work is bounded: at most `operations` steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_INTEGER = 64  # bytes
HASHED = 2**61 - 1  # larger whole numbers can be chosen to collide in a dictionary, which then takes for ever


class Refused(ValueError):
    """The pickle is broken, or does something that no plain value needs."""


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that the pickle names."""

    module: str
    name: str


class Unknown:
    """What the pickle made of a class or function that is none of ours."""

    __slots__ = ()


Call = Callable[[Name, tuple[Any, ...]], Any]
"""Name and arguments of a call -> its value, or an `Unknown`."""


def load(data: bytes, call: Call, persistent: Callable[[Any], Any], operations: int) -> Any:
    """The value that a pickle of protocol 2 or later describes. `persistent` reads references to what lies outside of it."""
    return _Machine(data, call, persistent).run(operations)


class _Machine:
    def __init__(self, data: bytes, call: Call, persistent: Callable[[Any], Any]) -> None:
        self.data, self.at = data, 0
        self.call, self.persistent = call, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, operations: int) -> Any:
        data, steps = self.data, _STEPS
        try:
            for _ in range(operations):
                code = data[self.at]
                self.at += 1
                if code == _STOP:
                    return self.stack.pop()
                step = steps.get(code)
                if step is None:
                    raise Refused(f"it uses the operation {code:#04x}, which no checkpoint needs")
                step(self)
        except (IndexError, KeyError, struct.error, TypeError, UnicodeDecodeError):
            raise Refused("it is broken or cut off") from None
        raise Refused(f"it takes more than {operations:,} steps")

    # -- bytes ---------------------------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise Refused("it is broken or cut off")
        self.at += size
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1024)
        if end < 0:
            raise Refused("it is broken or cut off")
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    # -- the stack -----------------------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def above_mark(self) -> list[Any]:
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def integer(self, size: int) -> None:
        if not 0 <= size <= MAX_INTEGER:
            raise Refused(f"it holds a number of {size:,} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def tuple_of(self, size: int) -> None:
        if len(self.stack) < size:
            raise Refused("it is broken or cut off")
        values = tuple(self.stack[len(self.stack) - size :])
        del self.stack[len(self.stack) - size :]
        self.push(values)

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif not isinstance(target, Unknown):
            raise Refused("it appends to what is no list")

    def update(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update((_key(pairs[i]), pairs[i + 1]) for i in range(0, len(pairs), 2))
        elif not isinstance(target, Unknown):
            raise Refused("it sets items of what is no dictionary")

    def add_to_set(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, set):
            target.update(map(_key, values))
        elif not isinstance(target, Unknown):
            raise Refused("it adds to what is no set")

    def named(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refused("it is broken or cut off")
        self.push(Name(module, name))

    def called(self, arguments: Any, function: Any) -> None:
        known = isinstance(function, Name) and isinstance(arguments, tuple)
        self.push(self.call(function, arguments) if known else Unknown())

    def build(self) -> None:
        """A state for the object below: attributes. Plain values have none worth keeping."""
        self.stack.pop()
        self.stack[-1]


def _key(value: Any) -> Any:
    """A dictionary key that is quick to hash; anything else is replaced by an Unknown, equal to nothing."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) and abs(value) < HASHED:
        return value
    return Unknown()


def _reduce(m: _Machine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    m.called(arguments, function)


def _new_with_keywords(m: _Machine) -> None:
    for _ in range(3):
        m.stack.pop()
    m.push(Unknown())


def _one_item(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.update([key, value])


def _all_items(m: _Machine) -> None:
    pairs = m.above_mark()
    if len(pairs) % 2:
        raise Refused("it is broken or cut off")
    m.update(pairs)


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),  # protocol
    0x95: lambda m: m.take(8),  # frame: how far to read ahead
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("0"): lambda m: m.stack.pop(),
    ord("1"): lambda m: m.above_mark(),
    # numbers and words
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: m.integer(m.number("<B")),
    0x8B: lambda m: m.integer(m.number("<i")),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("X"): lambda m: m.push(m.take(m.number("<I")).decode("utf-8", "surrogatepass")),
    0x8C: lambda m: m.push(m.take(m.number("<B")).decode("utf-8", "surrogatepass")),
    0x8D: lambda m: m.push(m.take(m.number("<Q")).decode("utf-8", "surrogatepass")),
    ord("U"): lambda m: m.push(m.take(m.number("<B"))),  # Python 2's strings, as bytes
    ord("T"): lambda m: m.push(m.take(m.number("<I"))),
    ord("C"): lambda m: m.push(m.take(m.number("<B"))),
    ord("B"): lambda m: m.push(m.take(m.number("<I"))),
    0x8E: lambda m: m.push(m.take(m.number("<Q"))),
    0x96: lambda m: m.push(m.take(m.number("<Q"))),  # bytearray
    # containers
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    0x8F: lambda m: m.push(set()),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("t"): lambda m: m.push(tuple(m.above_mark())),
    ord("l"): lambda m: m.push(m.above_mark()),
    0x91: lambda m: m.push(set(map(_key, m.above_mark()))),  # frozenset
    ord("a"): lambda m: m.extend([m.stack.pop()]),
    ord("e"): lambda m: m.extend(m.above_mark()),
    ord("s"): _one_item,
    ord("u"): _all_items,
    0x90: lambda m: m.add_to_set(m.above_mark()),
    # memory
    ord("q"): lambda m: m.remember(m.number("<B")),
    ord("r"): lambda m: m.remember(m.number("<I")),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("h"): lambda m: m.push(m.memo[m.number("<B")]),
    ord("j"): lambda m: m.push(m.memo[m.number("<I")]),
    # classes and functions: names only
    ord("c"): lambda m: m.push(Name(m.line(), m.line())),
    0x93: lambda m: m.named(),
    ord("R"): _reduce,
    0x81: _reduce,  # cls.__new__(cls, *arguments)
    0x92: _new_with_keywords,
    ord("b"): lambda m: m.build(),
    ord("Q"): lambda m: m.push(m.persistent(m.stack.pop())),
}
