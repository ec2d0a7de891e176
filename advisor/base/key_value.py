"""KEY=VALUE: the one grammar of overrides, environment variables and words of a command."""

from collections.abc import Iterable, Mapping

from advisor.base.errors import UserError, show
from advisor.base.fields import spelled


def split_key_value(text: str, field: str = "argument") -> tuple[str, str]:
    """What stands before and after the first ``=``; UserError, about `field`, where there is none
    or no key.

    >>> split_key_value("model.activation=swiglu")
    ('model.activation', 'swiglu')
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(field, show(text), "is not KEY=VALUE")
    return key, value


def key_of(text: str) -> str:
    """The key of KEY=VALUE; of ``--flag`` and any other word without a value, the word."""
    return text.partition("=")[0]


def split_key_values(pairs: Iterable[str], field: str = "argument") -> dict[str, str]:
    """Values by key, of a key given twice the last; UserError as for `split_key_value`."""
    return dict(split_key_value(pair, field) for pair in pairs)


def join_key_values(values: Mapping[str, object]) -> str:
    """``layout.data_parallel_sharding=full job.torch_compile=true``: what a command line takes."""
    return " ".join(f"{key}={spelled(value)}" for key, value in values.items())
