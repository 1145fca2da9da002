"""How fast the pipeline is, and how fast DuckDB is on the same files."""
