"""The state of an engine: indexes of its jobs and queues, its settings, and the open change set.

Only `Engine` extends this class. The components that carry out commands receive the engine; the
parts constructed here know only each other.
"""

from collections.abc import Hashable
from random import Random
from typing import Any

from .annotations import Annotations
from .cascades import STEP_LIMIT
from .change_set import ChangeSet
from .counters import TimerCounts, Totals
from .deadlines import Deadlines
from .dependencies import Dependencies
from .durations import RecentDurations
from .failure_groups import FailureGroups
from .job import Job
from .payloads import Payloads
from .policies import RuleTable
from .positions import Positions
from .queues import QueueSet
from .retention import Retention
from .state_index import StateIndex
from .statistics import Statistics, Tallies
from .table import JobTable
from .timers import TimerHeap
from .waiters import WaiterSet


class EngineState:
    def __init__(self, random: Random, rules: RuleTable, dead_max: int) -> None:
        self.random = random
        self.rules = rules
        #: The reason why the store is unavailable; empty if it is available. While it is
        #: unavailable, no job changes, and clients wait.
        self.unavailable_reason = ""
        #: The reason why new jobs are refused; empty if they are accepted. The protocols check it.
        self.push_refusal_reason = ""

        #: The number of dependents of ended jobs that the current step of the server may still
        #: handle; see cascades.py.
        self.dependents_left = STEP_LIMIT
        self.next_seq = 1
        #: The server's clock when a job last became ready.
        self.last_known_time = 0
        self.table = JobTable(rules)
        # The same tables as in the components, for reading. A flush replaces these two and the
        # indexes of states, so a reference to them must not be kept across turns.
        self.jobs, self.by_jid = self.table.jobs, self.table.by_jid
        self.queue_set = QueueSet(self.jobs)
        self.retention = Retention(self.jobs, rules, dead_max)
        self.states = StateIndex(self.jobs)
        self.queues = self.queue_set.by_name
        self.payloads = Payloads(self.jobs)
        self.done, self.dead = self.retention.done, self.retention.dead
        self.dead_untrimmed, self.done_untrimmed = (
            self.retention.dead_untrimmed,
            self.retention.done_untrimmed,
        )
        self.scheduled, self.blocked = self.states.scheduled, self.states.blocked
        self.leased, self.staged = self.states.leased, self.states.staged
        self.timers = TimerHeap()
        self.dependencies = Dependencies(self.jobs, rules, self.timers)
        #: Dead jobs and jobs that wait for a retry, by error.
        self.failure_groups = FailureGroups(self.jobs)
        self.totals = Totals()
        self.statistics = Statistics()
        self.tallies = Tallies()
        self.recent_durations = RecentDurations()
        self.timer_counts = TimerCounts()

        self.waiters = WaiterSet(self.queue_set, self.timers)
        self.deadlines = Deadlines(self.jobs, self.queues, rules)
        self.positions = Positions()
        #: Durable settings. Change them with `Engine.set_setting`.
        self.settings: dict[str, bytes] = {}
        self.queue_set.load(self.settings)
        self.annotations = Annotations(self.jobs)
        #: Keys of due alarms.
        self.alarms: list[Hashable] = []

        self.change_set = ChangeSet()
        #: The number of the current change set.
        self.turn = 0
        #: The number of reverts and of flushes.
        self.revert_count = 0
        self.flush_count = 0
        #: Whether a store makes changes durable. Without one, no reply waits.
        self.durable = False
        #: Whether transitions are recorded in the change set. A server without a store needs no
        #: record of them.
        self.records_transitions = True
        #: The change set that the store is committing.
        self.committing: ChangeSet | None = None
        #: Owners of work that continues after the next commit, successful or not: their `wake` is
        #: called. The dictionary keeps their order.
        self.commit_waiters: dict[Any, None] = {}

    # Jobs

    def skip_seqs(self, count: int) -> None:
        """Leave the next `count` seqs unused."""
        self.next_seq += count

    def payload(self, job: Job) -> bytes:
        """The payload of a job, from memory or from the store."""
        return self.payloads.read(job) if job.stored_size else job.inline_payload

    def payload_part(self, job: Job, start: int, size: int) -> bytes:
        """Up to `size` bytes of the payload of a job, starting at `start`."""
        return self.payloads.read_part(job, start, size)

    # Statistics and timers

    def current_statistics(self) -> Statistics:
        """The statistics of all queues, including the current change set."""
        self.tallies.add_to(self.statistics, self.recent_durations)
        return self.statistics

    def next_timer(self) -> int | None:
        """The time of the next timer, or None."""
        return self.timers.next()

    def set_alarm(self, key: Hashable, when: int | None) -> None:
        """Put `key`, which is not a number, into `alarms` at that time; None cancels the alarm."""
        if when is None:
            self.timers.cancel(key)
        else:
            self.timers.set(key, when)

    # Change sets

    def take_changes(self) -> ChangeSet:
        """End the turn and return its changes."""
        self.current_statistics()
        change_set = self.change_set
        self.change_set = ChangeSet()
        self.turn += 1
        return change_set

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that differs after every durable change."""
        change_set = self.change_set
        return self.turn, change_set.event_count, change_set.edits

    @property
    def has_uncommitted(self) -> bool:
        """Whether the engine has a change that is not durable yet."""
        return self.durable and (self.committing is not None or bool(self.change_set))

    def is_turn_uncommitted(self, turn: int) -> bool:
        """Whether the changes of that turn are not committed. A revert undoes the turn without
        changing this answer; compare `revert_count` to detect it.
        """
        if not self.durable or turn < self.turn - 1:
            return False
        # A turn without changes does not end, so a client must not wait for its end.
        return self.committing is not None or (turn >= self.turn and bool(self.change_set))

    def is_setting_uncommitted(self, key: str) -> bool:
        """Whether the last change to that setting is not committed."""
        committing = self.committing
        return key in self.change_set.settings or (
            committing is not None and key in committing.settings
        )
