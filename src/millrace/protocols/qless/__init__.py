"""The Qless API, served over RESP."""
