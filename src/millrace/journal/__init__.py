"""The journal: the schema of events, and their transport from the store to the lake."""
