"""One declaration of an operator action reaches every form of it, in a fresh interpreter."""

import subprocess
import sys

#: Adds a declaration and its function to the sources, then looks for it in all derived forms.
ADDED = """
import sys
from importlib.machinery import SourceFileLoader

DECLARATION = '''JOB_ACTIONS: Final = _table(
    "job",
    OperatorAction(
        "archive", "Archive", "Move the job to the archive", "archived", ("done", "dead"), "queue",
        warning="Archived jobs are gone.", title="Archive {target} in {queue}",
    ),'''
FUNCTION = '''def archive(hub: AdminService, job: Job, asked: ActionRequest, now: int) -> None:
    hub.engine.move(job, asked.queue, now, NO_PROTOCOL, due=0)

FUNCTIONS:'''

read = SourceFileLoader.get_data

def stats(self, path):
    if path.endswith("/actions.py"):
        raise OSError  # no cached bytecode
    return original_stats(self, path)

def get_data(self, path):
    data = read(self, path)
    if path.endswith("records/actions.py"):
        data = data.replace(DECLARATION.partition("    OperatorAction")[0].encode(), DECLARATION.encode(), 1)
    if path.endswith("admin/actions.py"):
        data = data.replace(b"FUNCTIONS:", FUNCTION.encode(), 1)
    return data

original_stats = SourceFileLoader.path_stats
SourceFileLoader.path_stats, SourceFileLoader.get_data = stats, get_data
sys.dont_write_bytecode = True

import msgspec
from millrace.records import ActionBody, ActionRequest, actions
action = actions.JOB_ACTIONS["archive"]
assert msgspec.json.decode(b'{"action":"archive"}', type=ActionRequest).action == "archive"
assert msgspec.json.decode(b'{"action":"archive"}', type=ActionBody).action == "archive"

from millrace.admin.actions import FUNCTIONS
assert "archive" in FUNCTIONS

from millrace.web.api.openapi import make
operation = make()["paths"]["/api/v1/jobs/{id}/archive"]["post"]
assert operation["operationId"] == "archive_job"
assert operation["summary"] == "Move the job to the archive"
assert "QueueBody" in str(operation["requestBody"])
names = make()["components"]["schemas"]["ActionBody"]["properties"]["action"]["enum"]
assert "archive" in names

from millrace.web.render import environment
jobs = environment().get_template("_jobs.html").module
buttons = str(jobs.job_acts(actions.job_actions("dead")))
assert 'value="archive"' in buttons
assert "Archived jobs are gone." in buttons
assert 'value="archive"' not in str(jobs.job_acts(actions.job_actions("ready")))

from millrace.records import BulkProgress
from millrace.web.routes.long_actions import told
request = ActionRequest("archive", queue="old")
assert told(request, BulkProgress(3, []), 1) == "3 jobs were archived."
assert action.describe("3 jobs", request) == "Archive 3 jobs in old"
assert action.question("this job") == "Archive this job? Archived jobs are gone."

sys.path.insert(0, "tests/records")
from actions_page import make_page
assert "| `archive` | Archive | `queue` | done, dead | Move the job to the archive |" in make_page()
"""


def test_an_added_action_appears_in_every_form() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
