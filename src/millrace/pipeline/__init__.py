"""The Spark pipeline: the lake's events become tables, reports and audits.

It meets the server only at the lake's schema (millrace.journal) and at the wire.
"""
