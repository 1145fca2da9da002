"""Notifications to systemd, for units with `Type=notify`."""

import os
import socket


def notify(state: str) -> None:
    """Send a state such as `READY=1`. Without a service manager, nothing is sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        try:
            connection.sendto(state.encode(), address)
        except OSError:
            return  # a failed notification must not end the server
