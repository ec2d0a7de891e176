"""Names that are not known and values that are not legal: where they stand, and what is near."""

from advisor.base.place import Place
from advisor.base.rule import Level
from advisor.reading.document_keys import Keys, whole
from advisor.reading.key_checks import illegal_values, no_choice, unknown_names

SOURCE = "source"


def keys_of(**values: object) -> Keys:
    keys = Keys(place=Place("f", 1, 1))
    for line, (name, value) in enumerate(values.items(), start=2):
        keys.put(f"section.{name}", value, Place("f", line, 1))
    return keys


def test_a_name_that_is_not_known_is_said_with_the_nearest() -> None:
    keys = keys_of(modes=1, other=2, mode=3, old=4)
    found = list(unknown_names(keys, "section", ("mode",), "no field", SOURCE, also=("old",)))
    assert [(f.reason, f.fix, f.place.line) for f in found] == [
        ("modes: no field", "did you mean mode?", 2),
        ("other: no field", "drop it", 3),
    ]
    assert {f.level for f in found} == {Level.ERROR}
    near_alone = unknown_names(keys, "section", ("mode",), "no field", SOURCE, otherwise="")
    assert [f.reason for f in near_alone] == ["modes: no field"]


def test_names_at_the_top_are_those_of_sections() -> None:
    (found,) = unknown_names(keys_of(a=1, b=2), "", ("sections",), "no section", SOURCE)
    assert (found.reason, found.place.line) == ("section: no section", 2)


def test_values_that_are_not_known_are_not_judged() -> None:
    keys, at = keys_of(a="$A", b=None, c="x"), ("section.a", "section.b", "section.c", "section.d")
    reason = "{key} {name} {value!r}"
    found = illegal_values(keys, at, lambda value: whole(value) is not None, reason, "1", SOURCE)
    assert [f.reason for f in found] == ["section.c c 'x'"]


def test_a_value_is_one_of_those_that_are_legal() -> None:
    legal, key = ("FULL", "NONE"), "section.a"
    for value in ("FULL", "full", "auto", None, "$A"):
        assert not [
            *no_choice(keys_of(a=value), key, legal, SOURCE, fold=str.upper, also=("AUTO",))
        ]
    (near,) = no_choice(keys_of(a="ful"), key, legal, SOURCE, fold=str.upper, cutoff=0.5)
    assert (near.rule, near.reason) == ("a", "a = ful: must be one of FULL, NONE")
    assert near.fix == "did you mean FULL?"
    (far,) = no_choice(keys_of(a="full"), key, legal, SOURCE)
    assert far.fix == "FULL"
