"""`millrace why`."""

import sys
from typing import TYPE_CHECKING

from millrace.cli.listings import JobId
from millrace.cli.operator_command import EXIT_NOT_FOUND, operator_command

if TYPE_CHECKING:
    from millrace.cli.remote import Remote


@operator_command
def why_command(remote: "Remote", jid: JobId, *, json: bool) -> int:
    """Explain why a job is not running.

    If several jobs have this ID, the oldest 20 are listed; with `--url`, only one of them. Exits
    with status 4 if the job does not exist.

    Examples:
    - `millrace why 6ba7b810-9dad-11d1-80b4-00c04fd430c4`
    - `millrace why 17 --data /var/lib/millrace`: by job number
    - `millrace why 17 --url http://queue.example.com:7420`
    - `millrace why -- -17a`: an ID that starts with a dash

    """
    from millrace.cli.control import in_words  # noqa: PLC0415 - loads the records
    from millrace.cli.tables import print_json  # noqa: PLC0415

    answer = remote.explain(jid)
    if json:
        print_json(answer)
    else:
        sys.stdout.write(in_words(answer, jid) + "\n")
    return 0 if answer.jobs else EXIT_NOT_FOUND
