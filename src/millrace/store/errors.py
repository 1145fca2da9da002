"""What can go wrong with the store, and what each means for the server."""


class StoreError(Exception):
    """The store could not do what was asked."""


class StoreFailing(StoreError):
    """A batch could not be written (disk full, I/O error). It may work again later."""


class SyncFailed(StoreError):
    """A sync failed: nobody can say what is on the disk. The process must end."""


class StoreDamaged(StoreError):
    """The data folder holds something that this version cannot read."""


class DataFolderInUse(StoreError):
    """Another process serves this data folder."""
