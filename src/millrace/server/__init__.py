"""The package that owns the listening sockets of the protocols: listeners, sessions, the loop turn,
signals, TLS, limits.
"""

from millrace.config import use_protocol_sections
from millrace.protocols.registry import protocol_sections

use_protocol_sections(protocol_sections)
