"""Numbers and ranges as people write them."""

from __future__ import annotations

import pytest

from softfloat_llm.errors import WordError
from softfloat_llm.io.number_lists import MOST, numbers_in


def test_a_range_has_both_of_its_ends_and_stands_among_numbers():
    assert numbers_in("504, 1..3,7..7,,-2..0", "token id") == [504, 1, 2, 3, 7, -2, -1, 0]
    assert numbers_in("", "seed") == []
    assert len(numbers_in(f"1..{MOST}", "seed")) == MOST


@pytest.mark.parametrize(("text", "told"), [
    ("1,two", "'two' is no seed; expected numbers such as"), ("1..", "'1..' is no seed"), ("1...3", "is no seed"),
    ("1.5", "'1.5' is no seed"), ("3..1", "'3..1' runs backwards: write 1..3"),
    (f"5,1..{MOST}", "more than 1048576 numbers in all"), ("0..99999999999999999999", "more than 1048576 numbers"),
])  # fmt: skip
def test_what_is_no_list_of_numbers_is_refused(text, told):
    with pytest.raises(WordError) as refused:
        numbers_in(text, "seed")
    assert told in str(refused.value)
