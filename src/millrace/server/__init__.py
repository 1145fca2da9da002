"""The only package that uses sockets: listeners, sessions, the loop turn, signals, TLS, limits."""
