"""Idempotency keys: a push that is repeated with its key returns the reply of the first push.

A note of the engine stores each key with the reply, so that keys survive a restart. Keys end after
a day. Their number and their total size are limited; a push with a new key is refused while the
limit is reached, because dropping a key early would let a repeated push create a second job.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import DAY
from millrace.engine.settings import IDEMPOTENCY_PREFIX
from millrace.records import PushedJobs

from .errors import AdminError

#: How long a key is remembered.
KEY_PERIOD: Final = DAY
MAX_KEY_LENGTH: Final = 255
MAX_KEYS: Final = 100_000
MAX_KEY_BYTES: Final = 64 << 20
#: Expired keys that are removed at a time.
EXPIRY_BATCH_SIZE: Final = 100


class RememberedPush(msgspec.Struct, array_like=True):
    pushed_at: int
    #: Digest of the request.
    digest: str
    #: The reply to the first push.
    reply: PushedJobs


_decode: Final = msgspec.msgpack.Decoder(RememberedPush).decode


class IdempotencyKeys:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Times and sizes of all keys, the oldest first.
        self._keys: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._size = 0
        #: The keys of pushes that run in slices.
        self.unfinished: set[str] = set()
        self._built_for: tuple[int, int] | None = None

    def find(self, key: str, digest: str, now: int) -> PushedJobs | None:
        """The reply to the first push with this key; raises if that was another request."""
        if len(key) > MAX_KEY_LENGTH:
            raise AdminError(f"An idempotency key has at most {MAX_KEY_LENGTH} characters.")
        self.expire(now)
        note = self._engine.settings.get(IDEMPOTENCY_PREFIX + key)
        if note is None:
            self._check_room()
            return None
        found = _decode(note)
        if now - found.pushed_at >= KEY_PERIOD:
            self._remove(key)
            return None
        self._engine.caller.wait()  # the first push may not be committed yet
        if found.digest != digest:
            raise AdminError(
                "The idempotency key was used for another request within the last 24 hours.",
                "conflict",
            )
        return found.reply

    def add(self, key: str, digest: str, reply: PushedJobs, now: int) -> None:
        self._refresh()
        note = msgspec.msgpack.encode(RememberedPush(now, digest, reply))
        self._engine.set_setting(IDEMPOTENCY_PREFIX + key, note)
        self._keys[key] = (now, len(note))
        self._size += len(note)

    def expire(self, now: int) -> None:
        """Remove some of the expired keys."""
        self._refresh()
        for _ in range(EXPIRY_BATCH_SIZE):
            key = next(iter(self._keys), None)
            if (
                key is None
                or now - self._keys[key][0] < KEY_PERIOD
                or self._engine.unavailable_reason
            ):
                return
            self._remove(key)

    def _remove(self, key: str) -> None:
        self._size -= self._keys.pop(key)[1]
        self._engine.set_setting(IDEMPOTENCY_PREFIX + key, None)

    def _check_room(self) -> None:
        if len(self._keys) >= MAX_KEYS or self._size >= MAX_KEY_BYTES:
            raise AdminError(
                "Too many idempotency keys are in use. Try again later, or push without a key.",
                "unavailable",
            )

    def _refresh(self) -> None:
        """Build the index again if the engine's settings were replaced or flushed."""
        engine = self._engine
        if self._built_for == (engine.revert_count, engine.flush_count):
            return
        self._built_for = (engine.revert_count, engine.flush_count)
        found = {
            key.removeprefix(IDEMPOTENCY_PREFIX): (_decode(note).pushed_at, len(note))
            for key, note in engine.settings.items()
            if key.startswith(IDEMPOTENCY_PREFIX)
        }
        self._keys = OrderedDict(sorted(found.items(), key=lambda item: item[1]))
        self._size = sum(size for _, size in found.values())
