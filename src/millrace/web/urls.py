"""Addresses of ours."""

from urllib.parse import quote

#: Longer ids make addresses that some would cut.
MOST_ID = 200


def own_path(path: str, otherwise: str = "/") -> str:
    """A path of ours, wherever somebody was told to go: nobody is sent to another site."""
    strange = not path.startswith("/") or path.startswith("//")
    return otherwise if strange or "\\" in path or not path.isprintable() else path


def job_path(jid: str, seq: int) -> str:
    """Where a job's page is."""
    name = jid if jid not in {"", ".", ".."} and len(jid) <= MOST_ID else str(seq)
    return f"/jobs/{quote(name, safe='')}" + (f"?seq={seq}" if seq else "")
