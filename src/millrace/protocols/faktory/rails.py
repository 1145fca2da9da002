"""Ruby on Rails jobs: the class inside the wrapper, as Faktory's web UI shows it."""

from typing import Final

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import Job, payload_size
from millrace.protocols.errors import PayloadDamaged
from millrace.protocols.registry import FAKTORY

WRAPPER: Final = "ActiveJob::QueueAdapters::FaktoryAdapter::JobWrapper"
MAILERS: Final = frozenset({"ActionMailer::DeliveryJob", "ActionMailer::MailDeliveryJob"})
#: Larger payloads are not decoded.
MAX_PAYLOAD: Final = 16_384


class _RailsFields(msgspec.Struct):
    wrapped: str = ""


class _Delivery(msgspec.Struct):
    arguments: list[msgspec.Raw] = []


_decode_custom = msgspec.json.Decoder(_RailsFields).decode
_decode_deliveries = msgspec.json.Decoder(list[_Delivery]).decode
_decode_text = msgspec.json.Decoder(str).decode


def wrapped_class(engine: Engine, job: Job) -> str:
    """The class or method that a wrapper runs, `Invite` or `UserMailer#welcome`; else empty."""
    if job.kind != WRAPPER or job.origin != FAKTORY:
        return ""
    custom = job.wire_fields.partition(b"\n")[0]
    if not custom or len(custom) > MAX_PAYLOAD:
        return ""
    try:
        name = _decode_custom(custom).wrapped
    except (msgspec.MsgspecError, RecursionError):
        return ""
    if name not in MAILERS or payload_size(job) > MAX_PAYLOAD:
        return name
    try:
        return _mailer_method(engine.payload(job)) or name
    except PayloadDamaged:
        return name


def _mailer_method(payload: bytes) -> str:
    """The method of a mailer job, `UserMailer#welcome`; else empty."""
    try:
        mailer, method = map(_decode_text, _decode_deliveries(payload)[0].arguments[:2])
    except (msgspec.MsgspecError, RecursionError, IndexError, ValueError):
        return ""
    return f"{mailer}#{method}"
