"""The report on a range of days, as numbers (`model`) and as an HTML page (`page`)."""
