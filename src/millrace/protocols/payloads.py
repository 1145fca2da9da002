"""Payloads of jobs that another protocol pushed, for the protocols whose payloads are JSON.

JSON stays as it is, to the last digit: it is looked at, and never decoded. Other text becomes a
JSON string, other bytes one in base64; that it is so encoded each protocol tells beside it.
"""

from base64 import b64encode
from typing import Final

import msgspec

from . import go_json, go_scanner
from .errors import BadJson

#: The name of the encoding, where it is told.
BASE64: Final = "base64"
#: What the fast reader refuses is read slowly up to this size; beyond it, it counts as text.
MAX_UNUSUAL: Final = 80 << 10

_check: Final = msgspec.json.Decoder(msgspec.Raw).decode
_encode: Final = msgspec.json.Encoder().encode


def as_json(payload: bytes) -> tuple[bytes, bool]:
    """A payload as JSON, and whether that is base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return b'"%b"' % b64encode(payload), True
    return (payload if is_json(payload) else _encode(text)), False


def is_json(payload: bytes) -> bool:
    """Is this UTF-8 text JSON? So are numbers that fit nowhere, and lone surrogates in escapes."""
    try:
        _check(payload)
    except msgspec.MsgspecError:
        mended = go_json.mend(payload)
        return mended != payload and is_json(mended)
    except RecursionError:  # a thousand brackets
        return len(payload) <= MAX_UNUSUAL and _is_deep_json(payload)
    return True


def _is_deep_json(payload: bytes) -> bool:
    try:
        go_scanner.pieces(payload)
    except BadJson:
        return False
    return True
