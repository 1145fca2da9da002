"""The Faktory Work Protocol."""
