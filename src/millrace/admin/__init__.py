"""Queries and actions on a running server over the admin socket, and the client for it."""
