"""The forms of what answers a request."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .service import AdminService

Said = msgspec.Struct | dict[str, Any]
#: Answered at once: the hub, what was asked, now.
Answering = Callable[[AdminService, Any, int], Said]
#: Answered bit by bit: None lets others have their turn.
Telling = Callable[[AdminService, Any, int], Iterator[Said | None]]
