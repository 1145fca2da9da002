"""The only place with sockets: listeners, sessions, the loop turn, signals, TLS, limits."""
