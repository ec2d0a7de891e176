"""What dialects of reinforcement learning have in common, by `cycle` of configs/options/NAME.json.

hydra: whether words are `a.b=c`, else `--a.b c`. dashes: whether names have them for underscores.
explicit: whether switches take a value. model: the key of the checkpoint. prefixes: which
beginnings of a document's keys the rows leave out, and the beginnings of those rows. gpus, batch:
keys whose product is the GPUs of the training, or the global batch, with their defaults; length:
keys whose sum is the sequence. dynamic: the switch without which a budget of tokens is not read.
added: beginnings of keys that Hydra has to add. renamed: names of older releases, by those of now.
supervised: of its programs that generate nothing.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, ClassVar, Final

from msgspec import Struct, convert

from advisor.base.rule import Match
from advisor.frameworks.dialect import DialectReader, keys_in
from advisor.frameworks.dialect_rows import file_of, names_of, rows_of, value_of, written
from advisor.frameworks.torch.keyed_reader import KeyedReader, meaning
from advisor.frameworks.torch.setting import as_torch
from advisor.frameworks.torch.stack import TorchSpelling
from advisor.job.job import Job
from advisor.job.reinforcement import Reference
from advisor.plan.recompute_plan import Setting
from advisor.reading.key_rules import did_you_mean
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import Document, Keys, ReadValue, known

Made = tuple[Any, Iterable[str]]
"""A value, None where there is none, and the options that make it."""
_MICRO: Final = "job.micro_batch_size"
_BUDGET: Final = "samples.token_budget"
_RECOMPUTE: Final = "recompute"
_REFERENCE: Final = "rl.reference"
_NODE: Final = 8
"""GPUs of a node."""
_CLOSE: Final = 0.85
"""Likeness from which a key is taken for a misspelt one."""


class Supervised(Struct, frozen=True, kw_only=True):
    """names: theirs, or beginnings of them, and those of the rows; printed: the reverse, of more;
    empty where there is none. defaults: by the names of the rows. length: of a sequence. adds: what
    chooses them, engine: what chooses Megatron."""

    names: dict[str, str] = {}
    printed: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    length: str = ""
    adds: dict[str, Any] = {}
    engine: dict[str, Any] = {}


class Cycle(Struct, frozen=True, kw_only=True):
    """See above."""

    model: str
    hydra: bool = False
    dashes: bool = False
    explicit: bool = False
    prefixes: dict[str, tuple[str, ...]] = {}
    gpus: dict[str, int] = {}
    batch: dict[str, int] = {}
    length: dict[str, int] = {}
    dynamic: str = ""
    added: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    supervised: Supervised = Supervised()

    def written(self, name: str, job: Job) -> str:
        """A row's name, or its beginning, as a program of the job has it; empty for none."""
        plus, own = "++" * name.startswith(self.added), self.supervised
        if job.config.rl.algorithm.rolls_out or not own.printed:
            begun = (one for one, starts in self.prefixes.items() if name.startswith(starts))
            return plus + next(begun, "") + name
        names = {new: old for old, new in own.names.items()} | own.printed
        start = max(filter(name.startswith, names), key=len, default="")
        its = names.get(start, "")
        return plus + its + name.removeprefix(start) if its or not start else ""


@cache
def cycle_of(name: str) -> Cycle:
    """That of a dialect."""
    return convert(file_of(name)["cycle"], Cycle)


