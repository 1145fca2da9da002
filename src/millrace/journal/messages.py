"""Messages between a server and its shipper: lines of JSON over two pipes.

The server requests that events are shipped up to a number. The shipper replies after each file, and
once more when the request is complete. A line that is not such a message is the output of a shipper
that failed.
"""

import msgspec


class ShipRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Ship all events before number `until`."""

    until: int


class ShipperReply(msgspec.Struct, forbid_unknown_fields=True):
    server: str
    #: The first event that is not in the lake.
    next: int
    #: The number of files written since the last reply, and of events before them that were removed
    #: from the outbox before they were shipped.
    files: int = 0
    missing: int = 0
    #: The request is complete.
    done: bool = False
    #: The reason why the shipper failed; it then exits.
    error: str = ""


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(ShipRequest).decode
decode_reply = msgspec.json.Decoder(ShipperReply).decode
