"""Pure functions from DataFrames to DataFrames, one module per subject.

Each function takes events, or a table derived from events, and returns the columns of one table
defined in tables.py, in the order of that table. `day` is the last column if the table is
partitioned by day. The functions do no I/O.
"""
