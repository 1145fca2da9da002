"""What all requests share."""

from pathlib import Path

from .access import Gate
from .analytics import Analytics
from .control import Control
from .live import Live
from .settings import Settings
from .tasks import Tasks


class Room:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control = Control(settings.control)
        self.gate = Gate(Path(settings.data) if settings.data else None)
        self.live = Live(self.control)
        self.tasks = Tasks(self.control)
        self.analytics = Analytics()

    def close(self) -> None:
        """The server is about to stop."""
        self.live.close()
        self.tasks.close()
        self.control.close()
