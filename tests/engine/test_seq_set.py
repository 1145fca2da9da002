"""A compact set of seqs behaves like a set."""

from random import Random

from millrace.engine.seq_set import SeqSet


def test_a_seq_set_supports_the_operations_of_a_set() -> None:
    rng, seqs, expected = Random(1), SeqSet(), set[int]()
    for _ in range(5000):
        seq = rng.choice((rng.randrange(1, 300), rng.randrange(1 << 50)))
        if rng.random() < 0.6:
            seqs.add(seq)
            expected.add(seq)
        else:
            seqs.discard(seq)
            expected.discard(seq)
    assert len(seqs) == len(expected)
    assert sorted(seqs) == sorted(expected)
    assert all(seq in seqs for seq in expected)
    assert not any(seq in seqs for seq in range(300) if seq not in expected)
    for seq in expected:
        seqs.discard(seq)
    assert not seqs


def test_a_range_is_added_as_its_seqs_are() -> None:
    rng = Random(2)
    for _ in range(300):
        seqs, expected = SeqSet(), SeqSet()
        for _ in range(3):
            start = rng.randrange(300)
            end = start + rng.choice((0, 1, rng.randrange(200)))
            seqs.add_range(start, end)
            for seq in range(start, end):
                expected.add(seq)
        assert list(seqs) == list(expected)
        assert len(seqs) == len(expected)
