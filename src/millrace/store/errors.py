"""Errors of a store, and their consequences for the server."""


class StoreError(Exception):
    """The store could not execute a request."""


class StoreWriteFailed(StoreError):
    """A change set could not be written (disk full, I/O error). The store may become writable
    again.
    """


class SyncFailed(StoreError):
    """A sync failed, so the content of the disk is unknown. The process must end."""


class StoreDamaged(StoreError):
    """The data folder has content that this version cannot read."""


class DataFolderInUse(StoreError):
    """Another process uses this data folder."""


class DataFolderRemoved(StoreError):
    """Files of the data folder were deleted or replaced. Nothing more can be acknowledged."""


class ChecksumError(ValueError):
    """Stored data does not match its checksum, or a part of it is missing."""
