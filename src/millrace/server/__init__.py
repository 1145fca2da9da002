"""The package that owns the listening sockets of the protocols: listeners, sessions, the loop turn,
signals, TLS, limits.
"""
