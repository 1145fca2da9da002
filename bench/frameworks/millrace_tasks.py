"""The no-op task of Millrace, and its producer."""

from millrace import Millrace

app = Millrace()  # MILLRACE_URL


@app.task
def noop() -> None:
    pass


def push_one() -> None:
    noop.push()


def push_many(count: int) -> None:
    app.push_many(noop.job() for _ in range(count))
