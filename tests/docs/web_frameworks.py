"""Runs the examples of docs/how-to/use-with-web-frameworks.md with the real frameworks.

    make guides

Each example gets the models and the database that its page leaves out. A request must push a job
after the commit, and none if the transaction is rolled back.
"""

import asyncio
import contextlib
import logging
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "use-with-web-frameworks.md"
TASKS, DJANGO, MIDDLEWARE, FASTAPI, FLASK = [b for b in blocks(PAGE) if b.language == "python"]


def load(name: str, text: str, **names: Any) -> ModuleType:
    """Execute the text of an example as a module that also has these names."""
    module = ModuleType(name)
    module.__dict__.update(names)
    exec(compile(text, name, "exec"), module.__dict__)
    sys.modules[name] = module
    return module


def check_django(tasks: ModuleType) -> None:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    )
    django.setup()
    from django.db import connection, models

    class Order(models.Model):  # noqa: DJ008 - never shown
        paid = models.BooleanField(default=False)

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Order)
    order = Order.objects.create()
    views = load("django_views", DJANGO.text, Order=Order, redirect=lambda name: name)
    with tasks.app.testing() as server:
        assert views.pay(None, order.pk) == "orders"
        assert len(server.jobs()) == 1
        with contextlib.suppress(Order.DoesNotExist):
            views.pay(None, order.pk + 1)
        assert len(server.jobs()) == 1  # the transaction was rolled back
        load("django_middleware", MIDDLEWARE.text, app=tasks.app)
        (outcome,) = server.run()
        assert outcome.failure is None
    tasks.app.middleware.clear()
    assert Order.objects.get(pk=order.pk).paid


def check_fastapi(tasks: ModuleType) -> None:
    from typing import Annotated

    from fastapi import Depends
    from httpx import ASGITransport, AsyncClient
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine("sqlite+aiosqlite://")

    async def get_session() -> Any:
        async with AsyncSession(engine) as session:
            yield session

    async def mark_paid(session: AsyncSession, order_id: int) -> None:
        if order_id == 0:
            raise LookupError(order_id)

    session_type = Annotated[AsyncSession, Depends(get_session)]
    api = load("fastapi_app", FASTAPI.text, Session=session_type, mark_paid=mark_paid).api

    async def use(server: Any) -> None:
        transport = ASGITransport(api, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://shop") as client:
            paid = await client.post("/orders/7/pay")
            assert paid.status_code == 200, paid.text
            state = await client.get(f"/jobs/{paid.json()['job']}")
            assert state.json() == {"state": "ready"}
            assert (await client.post("/orders/0/pay")).status_code == 500
            assert len(server.jobs()) == 1  # the transaction was rolled back

    with tasks.app.testing() as server:
        asyncio.run(use(server))


def check_flask(tasks: ModuleType) -> None:
    from flask_sqlalchemy import SQLAlchemy

    db = SQLAlchemy()

    class Order(db.Model):
        id = db.Column(db.Integer, primary_key=True)
        paid = db.Column(db.Boolean, default=False)

    web = load("flask_app", FLASK.text, db=db, Order=Order).web
    web.config["SQLALCHEMY_DATABASE_URI"] = "sqlite://"
    db.init_app(web)
    with web.app_context():
        db.create_all()
        db.session.add(Order(id=7))
        db.session.commit()
    with tasks.app.testing() as server:
        client = web.test_client()
        assert client.post("/orders/7/pay").status_code == 204
        assert client.post("/orders/7/pay").status_code == 204
        assert len(server.jobs()) == 2
        assert client.post("/orders/8/pay").status_code == 500
        assert len(server.jobs()) == 2
    with web.app_context():
        assert db.session.get(Order, 7).paid


def main() -> None:
    logging.disable(logging.CRITICAL)  # the frameworks log the errors that the checks cause
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "shop"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "tasks.py").write_text(TASKS.text, "utf-8")
        sys.path.insert(0, folder)
        from shop import tasks

        for check in (check_django, check_fastapi, check_flask):
            check(tasks)
            print(f"guides: {check.__name__.removeprefix('check_')} ok")


if __name__ == "__main__":
    main()
