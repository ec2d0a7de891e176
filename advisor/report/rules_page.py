"""The pages of `advise rules` (what a release accepts, replaces and refuses) and of `advise keys`
(every KEY of KEY=VALUE, and the options that mean the same).
"""

from collections.abc import Collection, Mapping

from advisor.base.errors import UserError
from advisor.frameworks.part_types import RulesOverview
from advisor.report.blocks import Block, Indented, group, labelled_rows
from advisor.request.given import known_keys

_MARGIN = 18


def rules_page(overview: RulesOverview, word: str = "") -> Block:
    """What a release takes, and its rules by heading.

    word: only rules in whose name, text or heading it is; UserError where it is in none.
    """
    rules = [rule for rule in overview.rules if word.lower() in " ".join(rule).lower()]
    if not rules:
        raise UserError(
            "rules", word, f"matches no rule of {overview.label}", "advise rules lists them all"
        )
    parts: list[Block] = [] if word else ["", labelled_rows(overview.facts, margin=_MARGIN)]
    for heading in dict.fromkeys(heading for heading, _, _ in rules):
        of_kind = [(name, text) for one, name, text in rules if one == heading]
        if heading:
            parts += ["", f"{heading} ({len(of_kind)})", Indented(labelled_rows(of_kind), 2)]
        else:
            for name, text in of_kind:
                parts += ["", name, Indented(text, 2)]
    return group(f"{overview.label}: {len(rules)} rules", *parts)


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
