"""How a wrong input is refused, whatever reads it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from advisor.base.errors import UserError


@contextmanager
def refused(*says: str) -> Iterator[None]:
    """A UserError of one line that holds each of these words."""
    with pytest.raises(UserError) as error:
        yield
    line = str(error.value)
    assert "\n" not in line
    assert not [words for words in says if words not in line], line
