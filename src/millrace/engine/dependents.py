"""Who waits for whom."""

from bisect import bisect_left, bisect_right


class Dependents(dict[int, list[int]]):
    """Blocker -> those who wait for it: each once, the older ones first, also after a restart."""

    def note(self, blocker: int, seq: int) -> None:
        peers = self.setdefault(blocker, [])
        if not peers or peers[-1] < seq:
            peers.append(seq)
            return
        at = bisect_left(peers, seq)
        if peers[at] != seq:
            peers.insert(at, seq)

    def behind(self, blocker: int, seq: int) -> int:
        """The first who waits for it whose number is higher; 0 if there is none."""
        peers = self.get(blocker, [])
        at = bisect_right(peers, seq)
        return peers[at] if at < len(peers) else 0

    def unnote(self, blocker: int, seq: int) -> None:
        peers = self.get(blocker, [])
        at = bisect_left(peers, seq)
        if at < len(peers) and peers[at] == seq:
            del peers[at]
        if not peers:
            self.pop(blocker, None)
