"""A limit on wrong passwords, by client address and in total, for every protocol with a login."""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

#: The period in which wrong passwords are counted, in seconds.
GUESS_PERIOD: Final = 60.0
#: Different wrong passwords in one period, from one address and from all addresses.
MAX_GUESSES_PER_ADDRESS: Final = 10
MAX_GUESSES: Final = 100
#: Addresses that are counted separately. `MAX_GUESSES` covers attacks from more of them.
MAX_ADDRESSES: Final = 1000


class TooManyGuesses(Exception):
    """Too many wrong passwords: no password is checked for a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"too many wrong passwords, try again in {self.seconds} s")


class LoginLimiter:
    """Counts wrong passwords. `now` is a time in seconds, from any clock."""

    def __init__(self) -> None:
        self._guess_times: deque[float] = deque(maxlen=MAX_GUESSES)
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        #: The hash of the last wrong password from each address. A script that repeats an old
        #: password is not guessing, so repetitions do not count.
        self._last: dict[str, int] = {}

    def check(self, address: str, now: float) -> None:
        """Raise TooManyGuesses if no further password from this address may be checked."""
        for times in (self._by_address.get(_network(address)), self._guess_times):
            if times is not None and len(times) == times.maxlen:
                age = now - times[0]
                if 0 <= age < GUESS_PERIOD:  # a clock that was set back ends the period
                    raise TooManyGuesses(GUESS_PERIOD - age)

    def count_wrong_password(self, address: str, secret: str, now: float) -> bool:
        """Count a wrong password; False if it repeats the last one from this address."""
        network = _network(address)
        times = self._by_address.setdefault(network, deque(maxlen=MAX_GUESSES_PER_ADDRESS))
        self._by_address.move_to_end(network)
        guess = hash((network, secret))  # salted per process: the password cannot be recovered
        if self._last.get(network) == guess:
            return False
        self._last[network] = guess
        times.append(now)
        self._guess_times.append(now)
        while len(self._by_address) > MAX_ADDRESSES:
            oldest, _ = self._by_address.popitem(last=False)
            del self._last[oldest]
        return True


def _network(address: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 address, which one client can use freely."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return str(found)
