"""Millrace: one durable work server for existing job-queue protocols."""

__version__ = "0.1.0"
