"""Durability: load() once, then prepare(change set) and commit() per loop turn."""

from .errors import DataFolderInUse, StoreDamaged, StoreError, StoreWriteFailed, SyncFailed
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
    "StoreSnapshot",
    "StoreWriteFailed",
    "SyncFailed",
    "must_write",
]
