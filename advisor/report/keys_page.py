"""The page of `advise keys`: every KEY of KEY=VALUE, and the options that mean the same."""

from collections.abc import Collection, Mapping

from advisor.base.errors import UserError
from advisor.report.blocks import Block, Indented, group
from advisor.request.given import known_keys


def keys_page(options: Mapping[str, Collection[str]], word: str = "") -> Block:
    """Each KEY with its default, what it takes, and the framework's `options` that mean it.

    word: only those in which it is; UserError where it is in none.
    """
    parts: list[Block] = []
    for known in known_keys():
        own = options.get(known.key, ())
        head = f"{known.key}={known.default}" if known.default else known.key
        text = f"{known.takes}: {', '.join(own)}" if own else known.takes
        if word.lower() in f"{head} {text}".lower():
            parts += [head, Indented(text, 2)]
    if not parts:
        raise UserError("keys", word, "matches no KEY", "advise keys lists them all")
    return group(*parts)
