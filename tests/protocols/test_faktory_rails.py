"""The class that a Rails wrapper runs, as Faktory's pages show it."""

from random import Random

import msgspec
import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import Job
from millrace.protocols.faktory.rails import MAX_PAYLOAD, WRAPPER, wrapped_class
from millrace.protocols.faktory.work_unit import read
from millrace.protocols.spec import protocol_rules

ENGINE = Engine(Random(1), protocol_rules())


def unit(args: object, custom: object = None, jobtype: str = WRAPPER) -> Job:
    told = {"jid": "a" * 8, "jobtype": jobtype, "args": args}
    if custom is not None:
        told["custom"] = custom
    return ENGINE.push(read(msgspec.json.encode(told), 0), 0)


MAIL = {"arguments": ["UserMailer", "welcome", "deliver_now", {"args": [1]}]}


@pytest.mark.parametrize(
    ("job", "expected_class"),
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
def test_the_wrapped_class(job: Job, expected_class: str) -> None:
    assert wrapped_class(ENGINE, job) == expected_class
