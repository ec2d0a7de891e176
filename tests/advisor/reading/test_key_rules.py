"""Names that are not known and values that are not legal: where they stand, and what is near."""

from advisor.base.place import Place
from advisor.base.rule import Level
from advisor.reading.key_rules import (
    illegal_values,
    key_findings,
    key_rule,
    no_choice,
    unknown_names,
)
from advisor.reading.read_configuration import Keys, as_whole_number


def keys_of(**values: object) -> Keys:
    keys = Keys(place=Place("f", 1, 1))
    for line, (name, value) in enumerate(values.items(), start=2):
        keys.put(f"section.{name}", value, Place("f", line, 1))
    return keys


def test_a_name_that_is_not_known_is_said_with_the_nearest() -> None:
    keys = keys_of(modes=1, other=2, mode=3, old=4)
    rule = unknown_names("section", ("mode",), "no field", also=("old",))
    found = list(key_findings((rule,), keys))
    assert [(f.reason, f.fix, f.place.line) for f in found] == [
        ("modes: no field", "did you mean mode?", 2),
        ("other: no field", "drop it", 3),
    ]
    assert {f.level for f in found} == {Level.ERROR}
    near_alone = unknown_names("section", ("mode",), "no field", otherwise="")
    assert [f.reason for f in key_findings((near_alone,), keys)] == ["modes: no field"]


def test_names_at_the_top_are_those_of_sections() -> None:
    rule = unknown_names("", ("sections",), "no section")
    (found,) = key_findings((rule,), keys_of(a=1, b=2))
    assert (found.reason, found.place.line) == ("section: no section", 2)


def test_values_that_are_not_known_are_not_judged() -> None:
    keys, at = keys_of(a="$A", b=None, c="x"), ("section.a", "section.b", "section.c", "section.d")
    reason = "{key} {name} {value!r}"
    rule = illegal_values(at, lambda value: as_whole_number(value) is not None, reason, "1")
    assert [f.reason for f in key_findings((rule,), keys)] == ["section.c c 'x'"]


def test_a_value_is_one_of_those_that_are_legal() -> None:
    legal, key = ("FULL", "NONE"), "section.a"
    rule = no_choice(key, legal, fold=str.upper, also=("AUTO",))
    for value in ("FULL", "full", "auto", None, "$A"):
        assert not [*key_findings((rule,), keys_of(a=value))]
    rule = no_choice(key, legal, fold=str.upper, cutoff=0.5)
    (near,) = key_findings((rule,), keys_of(a="ful"))
    assert (near.rule, near.reason) == ("a", "a = ful: must be one of FULL, NONE")
    assert near.fix == "did you mean FULL?"
    (far,) = key_findings((no_choice(key, legal),), keys_of(a=["full"]))
    assert (far.reason, far.fix) == ("a = ['full']: must be one of FULL, NONE", "FULL")


def test_what_another_file_may_have_is_a_note() -> None:
    rule = key_rule("section.a", lambda keys: keys.get("section.a"), "a", "b", lacks="section.b")
    keys = keys_of(a=1)
    (here,) = key_findings((rule,), keys)
    assert (here.rule, here.level, here.place.line) == ("a", Level.ERROR, 2)
    keys.about["file"] = "unread"
    assert [one.level for one in key_findings((rule,), keys)] == [Level.NOTE]
