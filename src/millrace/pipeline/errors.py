"""Exceptions of the pipeline. Each message includes the action to take."""


class PipelineError(Exception):
    """The operation failed. The message gives the reason and the action to take."""


class NoJava(PipelineError):
    """There is no Java that Spark can use."""


class NoLake(PipelineError):
    """No events have been shipped to a lake at this location."""

    def __init__(self, lake: str) -> None:
        super().__init__(
            f"No lake at {lake}. Name its folder with --lake, or ship events to it first."
        )


class NoTables(PipelineError):
    """No run has created the tables of the lake yet."""

    def __init__(self, lake: str) -> None:
        super().__init__(
            f"The lake {lake} has no tables yet. Create them with `millrace pipeline run`."
        )


class LakeBusy(PipelineError):
    """Another run works on the lake."""
