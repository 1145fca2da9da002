"""The durable record of a transaction that takes several steps.

A transaction of several steps takes several commits. Before the first commit the server records
all commands, and with each step the number of completed commands. After a crash, the next start
carries out the rest before the first client connects, and after a refused commit the transaction
continues from the recorded position. Thus a transaction takes effect completely or not at all.

The record consists of settings: the lengths of all words, the words in pieces, and the position. A
record without a position has had no effect, and is removed.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

#: Settings of a record: this prefix, the number of the record, and the name of a part.
SETTING_PREFIX: Final = "exec/"
#: The bytes of one piece. A larger record is written in several turns.
PIECE_SIZE: Final = 1 << 18
#: One step writes this number of commands of a large record.
COMMAND_BATCH_SIZE: Final = 1000
#: Pieces that one step deletes.
DELETE_BATCH_SIZE: Final = 4
#: The parts of a record besides the pieces, which have numbers.
HEAD: Final = "head"
POSITION: Final = "position"

Commands = list[list[bytes]]


class Position(msgspec.Struct, array_like=True):
    """The state of a transaction after a step."""

    #: The number of commands that are done.
    done: int
    database: int
    #: Whether the next command is a pop that has leased some of its jobs.
    pop_in_progress: bool = False
    #: The number of jobs that the next command has moved, if it is an `unfail`.
    moved: int = 0


class _Head(msgspec.Struct, array_like=True):
    #: The server's time at EXEC.
    now: int
    #: The lengths of the words of each command.
    lengths: list[list[int]]


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_position = msgspec.msgpack.Decoder(Position).decode


class RedoRecord:
    """The record of one transaction."""

    __slots__ = ("_engine", "_key", "_piece_count", "commands", "is_large", "now")

    def __init__(
        self,
        engine: "Engine",
        name: str,
        commands: Commands,
        size: int,
        now: int,
        piece_count: int = 0,
    ) -> None:
        self._engine = engine
        self._key = f"{SETTING_PREFIX}{name}/"
        self.commands = commands
        self.now = now
        #: The number of written pieces.
        self._piece_count = piece_count
        #: The commands are written over several turns, before the first step.
        self.is_large = size > PIECE_SIZE

    @property
    def is_written(self) -> bool:
        return self._piece_count > 0

    def write(self) -> Iterator[None]:
        """Write the commands, at most one piece in each step."""
        piece = bytearray()
        if not self.is_large:
            piece += b"".join(chain.from_iterable(self.commands))
        for number, words in enumerate(self.commands if self.is_large else (), 1):
            for part in _parts(words):
                piece += part
                if len(piece) >= PIECE_SIZE:
                    self._write_piece(bytes(piece))
                    piece.clear()
                    yield
            if number % COMMAND_BATCH_SIZE == 0:
                yield
        self._write_piece(bytes(piece))
        lengths = [list(map(len, words)) for words in self.commands]
        self._engine.set_setting(f"{self._key}{HEAD}", _encode(_Head(self.now, lengths)))

    def _write_piece(self, piece: bytes) -> None:
        self._engine.set_setting(f"{self._key}{self._piece_count:06}", piece)
        self._piece_count += 1

    def move_to(self, position: Position) -> None:
        """Record the position of the transaction, in the same turn as the changes before it."""
        if not self._piece_count:
            for _ in self.write():
                pass
        self._engine.set_setting(f"{self._key}{POSITION}", _encode(position))

    def position(self) -> Position | None:
        """The recorded position; after a revert, the last committed one."""
        recorded = self._engine.settings.get(f"{self._key}{POSITION}")
        return None if recorded is None else _decode_position(recorded)

    def end(self) -> None:
        """Record that the transaction has ended, in the same turn as its last changes."""
        self._engine.set_setting(f"{self._key}{POSITION}", None)
        if not self.is_large:
            for _ in self.delete():
                pass

    def delete(self) -> Iterator[None]:
        """Delete the commands, some pieces in each step."""
        for number in range(self._piece_count):
            while self._engine.unavailable_reason:
                yield
            self._engine.set_setting(f"{self._key}{number:06}", None)
            if (number + 1) % DELETE_BATCH_SIZE == 0:
                yield
        if self._piece_count:
            self._engine.set_setting(f"{self._key}{HEAD}", None)


def _parts(words: list[bytes]) -> Iterable[bytes]:
    """The bytes of a command, none larger than a piece."""
    if sum(map(len, words)) <= PIECE_SIZE:
        return (b"".join(words),)
    return (
        word[start : start + PIECE_SIZE]
        for word in words
        for start in range(0, len(word), PIECE_SIZE)
    )


def recorded_transactions(engine: "Engine") -> list[RedoRecord]:
    """The transactions that a crash has interrupted, in their original order. Records without a
    position are deleted.
    """
    found: dict[str, dict[str, bytes]] = {}
    for key, value in engine.settings.items():
        if key.startswith(SETTING_PREFIX):
            name, _, part = key.removeprefix(SETTING_PREFIX).partition("/")
            found.setdefault(name, {})[part] = value
    records = []
    for name, parts in sorted(found.items(), key=lambda item: _sort_key(item[0])):
        if parts.pop(POSITION, None) is None:
            for part in parts:
                engine.set_setting(f"{SETTING_PREFIX}{name}/{part}", None)
        else:
            records.append(_read(engine, name, parts))
    return records


def _sort_key(name: str) -> tuple[int, ...]:
    return tuple([int(part) for part in name.split("-")])


def _read(engine: "Engine", name: str, parts: dict[str, bytes]) -> RedoRecord:
    head = _decode_head(parts.pop(HEAD))
    text = memoryview(b"".join([parts[part] for part in sorted(parts)]))
    commands: Commands = []
    start = 0
    for lengths in head.lengths:
        words = []
        for length in lengths:
            words.append(bytes(text[start : start + length]))
            start += length
        commands.append(words)
    return RedoRecord(engine, name, commands, len(text), head.now, len(parts))
