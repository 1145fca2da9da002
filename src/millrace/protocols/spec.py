"""What a protocol declares in its `spec.py`."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.policies import LeaseRights, ProtocolRules, RetryPolicy, RuleTable
from millrace.engine.queue_rules import QueueRule

from .connection import Connection, Hub
from .registry import PROTOCOLS, Protocol


class HubContext(NamedTuple):
    """What a hub gets from the server, in addition to the configuration section of its protocol."""

    engine: Engine
    started_at: int
    max_connections: int
    #: The maximum size of a command of any protocol.
    max_line: int
    #: The memory of the process in MiB.
    memory_mb: Callable[[], int]
    #: An unpredictable number with a given number of bits.
    random_bits: Callable[[int], int]
    #: The queues that the clients of the port may use; None for all queues.
    rule: QueueRule | None = None


class ProtocolSpec(NamedTuple):
    """The rules that the engine applies to a protocol, and the factories for its hub and
    connections.
    """

    policy: RetryPolicy
    rights: LeaseRights = LeaseRights()
    #: Clients send their own time, which applies to their jobs and leases.
    own_clock: bool = False
    #: Makes the hub from the protocol's configuration section and the context.
    make_hub: Callable[[Any, HubContext], Hub] | None = None
    make_connection: Callable[[Any], Connection] | None = None


def load_spec(row: Protocol) -> ProtocolSpec:
    """Import the specification of a protocol."""
    spec: ProtocolSpec = import_module(f"{row.package}.spec").SPEC
    return spec


@functools.cache
def protocol_rules() -> RuleTable:
    """The rules of all protocols, for the engine."""
    rules = []
    for row in PROTOCOLS:
        spec = load_spec(row)
        rules.append(
            ProtocolRules(row.code, row.name, row.label, spec.policy, spec.rights, spec.own_clock)
        )
    return RuleTable(rules)
