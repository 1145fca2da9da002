"""How many dead jobs are kept."""

from typing import Final

#: One command drops at most this number of surplus jobs; a timer drops the rest in such steps.
TRIM_BATCH_SIZE: Final = 64
#: The key of that timer.
TRIM_TIMER: Final = "trim the dead set"
