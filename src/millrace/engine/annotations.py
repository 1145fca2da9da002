"""Tags with their index, tracked ids, and the logs of jobs, for jobs of every protocol."""

from typing import Any, Final

from .component import Component, IndexProblem, Problems
from .details import JobDetails
from .job import NO_PROTOCOL, Extra, Job
from .jobs_by_seq import JobsBySeq

#: The prefix of the settings with tracked ids. Do not change it: existing databases use it.
TRACKED_PREFIX: Final = "qless/tracked/"


class Annotations(Component):
    """The jobs of each tag, and the tracked ids."""

    __slots__ = ("_jobs", "tags", "tracked")

    def __init__(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs
        #: Tag -> seq -> the time at which the job got the tag.
        self.tags: dict[str, dict[int, int]] = {}
        #: Tracked id -> the time at which the tracking started.
        self.tracked: dict[str, int] = {}

    # Tags

    def add(self, job: Job) -> None:
        """Add a job to the index of its tags."""
        for tag, when in tags_of(job):
            self.tags.setdefault(str(tag), {})[job.seq] = when

    def remove(self, job: Job) -> None:
        for tag, _ in tags_of(job):
            tagged = self.tags.get(str(tag))
            if tagged is not None:
                tagged.pop(job.seq, None)
                if not tagged:
                    del self.tags[str(tag)]

    def use_jobs(self, jobs: JobsBySeq) -> None:
        self._jobs = jobs

    def clear(self) -> None:
        """Empty the index of tags. The jobs keep their tags, and tracked ids stay."""
        self.take_tags()

    def take_tags(self) -> dict[str, dict[int, int]]:
        """Empty the index of tags, and return its former contents: it takes a long time to free
        many tags.
        """
        tags, self.tags = self.tags, {}
        return tags

    def set_tags(self, job: Job, tags: list[Any]) -> None:
        """Replace the tags of a job: pairs of a tag and a time."""
        self.remove(job)
        if job.extra is None:
            job.extra = Extra()
        job.extra.tags = [str(tag) for tag, _ in tags]
        if job.extra.details is None and any(when != job.created for _, when in tags):
            job.extra.details = new_details(job)
        if job.extra.details is not None:
            job.extra.details.tags = tags
        self.add(job)

    # Tracked ids

    def track(self, jid: str, when: int | None, origin: int, known: bytes | None) -> bytes | None:
        """Track an id from the time `when`; None stops the tracking. Return its new setting;
        `known` is the current one.
        """
        self.tracked.pop(jid, None)
        if when is None:
            return None
        self.tracked[jid] = when
        if origin == NO_PROTOCOL and known is not None:
            origin = tracking_origin(known)
        return encode_tracking(when, origin)

    def load(self, settings: dict[str, bytes]) -> None:
        """Read the tracked ids from the durable settings."""
        self.tracked.clear()
        for key, value in settings.items():
            if key.startswith(TRACKED_PREFIX):
                self.tracked[key[len(TRACKED_PREFIX) :]] = int(value.split()[0])

    # Checks

    def problems(self) -> Problems:
        for seq in self._jobs:
            yield None
            job = self._jobs.get(seq)
            if job is None or job.extra is None:
                continue
            rebuilt = Annotations(JobsBySeq())
            rebuilt.add(job)
            names = [str(tag) for tag, _ in tags_of(job)]
            if job.extra.tags != names:
                yield IndexProblem(
                    "tag",
                    f"events would list the tags {job.extra.tags}, but the job has {names}",
                    job=job,
                )
            for tag, expected in rebuilt.tags.items():
                if self.tags.get(tag, {}).get(seq) != expected[seq]:
                    yield IndexProblem(
                        "tag", f"the tag {tag} does not list the job with its time", job=job
                    )
        for tag in list(self.tags):
            for seq in list(self.tags.get(tag, ())):
                yield None
                job = self._jobs.get(seq)
                if seq not in self.tags.get(tag, ()):
                    continue
                if job is None:
                    yield IndexProblem(
                        "tag", f"the tag {tag} refers to job {seq}, which does not exist"
                    )
                elif all(str(name) != tag for name, _ in tags_of(job)):
                    yield IndexProblem(
                        "tag", f"the tag {tag} refers to a job that does not have it", job=job
                    )


def encode_tracking(when: int, origin: int) -> bytes:
    """The durable setting of a tracked id: the start, and the protocol that tracks it, if any."""
    return b"%d" % when if origin == NO_PROTOCOL else b"%d %d" % (when, origin)


def tracking_origin(setting: bytes) -> int:
    """The protocol that tracks an id."""
    fields = setting.split()
    return int(fields[1]) if len(fields) > 1 else NO_PROTOCOL


def tags_of(job: Job) -> list[Any]:
    """The tags of a job, each with the time at which it was added."""
    extra = job.extra
    if extra is None:
        return []
    if extra.details is not None:
        return extra.details.tags
    return [(tag, job.created) for tag in extra.tags]


def new_details(job: Job) -> JobDetails:
    """Details for a job that has none; the job does not change."""
    log = [(job.created // 1_000_000, "put", {"q": job.queue})]
    return JobDetails(job.rank, log, tags_of(job))


def ensure_details(job: Job) -> JobDetails:
    """The details of a job, for writing. They are created if the job has none."""
    if job.extra is None:
        job.extra = Extra()
    if job.extra.details is None:
        job.extra.details = new_details(job)
    return job.extra.details


def existing_details(job: Job) -> JobDetails | None:
    """The details of a job, or None if it has none."""
    return None if job.extra is None else job.extra.details


def read_details(job: Job) -> JobDetails:
    """The details of a job, for reading only. A job without details does not get any."""
    own = existing_details(job)
    return new_details(job) if own is None else own
