"""The protocols, sans-IO: bytes in, engine commands, bytes out. No socket, no clock, no asyncio."""
