"""`millrace why`."""

from typing import Annotated

import typer

from millrace.cli.options import ConfigFile, Data, Json, on_folder


def why_command(
    jid: Annotated[
        str, typer.Argument(metavar="JID", help="ID or number of the job.", show_default=False)
    ],
    data: Data = None,
    config: ConfigFile = None,
    *,
    json: Json = False,
) -> None:
    """Explain why a job is not running.

    Asks the server that runs on the data folder. If several jobs have this ID, the oldest 20 are
    listed.

    Examples:
    - `millrace why 6ba7b810-9dad-11d1-80b4-00c04fd430c4`
    - `millrace why 17 --data /var/lib/millrace`: by job number
    - `millrace why -- -17a`: an ID that starts with a dash

    """
    from millrace.cli.control import why  # noqa: PLC0415 - loads the engine

    on_folder(config, data, lambda folder: why(folder, jid, json=json))
