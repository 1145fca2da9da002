"""Jobs of Ruby on Rails: the class inside its wrapper, as Faktory's pages show it."""

from typing import Final

import msgspec

from millrace.engine.job import FAKTORY, Job

WRAPPER: Final = "ActiveJob::QueueAdapters::FaktoryAdapter::JobWrapper"
MAILERS: Final = frozenset({"ActionMailer::DeliveryJob", "ActionMailer::MailDeliveryJob"})
#: Larger payloads are not decoded.
MAX_PAYLOAD: Final = 16_384


class _Custom(msgspec.Struct):
    wrapped: str = ""


class _Delivery(msgspec.Struct):
    arguments: list[msgspec.Raw] = []


_custom = msgspec.json.Decoder(_Custom).decode
_delivery = msgspec.json.Decoder(list[_Delivery]).decode
_text = msgspec.json.Decoder(str).decode


def wrapped(job: Job) -> str:
    """The class or method that a wrapper runs, `Invite` or `UserMailer#welcome`; else empty."""
    if job.kind != WRAPPER or job.origin != FAKTORY:
        return ""
    custom = job.spec.partition(b"\n")[0]
    if not custom or len(custom) > MAX_PAYLOAD:
        return ""
    try:
        name = _custom(custom).wrapped
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return _mail(job.payload) or name if name in MAILERS else name


def _mail(payload: bytes) -> str:
    """`UserMailer#welcome`"""
    if len(payload) > MAX_PAYLOAD:
        return ""
    try:
        mailer, method = map(_text, _delivery(payload)[0].arguments[:2])
    except (msgspec.MsgspecError, RecursionError, IndexError, ValueError):
        return ""
    return f"{mailer}#{method}"
