"""The default store: one SQLite database in the data folder. Other packages use `store.folders`."""
