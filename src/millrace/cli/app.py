"""The `millrace` application with every command."""

from typing import Final

from millrace.cli.commands import application

app: Final = application()
