"""Records and requests, declared once for the admin socket, the HTTP API, the pages and the CLI."""

# ruff: noqa: F403 - every record is public, and is named once
from .actions import *
from .features import *
from .imports import *
from .jobs import *
from .queues import *
from .requests import *
from .server import *
from .types import *
from .workers import *
