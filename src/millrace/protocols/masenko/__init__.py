"""The Masenko protocol."""
