"""Subscriptions, and the messages to subscribers.

A message is added to the output of its subscribers immediately, before the client that caused it
gets its reply. A message about a change is held until the change is durable, like the reply to the
change itself. If the change is refused, the message is dropped.
"""

from typing import TYPE_CHECKING, Final

from millrace.protocols.errors import ClientError
from millrace.protocols.globs import check_pattern, matcher

from .commands import (
    ANY,
    NEVER_WAITS,
    NO_REPLY,
    NOT_IN_MULTI,
    SUBSCRIBER,
    Answer,
    Command,
    check_argument_count,
    unknown_subcommand,
)
from .resp import Push, Reply, encode

if TYPE_CHECKING:
    from .connection import QlessConnection
    from .hub import QlessHub

#: Maximum number of subscriptions of a client, and maximum length of a channel or pattern.
MAX_SUBSCRIPTIONS: Final = 1000
MAX_CHANNEL_NAME: Final = 1000
#: Maximum size of the unsent messages of a client. A client with a thousand patterns receives one
#: message a thousand times. The limit is larger than the largest message.
MAX_UNSENT_BYTES: Final = 80 << 20

Subscribers = dict["QlessConnection", None]


class PubSub:
    def __init__(self, hub: "QlessHub") -> None:
        self._hub = hub
        #: In order of subscription.
        self.channels: dict[bytes, Subscribers] = {}
        self.patterns: dict[bytes, Subscribers] = {}

    def publish(self, channel: bytes, payload: bytes, *, changes: bool) -> int:
        """Send a message to all subscribers, and return their number. `reports_change` tells
        whether it reports a change.
        """
        receivers = 0
        subscribers = self.channels.get(channel)
        if subscribers:
            receivers += self._send(subscribers, [b"message", channel, payload], changes)
        for pattern, subscribers in self.patterns.items():
            if matcher(pattern)(channel):
                receivers += self._send(
                    subscribers, [b"pmessage", pattern, channel, payload], changes
                )
        return receivers

    def _send(self, subscribers: Subscribers, parts: list[Reply], changes: bool) -> int:
        written: dict[int, bytes] = {}
        for subscriber in subscribers:
            if subscriber.closing:
                continue  # its last reply has been sent
            message = written.get(subscriber.resp_version)
            if message is None:
                message = encode(Push(parts), subscriber.resp_version)
                written[subscriber.resp_version] = message
            unsent = subscriber.unsent_message_bytes if subscriber.replies else 0
            subscriber.unsent_message_bytes = unsent + len(message)
            if subscriber.unsent_message_bytes > MAX_UNSENT_BYTES:
                subscriber.closing = True  # as Redis closes a subscriber that does not read
                self._hub.connections_with_messages.add(subscriber)
                continue
            subscriber.add_message(message, must_wait=changes)
            self._hub.connections_with_messages.add(subscriber)
        return len(subscribers)

    def leave(self, connection: "QlessConnection") -> None:
        """Remove all subscriptions of a connection."""
        for name in connection.channels:
            _remove(self.channels, name, connection)
        for name in connection.patterns:
            _remove(self.patterns, name, connection)
        connection.channels.clear()
        connection.patterns.clear()


def _remove(
    subscribers_by_name: dict[bytes, Subscribers], name: bytes, connection: "QlessConnection"
) -> None:
    subscribers = subscribers_by_name[name]
    del subscribers[connection]
    if not subscribers:
        del subscribers_by_name[name]


# Commands


def _subscribe(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    subscribers_by_name = connection.hub.pubsub.channels
    return _subscribe_to(connection, "subscribe", args, subscribers_by_name, connection.channels)


def _psubscribe(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    subscribers_by_name = connection.hub.pubsub.patterns
    return _subscribe_to(connection, "psubscribe", args, subscribers_by_name, connection.patterns)


def _unsubscribe(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    subscribers_by_name = connection.hub.pubsub.channels
    return _unsubscribe_from(
        connection, "unsubscribe", args, subscribers_by_name, connection.channels
    )


def _punsubscribe(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    subscribers_by_name = connection.hub.pubsub.patterns
    return _unsubscribe_from(
        connection, "punsubscribe", args, subscribers_by_name, connection.patterns
    )


def _subscribe_to(
    connection: "QlessConnection",
    word: str,
    args: list[bytes],
    subscribers_by_name: dict[bytes, Subscribers],
    mine: dict[bytes, None],
) -> Answer:
    if any(len(name) > MAX_CHANNEL_NAME for name in args):
        raise ClientError(f"ERR the name of a channel may have at most {MAX_CHANNEL_NAME} bytes")
    if connection.subscriptions + len(args) > MAX_SUBSCRIPTIONS:
        raise ClientError(f"ERR a client may have at most {MAX_SUBSCRIPTIONS} subscriptions")
    for name in args:
        mine[name] = None
        subscribers_by_name.setdefault(name, {})[connection] = None
        connection.reply_value(Push([word, name, connection.subscriptions]))
    return NO_REPLY


def _unsubscribe_from(
    connection: "QlessConnection",
    word: str,
    args: list[bytes],
    subscribers_by_name: dict[bytes, Subscribers],
    mine: dict[bytes, None],
) -> Answer:
    """Without arguments, unsubscribe from all names. Send one reply if there are none."""
    names = args or list(mine)
    for name in names:
        if name in mine:
            del mine[name]
            _remove(subscribers_by_name, name, connection)
        connection.reply_value(Push([word, name, connection.subscriptions]))
    if not names:
        connection.reply_value(Push([word, None, connection.subscriptions]))
    return NO_REPLY


def _publish(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    return connection.hub.pubsub.publish(args[0], args[1], changes=False)


def _pubsub(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    pubsub, what = connection.hub.pubsub, args[0].upper()
    if what == b"CHANNELS":
        check_argument_count(args, 1, 2, "pubsub|channels")
        matches = matcher(check_pattern(args[1] if len(args) == 2 else b"*"))
        return [name for name in pubsub.channels if matches(name)]
    if what == b"NUMSUB":
        counts = ((name, len(pubsub.channels.get(name, ()))) for name in args[1:])
        return [part for pair in counts for part in pair]
    if what == b"NUMPAT":
        check_argument_count(args, 1, 1, "pubsub|numpat")
        return len(pubsub.patterns)
    raise unknown_subcommand("PUBSUB", args[0])


COMMANDS: Final = {
    b"SUBSCRIBE": Command(_subscribe, 1, ANY, SUBSCRIBER | NOT_IN_MULTI | NEVER_WAITS),
    b"UNSUBSCRIBE": Command(_unsubscribe, 0, ANY, SUBSCRIBER | NOT_IN_MULTI | NEVER_WAITS),
    b"PSUBSCRIBE": Command(_psubscribe, 1, ANY, SUBSCRIBER | NOT_IN_MULTI | NEVER_WAITS),
    b"PUNSUBSCRIBE": Command(_punsubscribe, 0, ANY, SUBSCRIBER | NOT_IN_MULTI | NEVER_WAITS),
    b"PUBLISH": Command(_publish, 2, 2, NEVER_WAITS),
    b"PUBSUB": Command(_pubsub, 1, ANY, NEVER_WAITS),
}