class CycleReader(DialectReader):
    """A reader of what `cycle` says."""

    cycle: ClassVar[Cycle]

    def __init_subclass__(cls) -> None:
        """All follows from the name."""
        super().__init_subclass__()
        if "framework" in vars(cls):
            cls.cycle = cycle_of(str(cls.framework))

    @classmethod
    def unknown_keys(cls, keys: Keys) -> Iterator[Match]:
        """Keys of a command that are none of a complete list, or near one that is known; not what
        Hydra adds."""
        names = names_of(str(cls.framework))
        every, added = names and keys.about["kind"] == "command", keys.about.get("added", "")
        known = names or [row.name for row in cls.options if row.name[-1] != "*"]
        drop = "drop it" + ", or add it with + before it" * cls.cycle.hydra if every else ""
        old = {
            given.written: key
            for key, given in keys.values.items()
            if given.written.lstrip("-").replace("-", "_") in cls.cycle.renamed
        }
        if old:
            now = ", ".join(f"--{key}" for key in old.values())
            yield Match(
                fix=f"write {now}", found=", ".join(old), place=keys.where(next(iter(old.values())))
            )
        for key, given in keys.values.items():
            section = f"{key.rpartition('.')[0]}."
            its = section != "." and any(name.startswith(section) for name in known)
            if not its or key in known or f" {given.written} " in added:
                continue
            fix = did_you_mean(key, known, _CLOSE, drop)
            if fix and (every or cls().row_of(key) is None):
                yield Match(fix=fix, found=given.written, place=given.place)

    def find(self, document: Document) -> Iterator[Keys]:
        """With the names of the rows."""
        own = self.cycle
        for keys in keys_in(document):
            keys.values = {
                own.renamed.get(key, self.short(key)): one for key, one in keys.values.items()
            }
            yield keys

    def put_supervised(self, keys: Keys) -> None:
        """Names of programs that generate nothing as the rows have them, and their defaults."""
        own = self.cycle.supervised
        for old, new in own.names.items():
            for key in [one for one in keys.values if one.startswith(old)]:
                keys.values[new + key.removeprefix(old)] = keys.values.pop(key)
        for key, value in own.defaults.items():
            if not keys.has(key):
                keys.put(key, value, keys.place, f"{key} by default")

    def short(self, key: str) -> str:
        """A key without a prefix."""
        return key.removeprefix(next(filter(key.startswith, self.cycle.prefixes), ""))

    def is_supervised(self, keys: Keys) -> bool:
        """Whether nothing is generated."""
        return False

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Fields that several options make. said: what the rows mean, with their defaults."""
        own, supervised = self.cycle, self.is_supervised(keys)
        if own.length:
            yield "job.seq_length", (sum(numbers(keys, own.length)), own.length)
        if own.batch:
            yield "job.global_batch_size", (prod(numbers(keys, own.batch)) or None, own.batch)
        if own.dynamic and keys.truth(own.dynamic):
            yield _MICRO, (1, (own.dynamic,))
        elif own.dynamic:
            yield _BUDGET, (None, ())
        if said.get("rl.reference") == "host" and said.get("tuning.adapter") == "lora":
            names = [row.name for row in self.rows if row.ours == _REFERENCE]
            yield _REFERENCE, ("adapter_off", names)
        if supervised:
            yield from ((path, (None, ())) for path in said if path.startswith("rl."))

    def _made(self, keys: Keys) -> dict[str, Made]:
        rows = [row for row in reversed(self.rows) if row.ours.partition(".")[1]]
        said = {row.ours: None for row in rows}
        said |= {row.ours: row.omitted_meaning for row in rows if row.default is not None}
        said |= {path: one.value for path, one in KeyedReader.values(self, keys).items()}
        return dict(self.made(keys, said))

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """With what several options make."""
        found, made = KeyedReader.values(self, keys), self._made(keys)
        for path, (value, names) in made.items():
            name = next(filter(keys.has, names), None)
            if value is None:
                found.pop(path, None)
            elif name is not None:
                found[path] = keys.means(name, value)
        return self.counted(found, {path: value for path, (value, _) in made.items()})

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """The same of what nobody says."""
        found = super().omitted(keys)
        made = self._made(keys).items()
        found |= {path: value for path, (value, names) in made if not any(map(keys.has, names))}
        return {path: value for path, value in found.items() if value is not None}

    def recompute(self, keys: Keys) -> str | None:
        """By the first row that is given, else by a default."""
        rows = [row for row in self.rows if row.ours == _RECOMPUTE]
        given = (meaning(row, keys) for row in rows if keys.has(row.name))
        usual = (row.omitted_meaning for row in rows)
        return next((spec for specs in (given, usual) for spec in specs if spec), None)

    def model_named(self, keys: Keys) -> str:
        """The preset that the checkpoint's name holds, else its path or id as it is."""
        given = keys.values.get(self.cycle.model)
        its = str(given.value) if given is not None else ""
        return named_model([its]) or (its if "/" in its and known(its) else "")

    def num_gpus(self, keys: Keys) -> int | None:
        """Those of the training; None where one of the numbers is not known."""
        return prod(numbers(keys, self.cycle.gpus)) or None


