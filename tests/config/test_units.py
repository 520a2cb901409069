import pytest
from hypothesis import given, strategies as st

from skytrain.config import (
    Interval,
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
    plural,
)
from skytrain.config.units import parse_interval


@pytest.mark.parametrize(
    ("text", "count"),
    [("2.5B", 2_500_000_000), ("300K", 300_000), ("1e9", 10**9), ("1_000", 1000), (7, 7), ("4T", 4 * 10**12)],
)
def test_counts_are_read_with_their_suffix(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["2.5", "1.00001K", "ten", "", "3X", "5MiB"])
def test_a_count_that_is_not_a_whole_number_of_things_is_refused(text):
    with pytest.raises(ValueError, match=r"not a|unknown unit"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 * 2**20), ("2GB", 2 * 10**9), ("1.5KiB", 1536), (17, 17), ("17B", 17)]
)
def test_bytes_are_read_in_binary_and_decimal_units(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), (5, 5), ("0.5m", 30)]
)
def test_durations_are_read_with_their_unit(text, seconds):
    assert parse_seconds(text) == seconds


def test_an_interval_is_steps_when_it_is_a_whole_number_and_time_when_it_has_a_unit():
    assert parse_interval(200) == parse_interval("200 steps") == Interval(steps=200)
    assert parse_interval("10m") == Interval(seconds=600)


@pytest.mark.parametrize("value", [0, -3, 1.5, "0s", "soon"])
def test_an_interval_must_be_positive_and_whole(value):
    with pytest.raises(ValueError, match=r"at least|longer|whole|not a number"):
        parse_interval(value)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_formatted_count_reads_back_within_three_digits(value):
    shown = format_count(value)
    number, suffix = (float(shown[:-1]), shown[-1]) if shown[-1].isalpha() else (float(shown), "")
    assert number * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[suffix] == pytest.approx(value, rel=5e-3)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(999.6, "1K"), (999_600, "1M"), (999_817_216, "1B"), (-999_999_999_999, "-1T"), (9.996e14, "1000T"), (994_000, "994K")],
)  # fmt: skip
def test_a_count_just_below_a_unit_is_shown_in_that_unit(value, shown):
    assert format_count(value) == shown


def test_bytes_just_below_a_unit_are_shown_in_that_unit():
    assert [format_bytes(size) for size in (999, 1000, 995_000_001, 999_999_999)] == [
        "999 B",
        "1.00 KB",
        "995.00 MB",
        "1.00 GB",
    ]


def test_seconds_are_shown_as_a_person_says_them():
    assert [format_seconds(s) for s in (3, 2.5, 60, 95, 7260)] == ["3s", "2.5s", "1m", "1m35s", "2h01m"]


def test_nouns_agree_with_their_counts():
    assert [plural(n, "document") for n in (0, 1, 2, 1234)] == [
        "0 documents",
        "1 document",
        "2 documents",
        "1,234 documents",
    ]
    assert [plural(n, "address", "addresses") for n in (1, 2)] == ["1 address", "2 addresses"]
