"""Wrong passwords: how many may come from where, and from everywhere."""

import ipaddress
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

#: Within so many seconds ...
WITHIN: Final = 60.0
#: ... so many different ones may come from one address, and from all.
MOST_FROM_ONE: Final = 10
MOST_FROM_ALL: Final = 100
#: So many addresses are remembered; those that guess from more are stopped by the other limit.
MOST_ADDRESSES: Final = 1000


class TooMany(Exception):
    """Too many wrong passwords came from there: none is heard for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = max(1, math.ceil(seconds))


class Guesses:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: deque[float] = deque(maxlen=MOST_FROM_ALL)
        self._by: OrderedDict[str, deque[float]] = OrderedDict()
        #: The last one from an address: whoever says the same again and again, as a script with an
        #: old password does, does not guess.
        self._last: dict[str, int] = {}

    def check(self, address: str) -> None:
        """May another password be tried from there? TooMany if not."""
        now = self._clock()
        for times in (self._by.get(_place(address)), self._all):
            if times is not None and len(times) == times.maxlen and now - times[0] < WITHIN:
                raise TooMany(times[0] + WITHIN - now)

    def add(self, address: str, secret: str) -> bool:
        """That was wrong, too. False if it is what came from there the last time."""
        place = _place(address)
        times = self._by.setdefault(place, deque(maxlen=MOST_FROM_ONE))
        self._by.move_to_end(place)
        guess = hash((place, secret))  # of this process alone: nothing is kept that could be read
        if self._last.get(place) == guess:
            return False
        self._last[place] = guess
        now = self._clock()
        times.append(now)
        self._all.append(now)
        while len(self._by) > MOST_ADDRESSES:
            forgotten, _ = self._by.popitem(last=False)
            del self._last[forgotten]
        return True


def _place(address: str) -> str:
    """Who has one IPv6 address has 2^64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(found)