def numbers(keys: Keys, names: Mapping[str, int]) -> list[int]:
    """What keys say, or their defaults; 0 for what is not known."""
    return [(keys.number(n) or 0) if keys.has(n) else usual for n, usual in names.items()]


def said_of(name: str, job: Job) -> dict[str, Any]:
    """A job by the names of the rows."""
    own, config = cycle_of(name), job.config
    nodes = (-(-job.num_gpus // _NODE), min(_NODE, job.num_gpus))
    said = dict(zip(own.gpus, nodes if len(own.gpus) > 1 else (job.num_gpus,), strict=True))
    said |= written(name, job)
    named = {row.ours: row.name for row in reversed(rows_of(name))}
    if config.rl.reference is Reference.ADAPTER_OFF and config.rl.algorithm.rolls_out:
        rows = (row for row in rows_of(name) if row.ours == _REFERENCE and row.printed)
        said |= {row.name: row.spelled(Reference.HOST) for row in rows}
    if len(own.batch) > 1:
        said[next(iter(own.batch))] = max(1, config.global_batch_size // config.rl.num_generations)
    generates = config.rl.algorithm.rolls_out
    if not generates:
        rows = (row for row in rows_of(name) if row.name in own.supervised.defaults)
        values = {row.name: row.spelled(value_of(job, row.ours)) for row in rows if row.ours}
        said |= {key: value for key, value in values.items() if value is not None}
        said |= own.supervised.adds
    if not generates and own.supervised.length:
        said[own.supervised.length] = config.seq_length
    elif own.length:
        response = config.rl.response_length or config.seq_length // 2
        halves = (config.rl.prompt_length or config.seq_length - response, response)
        said |= zip(own.length, halves, strict=True)
    if own.dynamic:
        on = config.samples.token_budget is not None
        said[own.dynamic] = on
        said.pop(named[_MICRO if on else _BUDGET], None)
    return said


def words_of(name: str, said: Mapping[str, Any], job: Job) -> str:
    """Options in the dialect's form, for a shell; of a switch that takes no value its name."""
    own, words = cycle_of(name), list[str]()
    for key, value in said.items():
        its, listed = own.written(key, job), value if isinstance(value, list) else [value]
        its = its.replace("_", "-") if own.dashes else its
        texts = [str(one).lower() if isinstance(one, bool) else str(one) for one in listed]
        if its and own.hydra:
            words.append(f"{its}=[{','.join(texts)}]" if listed is value else f"{its}={texts[0]}")
        elif its and (own.explicit or value is not False):
            words += [f"--{its}", *(texts if own.explicit or value is not True else ())]
    return shlex.join(words)


class CycleSpelling(TorchSpelling):
    """Its words."""

    def said(self, job: Job) -> dict[str, Any]:
        """The job by the names of the rows."""
        return said_of(self.facts.framework, job)

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Nothing of the allocator where an engine inherits it, whose sleep it would break."""
        return () if job.config.rl.shares_gpus else super().environment(setting, job)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The switch that means a recompute, off where it is none's."""
        name, spec = self.facts.framework, as_torch(setting).spec
        rows = [row for row in rows_of(name) if row.ours == _RECOMPUTE]
        found = {row.name: said for row in rows if (said := row.spelled(spec)) is not None}
        return words_of(name, dict(list(found.items())[:1]), job)

    def layout_flags(self, job: Job) -> str:
        """All else."""
        return words_of(self.facts.framework, self.said(job), job)

    def omitted(self, job: Job) -> str:
        """The model."""
        return ""
