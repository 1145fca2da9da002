"""Lease tokens: job number, attempt and lease time, with a keyed digest that only the server can
compute. Only a client with the token can end the attempt.
"""

from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.protocols.errors import CodedError

#: The setting that stores the key, so that tokens survive a restart.
LEASE_KEY: Final = "http/lease-key"
#: Size of the digest in a token, in bytes.
DIGEST_SIZE: Final = 12


class LeaseToken(NamedTuple):
    """The attempt that a token identifies."""

    seq: int
    attempt: int
    leased_at: int

    @classmethod
    def from_job(cls, job: Job) -> "LeaseToken":
        return cls(job.seq, job.attempt, job.leased_at)


class LeaseTokens:
    """Writes and reads tokens with the key of this server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Generates a secret key.
        self.make_key: Callable[[], bytes] = lambda: engine.random.randbytes(32)

    def ensure_key(self) -> bytes:
        kept = self._engine.settings.get(LEASE_KEY)
        if kept is None:
            kept = self.make_key()
            self._engine.set_setting(LEASE_KEY, kept)
        return kept

    @property
    def is_key_uncommitted(self) -> bool:
        return self._engine.is_setting_uncommitted(LEASE_KEY)

    def write(self, lease: LeaseToken) -> str:
        unsigned = "{}-{}-{}".format(*lease)
        digest = blake2b(unsigned.encode(), key=self.ensure_key(), digest_size=DIGEST_SIZE)
        return f"{unsigned}-{digest.hexdigest()}"

    def read(self, text: str) -> LeaseToken:
        *numbers, _digest = text.split("-")
        if len(numbers) != len(LeaseToken._fields) or not all(map(_is_number, numbers)):
            raise CodedError("Malformed lease token.")
        lease = LeaseToken(*map(int, numbers))
        if not compare_digest(self.write(lease).encode(), text.encode()):
            raise CodedError("No lease has this token.", "not found")
        return lease


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
