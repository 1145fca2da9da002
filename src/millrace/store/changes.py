"""The encoding of a batch: new jobs, mutable fields of changed jobs, numbers of deleted jobs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from millrace.engine.batch import Batch
from millrace.engine.job import Job, apply, changing

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_any = msgspec.msgpack.Decoder().decode


class Changes(msgspec.Struct, array_like=True, gc=False):
    new: list[Job]
    changed: list[tuple[Any, ...]]
    gone: list[int]


_decode_changes = msgspec.msgpack.Decoder(Changes).decode


def encode_batch(batch: Batch) -> bytes:
    new = [*batch.new.values(), *batch.rewritten.values()]
    changed = [changing(job) for job in batch.changed.values()]
    return encode((new, changed, list(batch.gone)))


def split(blob: bytes, max_bytes: int) -> Iterator[bytes]:
    """Split the changes into several blobs of about this size. A replay of the blobs in order has
    the same effect as a replay of the original.
    """
    changes = _decode_changes(blob)
    piece: list[Job] = []
    size = 0
    for job in changes.new:
        piece.append(job)
        size += len(job.payload) + len(job.spec) + 1000
        if size >= max_bytes:
            yield encode((piece, (), ()))
            piece, size = [], 0
    yield encode((piece, changes.changed, changes.gone))


def replay(blob: bytes, jobs: dict[int, Job], touched: dict[int, None]) -> None:
    """Apply a batch to `jobs`, and add the changed jobs to `touched`. A change of an unknown job is
    skipped: the job was deleted before it was folded, and a later batch contains the deletion.
    """
    changes = _decode_changes(blob)
    for job in changes.new:
        jobs[job.seq] = job
        touched[job.seq] = None
    for half in changes.changed:
        known = jobs.get(half[0])
        if known is not None:
            apply(known, half)
        touched[half[0]] = None
    for seq in changes.gone:
        jobs.pop(seq, None)
        touched[seq] = None
