"""Why a row is no event, where that takes more than the row to tell. (rules.py has the others.)"""

from typing import Final

DUPLICATE: Final = "the event is there already"
CONFLICT: Final = "another event of that number is there already"
OUTSIDE: Final = "its number is not one of its file's"
STRANGER: Final = "it is of another server than its file"
