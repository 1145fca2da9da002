"""The Go Job Queue protocol."""
