"""A client of the HTTP API that compares every response with the OpenAPI document."""

import functools
import http.client
import json
import re
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jsonschema_rs
import msgspec

from millrace.web.api.openapi import make
from millrace.web.api.table import ROOT, TABLE

JSON = {"application/json", "application/problem+json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)  # supports 1e400


class Caller:
    """`done` are the operations that were not refused, by their ids in the document."""

    def __init__(self, port: int, secret: str = "") -> None:
        self._port, self._secret = port, secret
        self.done: set[str] = set()

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        address = f"{path}?{urlencode(query, doseq=True)}" if query else path
        return self.ask("GET", address, None, status).json

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return self.ask("POST", path, body, status).json

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Answer:
        """Send a request below /api/v1, or to a complete path."""
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if body is not None:
            headers["Content-Type"] = "application/json"
        address = path if path.startswith(("/api", "/health", "/ready", "/stats")) else ROOT + path
        answer = self.send(method, address, data if body is not None else None, headers)
        self._compare(method, address, answer)
        assert answer.status == status, answer
        return answer

    def send(
        self, method: str, address: str, body: bytes | None = None, headers: Any = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, address, body, headers or {})
            answer = connection.getresponse()
            return Answer(
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()

    def _compare(self, method: str, address: str, answer: Answer) -> None:
        endpoint = next(
            each
            for each in TABLE
            if each.method == method and _pattern(each.path).fullmatch(address.partition("?")[0])
        )
        path = re.sub(r"{(\w+):\w+}", r"{\1}", endpoint.path)
        responses = document()["paths"][path][method.lower()]["responses"][str(answer.status)]
        kind = answer.headers["content-type"]
        assert list(responses["content"]) == [kind]
        if kind in JSON:
            validator(path, method, answer.status).validate(answer.json)
        if answer.status < 300:
            self.done.add(f"{method} {path}")


@functools.cache
def document() -> Any:
    return make()


@functools.cache
def validator(path: str, method: str, status: int) -> Any:
    responses = document()["paths"][path][method.lower()]["responses"][str(status)]
    (content,) = responses["content"].values()
    schema = {**content["schema"], "components": document()["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{\w+:\w+}", "[^/]+", path))
