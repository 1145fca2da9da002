"""Pictures of every page, light and dark, and on a phone: `make pictures`.

python tests/browser/pictures.py [--out build/pictures] [--only /queues] [--url http://...]
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import CHROMIUM, filled
from playwright.sync_api import sync_playwright
from test_all_pages import PAGES

from server_process import running_server

FORMS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 375, "height": 800}},
}


@contextlib.contextmanager
def address(given: str) -> Iterator[str]:
    """The address of a server: the given one, or a new one with jobs of every kind."""
    if given:
        yield given
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "data") as server,
        filled(server) as world,
    ):
        # The other jobs of the world are retried too soon for all pictures.
        post(world.url, "/jobs", {"queue": "billing", "id": "late", "payload": [7]})
        lease = post(world.url, "/leases", {"queues": ["billing"], "worker": "shell"})
        again = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        failure = {"group": "Timeout", "message": "no answer", "retry_at": again}
        post(world.url, f"/leases/{lease['leases'][0]['token']}/fail", failure)
        post(world.url, "/queues/images/limit", {"limit": 5})
        post(world.url, "/actions", {"action": "track", "q": "queue:plain"})
        yield world.url


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/api/v1{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/pictures"))
    parser.add_argument("--only", action="append", help="one page's path; may be given often")
    parser.add_argument("--form", action="append", choices=FORMS, help="light, dark or phone")
    parser.add_argument("--url", default="", help="of a server that runs already")
    given = parser.parse_args()
    if not CHROMIUM:
        print("pictures: no Chromium here: `apt-get install chromium` brings it", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    with address(given.url) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for form in given.form or FORMS:
            context = browser.new_context(**FORMS[form])
            page = context.new_page()
            for path in given.only or PAGES:
                page.goto(url + path)
                page.wait_for_timeout(1500)  # charts are drawn, numbers have arrived
                name = re.sub(r"\W+", "-", path).strip("-") or "overview"
                target = given.out / f"{name}-{form}.png"
                page.screenshot(path=target, full_page=True)
                print(target)
            context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
