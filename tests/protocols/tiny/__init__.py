"""A protocol of four commands, as an example of the parts of a new protocol: this package and one
row.
"""
