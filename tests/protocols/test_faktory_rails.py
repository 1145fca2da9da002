"""Which class a wrapper of Rails runs, as Faktory's own pages show it."""

import msgspec
import pytest

from millrace.engine.job import Job, Push
from millrace.protocols.faktory.rails import MAX_PAYLOAD, WRAPPER, wrapped
from millrace.protocols.faktory.work_unit import read


class Unit(msgspec.Struct):
    """As much of a job as is looked at."""

    kind: str
    origin: int
    spec: bytes
    payload: bytes


def unit(args: object, custom: object = None, jobtype: str = WRAPPER) -> Job:
    told = {"jid": "a" * 8, "jobtype": jobtype, "args": args}
    if custom is not None:
        told["custom"] = custom
    push: Push = read(msgspec.json.encode(told), 0)
    return Unit(push.kind, push.origin, push.spec, push.payload)  # type: ignore[return-value]


MAIL = {"arguments": ["UserMailer", "welcome", "deliver_now", {"args": [1]}]}


@pytest.mark.parametrize(
    ("job", "runs"),
    [
        (unit([{}], {"wrapped": "Invite"}), "Invite"),
        (unit([MAIL], {"wrapped": "ActionMailer::DeliveryJob"}), "UserMailer#welcome"),
        (unit([MAIL], {"wrapped": "ActionMailer::MailDeliveryJob"}), "UserMailer#welcome"),
        (unit([1], {"wrapped": "ActionMailer::DeliveryJob"}), "ActionMailer::DeliveryJob"),
        (
            unit([{"arguments": [1]}], {"wrapped": "ActionMailer::DeliveryJob"}),
            "ActionMailer::DeliveryJob",
        ),
        (unit([], {"wrapped": "ActionMailer::DeliveryJob"}), "ActionMailer::DeliveryJob"),
        (unit([MAIL], {"wrapped": 7}), ""),
        (unit([MAIL]), ""),
        (unit([MAIL], {"wrapped": "x" * MAX_PAYLOAD}), ""),
        (unit([MAIL], {"wrapped": "Invite"}, jobtype="Other"), ""),
    ],
)
def test_what_runs(job: Job, runs: str) -> None:
    assert wrapped(job) == runs
