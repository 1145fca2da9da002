"""Durability: load() once, then begin(batch) and commit() per loop turn."""

from .errors import DataFolderInUse, StoreDamaged, StoreError, StoreFailing, SyncFailed
from .memory import MemoryStore
from .recovered import Recovered, Store, must_write
from .sqlite import SqliteStore

__all__ = [
    "DataFolderInUse",
    "MemoryStore",
    "Recovered",
    "SqliteStore",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFailing",
    "SyncFailed",
    "must_write",
]
