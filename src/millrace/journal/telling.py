"""What a server and its shipper say to each other: lines of JSON over two pipes.

The server says until which event is to be shipped; the shipper tells each file as it has landed,
and then that it is done. What is no such line is what a shipper says at its end, when it fails.
"""

import msgspec


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """Ship, so that event `until` is the next."""

    until: int


class Told(msgspec.Struct, forbid_unknown_fields=True):
    server: str
    #: The first event that is not in the lake.
    next: int
    #: Files that have landed since the last line, and events that could not be in them as they were
    #: gone.
    files: int = 0
    missing: int = 0
    #: The order is carried out.
    done: bool = False
    #: It could not be: this is why, and the shipper ends.
    error: str = ""


encode = msgspec.json.Encoder().encode
decode_order = msgspec.json.Decoder(Order).decode
decode_told = msgspec.json.Decoder(Told).decode
