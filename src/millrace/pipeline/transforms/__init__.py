"""Pure functions from DataFrames to DataFrames, one module per subject.

Each takes events (or a table made of them) and gives the columns of one table of tables.py, in its
order, with `day` last where the table has days. None reads or writes anything.
"""
