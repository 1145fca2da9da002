"""The Workq protocol."""
