"""Style sheets and scripts, and plotly.js where the extra `spark` is installed."""

import functools
import gzip
import hashlib
from importlib import resources
from typing import Final, NamedTuple

from starlette.responses import Response

from millrace.extras import is_installed
from millrace.pipeline.report import page as report

from .context import RequestContext
from .errors import HttpError
from .routing import PageRoute

_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
#: Browsers revalidate a file on each use, so that pages and scripts have the same version.
_AGE: Final = "public, no-cache"


class StaticFile(NamedTuple):
    kind: str
    plain: bytes
    packed: bytes
    tag: str


async def static(context: RequestContext) -> Response:
    file = _file(context.path("name"))
    headers = {"Cache-Control": _AGE, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if context.request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in context.request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, headers=headers, media_type=file.kind)
    return Response(file.plain, headers=headers, media_type=file.kind)


@functools.cache
def _names() -> frozenset[str]:
    found = resources.files("millrace.web").joinpath("static").iterdir()
    names = {path.name for path in found} | {"report.js"}
    return frozenset(names | {"plotly.js"} if is_installed("plotly") else names)


def _file(name: str) -> StaticFile:
    if name not in _names():
        raise HttpError(404, "File not found.")
    return _read(name)


@functools.cache
def _read(name: str) -> StaticFile:
    if name == "plotly.js":
        plain = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    elif name == "report.js":
        plain = report.script()
    else:
        plain = resources.files("millrace.web").joinpath("static", name).read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return StaticFile(_TYPES[name.rpartition(".")[2]], plain, gzip.compress(plain, 6, mtime=0), tag)


ROUTES: Final = [PageRoute("/static/{name}", static, "styles and scripts", role=None)]
