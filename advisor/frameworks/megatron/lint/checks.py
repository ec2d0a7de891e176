"""The findings on settings of Megatron, each at the value without which it would not be."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.grouping import grouped
from advisor.base.place import Place
from advisor.base.rule import Finding, Level, Match, Verdict, rows_of
from advisor.base.rule import findings as findings_of
from advisor.frameworks.megatron.lint.read_rules import DEPRECATED, READ_RULES, silenced
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.lint.unseen import Asks, Unseen
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, job_values, setting_values
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.megatron.rules.engine import RULES, find
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.names import Framework
from advisor.job.job import JobConfig
from advisor.job.layout import EVEN, ParallelLayout
from advisor.models.presets import load_preset
from advisor.reading.read_configuration import LentJob

Lent = Mapping[str, Any]


def launched(read: ReadSettings, revision: Revision, lent: Lent) -> RawSettings:
    """What Megatron-LM's argument check makes of the settings before the configuration sees them,
    or what they are over what a recipe or another program lends.

    Source: megatron-core 0.19.2 training/arguments.py:1391-1399.
    """
    settings, said = read.given.settings(), read.given.values
    settings = settings.changed(**{n: lent[n] for n in lent if n not in said})
    known = said.get(_TP) is not None or (read.is_complete and _TP not in said)
    alone = settings.sequence_parallel and settings.tensor_model_parallel_size == 1 and known
    if alone and revision.framework == Framework.MEGATRON_LM:
        return settings.changed(sequence_parallel=False)
    return settings


def lent_values(read: ReadSettings, revision: Revision, recipe: LentJob | None) -> Lent:
    """What lies below the settings: the recipe, or what the model or the program decides."""
    if recipe is None:
        return {**_settled(read), **read.lent}
    shipped = setting_values(parse_setting(recipe.shipped or "none"))
    return job_values(recipe, revision) | (shipped if recipe.certain else _settled(read))


def _unseen(read: ReadSettings, lent: Lent, *, is_certain: bool) -> Unseen:
    """The options that nothing states, lends or leaves out; is_certain: it is this that lends."""
    unknown, said = {*read.given.unresolved, *read.wrong, *read.passed}, RawSettings.option_names
    settings = read.given.settings()
    if _PER_STAGE in read.loose or settings.pipeline_model_parallel_layout:
        unknown |= {"virtual_pipeline_model_parallel_size"} - settings.given.keys()
    if not read.is_complete:
        its = lent if is_certain or read.lent else _settled(read)
        its = {**its, **{n: v for n, v in lent.items() if n in EVEN and not v}}
        said = frozenset(read.given.values) | settings.given.keys()
        options = (row for row in SETTINGS.values() if row.flag or row.off or row.bridge)
        unknown |= {row.name for row in options} - said - its.keys()
    unread = ", ".join(dict.fromkeys(note.text for note in read.unread))
    return Unseen(frozenset(unknown), said, unread)


def findings(
    read: ReadSettings, revision: Revision, lent: Lent, *, is_certain: bool
) -> tuple[Finding, ...]:
    """Everything to be said of the settings over what lies below them, worst first."""
    settings = launched(read, revision, lent)
    unseen = _unseen(read, lent, is_certain=is_certain)
    of_rules = _of_rules(read, settings, revision, lent)
    said = (unseen.settled(one, rule, settings) for one, rule in of_rules)
    found = [*read.faults, *(_of_recipe(one, read, lent) for one in chain.from_iterable(said))]
    return tuple(sorted(found, key=lambda finding: list(Level).index(finding.level)))


def _of_recipe(found: Finding, read: ReadSettings, lent: Lent) -> Finding:
    """With what only the recipe says named as such, and a fix of it that can be written."""
    its = lent.keys() - read.given.values.keys() - read.lent.keys()
    named = [n for n in re.findall(r"\w+", found.reason) if n in its and f"{n} =" in found.reason]
    if found.verdict is Verdict.NOTE or not named:
        return found
    nothing = "None" if read.place.file.endswith(".py") else "null"
    fix = re.sub(rf"^drop ({'|'.join(named)})(:.*)?$", rf"\1 = {nothing}", found.fix)
    names = ", ".join(dict.fromkeys(named))
    return replace(found, reason=f"{found.reason}; the recipe sets {names}", fix=fix)


def _of_rules(
    read: ReadSettings, settings: RawSettings, revision: Revision, lent: Lent
) -> Iterator[tuple[list[Finding], Asks]]:
    """What each rule finds, and the rule as what it says of settings."""
    each = (name for name in read.given.values if name in read.places)
    less = {n: launched(replace(read, given=read.without(n)), revision, lent) for n in each}
    for table in (READ_RULES, DEPRECATED):
        for name, found in _by_rule(findings_of(table, read, settings, revision)):
            own = table[name]
            yield found, partial(lambda own, its: [*own.matches(read, its, revision)], own)
    for name, found in _by_rule(find(settings, revision)):
        if not silenced(name, read):
            asks = partial(lambda rule, its: [*rule.matches(its, revision)], RULES[name])
            left = {option: asks(its) for option, its in less.items()}
            yield [replace(one, place=_cause(read, one, left)) for one in found], asks


def _by_rule(found: Iterable[Finding]) -> Iterable[tuple[str, list[Finding]]]:
    return grouped((one.rule, one) for one in found).items()


def _cause(read: ReadSettings, finding: Finding, left: Mapping[str, Sequence[Match]]) -> Place:
    """The value without which the rule says nothing, or something else; the one that the rule
    names, where there are several. left: what it says without each."""
    causes = [name for name, said in left.items() if not said]
    same = [name for name, said in left.items() if finding.reason in {m.reason for m in said}]
    causes = causes or [name for name in left if name not in same]
    words = re.findall(r"[\w.]+", finding.reason)
    for (name, text), place in read.item_places.items():
        if name in causes and text in words:
            return place
    causes = causes or [name for name in read.places if name in words]
    named = sorted((name for name in causes if name in words), key=words.index)
    first = [*named, *(name for name in causes if name.startswith("recompute_")), *causes]
    return read.places[first[0]] if first else read.place


def understood(settings: RawSettings) -> str:
    """The recompute fields in a few words, as Megatron understands them."""
    if settings.selective or settings.moe_layer_recompute:
        return f"selective recompute of {', '.join(settings.recomputed_modules) or 'nothing'}"
    if settings.recompute_granularity is None:
        return "no recompute"
    how, number = settings.recompute_method or "no method", settings.recompute_num_layers
    many = "no number of layers" if number is None else f"{number} layer{'s' * (number != 1)}"
    return f"{settings.recompute_granularity} recompute, {how}, {many}"


_TP: Final = "tensor_model_parallel_size"
_PER_STAGE: Final = "num_layers_per_virtual_pipeline_stage"


def _settled(read: ReadSettings) -> dict[str, Any]:
    """What the model decides, and the function that Megatron Bridge names its recipe by."""
    called = {text.rpartition(".")[2] for text in read.texts}
    rows = rows_of("bridge_recipes.json")["rows"]
    sets = (row["sets"] for row in rows if called.intersection(row["functions"]))
    return {**(facts(read.model) if read.model else {}), **next(sets, {})}


@cache
def facts(model: str) -> dict[str, Any]:
    """Options of Megatron that the model decides."""
    spec = load_preset(model).spec
    config = JobConfig(seq_length=1, micro_batch_size=1, global_batch_size=1)
    job = LentJob(spec, ParallelLayout(), config)
    values = job_values(job, resolve_revision(Framework.MEGATRON_BRIDGE, ""))
    return {n: value for n, value in values.items() if SETTINGS[n].ours.startswith("model.")}
