"""Paths of pages."""

from urllib.parse import quote

#: Maximum length of a job ID in a URL. Some clients truncate long URLs.
MAX_ID_LENGTH = 200


def own_path(path: str, otherwise: str = "/") -> str:
    """Return `path` if it is on this site, else `otherwise`. This prevents open redirects."""
    strange = not path.startswith("/") or path.startswith("//")
    return otherwise if strange or "\\" in path or not path.isprintable() else path


def job_url(jid: str, seq: int) -> str:
    """Return the path of a job's page."""
    name = jid if jid not in {"", ".", ".."} and len(jid) <= MAX_ID_LENGTH else str(seq)
    return f"/jobs/{quote(name, safe='')}" + (f"?seq={seq}" if seq else "")
