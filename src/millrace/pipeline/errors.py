"""Exceptions of the pipeline. Each message includes the action to take."""


class PipelineError(Exception):
    """The pipeline cannot do that; the text says why, and what to do."""


class NoJava(PipelineError):
    """There is no Java that Spark can use."""


class NoLake(PipelineError):
    """There is no lake at this path."""


class LakeBusy(PipelineError):
    """Another run works on the lake."""
