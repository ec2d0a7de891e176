"""What differs between two answers to the same request, field by field, with both origins."""

from collections.abc import Iterator

from msgspec import Struct

from advisor.request.resolve import Resolution


def differences(answered: Resolution, usual: Resolution) -> tuple[str, ...]:
    """``job.global_batch_size 128 (assumed: …), not 256 (recipe …)``, of model and job options.

    Layouts are left out: they are what a search chooses, and each row shows its own.
    """
    return (
        *_between("model", answered.model, usual.model, answered, usual),
        *_between("job", answered.config, usual.config, answered, usual),
    )


def _between(
    group: str,
    own: Struct,
    other: Struct,
    answered: Resolution,
    usual: Resolution,
) -> Iterator[str]:
    for name in own.__struct_fields__:
        value, before = getattr(own, name), getattr(other, name)
        if value != before:
            path = f"{group}.{name}"
            origins = (answered.origins.get(path), usual.origins.get(path))
            now, then = (f" ({origin})" if origin else "" for origin in origins)
            yield f"{path} {value}{now}, not {before}{then}"
