"""Quantities with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.describe.units import in_bytes, in_gib, parse, with_noun


def test_numbers_with_their_nouns() -> None:
    found = [with_noun(*one) for one in ((1, "GPU"), (2, "GPU"), (0, "step"), (1024, "rank"), (2, "batch"))]
    assert found == ["1 GPU", "2 GPUs", "0 steps", "1,024 ranks", "2 batches"]
    sizes = (33.52 * 2**30, 2**29, 100 * 2**10, 12)
    assert [in_bytes(size) for size in sizes] == ["33.5 GiB", "0.5 GiB", "100.0 KiB", "12 bytes"]
    assert [in_gib(size * 2**30) for size in (33.52, 1, 0.06, 0.034)] == ["33.5", "1.0", "0.1", "0.03"]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("200 Gbit/s", "bytes/s", 25e9),
        ("25GB/s", "bytes/s", 25e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("5 us", "seconds", 5e-6),
        ("1.5e-3 s", "seconds", 1.5e-3),
        (" 10 ms ", "seconds", 10e-3),
        ("3 ns", "seconds", 3e-9),
        ("1 PFLOP/s", "FLOP/s", 1e15),
        ("7 KiB", "bytes", 7168),
        ("2 kB", "bytes", 2000),
        ("2 MiB/s", "bytes/s", 2 * 2**20),
        ("1e3 B", "bytes", 1000.0),
        (12, "seconds", 12.0),
        (0.5, "bytes/s", 0.5),
    ],
)
def test_what_people_write(text: object, kind: str, value: float) -> None:
    assert parse("field", text, kind) == pytest.approx(value, rel=1e-15)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("200 Gbit/s", "bytes"),
        ("5 us", "bytes"),
        ("80 GB", "bytes/s"),
        ("fast", "bytes/s"),
        ("", "seconds"),
        ("5 parsecs", "seconds"),
        (True, "seconds"),
        (None, "bytes"),
        ("5 Us", "seconds"),
        ("1.2.3 s", "seconds"),
    ],
)
def test_what_it_refuses(text: object, kind: str) -> None:
    with pytest.raises(ValueError, match=f"cluster.field is .*; it takes {kind}, a number with its unit, as in"):
        parse("cluster.field", text, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "example"),
    [
        ("400", "bytes/s", "400 Gbit/s"),
        ("1e3", "bytes", "1000 GiB"),
        (" 5 ", "seconds", "5 us"),
        ("2.5", "FLOP/s", "2.5 TFLOP/s"),
    ],
)
def test_text_without_a_unit_is_shown_with_one(text: str, kind: str, example: str) -> None:
    with pytest.raises(ValueError, match=rf"^nic is .*, which has no unit; write it as in nic='{example}'$"):
        parse("nic", text, kind)


def test_examples_are_right_and_of_the_unit_that_the_quantity_usually_has() -> None:
    with pytest.raises(
        ValueError, match=r"^memory is -1; it takes a number above 0 with its unit, as in memory='80 GiB'$"
    ):
        parse("memory", "-1", "bytes")
    with pytest.raises(ValueError, match=r"^port is 200, which has no unit; write it as in port='200 GB/s'$"):
        parse("port", "200", "bytes/s")


PREFIXES = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("Gi", 2.0**30)]


@given(st.floats(1e-9, 1e18), st.sampled_from(PREFIXES))
def test_prefixes_multiply(number: float, prefix: tuple[str, float]) -> None:
    name, factor = prefix
    assert parse("field", f"{number!r} {name}B", "bytes") == number * factor
    assert parse("field", f"{number!r} {name}bit/s", "bytes/s") == pytest.approx(number * factor / 8, rel=1e-15)
