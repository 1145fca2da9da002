"""The journal: the schema of events, and how they get from the store to the lake."""
