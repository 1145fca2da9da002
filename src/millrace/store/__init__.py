"""Durability: load() once, then prepare(change set) and commit() per loop turn."""

from .errors import DataFolderInUse, StoreDamaged, StoreError, StoreFailing, SyncFailed
from .memory import MemoryStore
from .sqlite.store import SqliteStore
from .store import Store, StoreSnapshot, must_write

__all__ = [
    "DataFolderInUse",
    "MemoryStore",
    "SqliteStore",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFailing",
    "StoreSnapshot",
    "SyncFailed",
    "must_write",
]
