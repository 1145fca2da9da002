"""Readers of other job servers: Faktory and Qless in Redis, Masenko and Workq in log files.

A reader only reads. It yields the jobs in the form of the import (records/imports.py), and the
items that it cannot import with the reason.
"""
