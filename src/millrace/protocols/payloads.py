"""Payloads of jobs that another protocol pushed, for the protocols whose payloads are JSON.

JSON is checked and delivered unchanged, so that no digit is lost. Other text becomes a JSON string,
and other bytes a JSON string in base64; each protocol marks the encoding next to the payload.
"""

from base64 import b64encode
from typing import Final

import msgspec

from . import go_json, go_scanner
from .errors import BadJson

#: The name of the encoding in replies.
BASE64: Final = "base64"

_check: Final = msgspec.json.Decoder(msgspec.Raw).decode
_encode: Final = msgspec.json.Encoder().encode


def as_json(payload: bytes) -> tuple[bytes, bool]:
    """A payload as JSON, and whether it is encoded in base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return b'"%b"' % b64encode(payload), True
    return (payload if is_json(payload) else _encode(text)), False


def is_json(payload: bytes) -> bool:
    """Whether UTF-8 text is JSON. Numbers of any size and escaped lone surrogates are valid."""
    try:
        _check(payload)
    except msgspec.MsgspecError:
        repaired = go_json.replace_surrogates(payload)
        return repaired != payload and is_json(repaired)
    except RecursionError:  # too deep for the fast decoder; longer payloads count as text
        return len(payload) <= go_json.MAX_SLOW_PARSE_BYTES and _is_deep_json(payload)
    return True


def _is_deep_json(payload: bytes) -> bool:
    try:
        go_scanner.top_level_values(payload)
    except BadJson:
        return False
    return True
