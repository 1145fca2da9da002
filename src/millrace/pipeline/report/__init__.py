"""The report: what the tables say about some days, as numbers (`model`) and as a page (`page`)."""
