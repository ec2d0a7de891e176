"""`advise lint --fix`: the fix of a finding, written into the text that it was found in.

Rules say a fix in few forms: `drop X, Y`, `use X V`, `X = V`, `did you mean X?`, ways apart by
`, or `. Each is tried in memory and the text read again: it counts where the finding is gone,
nothing as bad is found, and no other option has changed.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.errors import UserError
from advisor.base.rule import Finding, Level
from advisor.lint.entries import Entry, bare, entries, offset_of
from advisor.lint.target import LintReport, lint_target
from advisor.reading.read_configuration import Checked

_MOST: Final = 64
_MATHEMATICS: Final = re.compile(
    r"(?!recompute|.*checkpoint)(.*(precision|dtype|bf16|fp8|fp4|dropout|jitter|router|capacity|bias"
    r"|optimizer|batch|seq_len|num_layers$|experts|hidden|heads|parallel_size|_degree)|lr$|stage$)"
)
"""Options that change what is trained, or over how many GPUs: only their user sets them."""
_WAY: Final = re.compile(
    r"did you mean (?P<meant>\S+)|write (?P<written>--\S+)|use (?P<words>--.*)"
    r"|(?:keep .*, )?(?:drop|leave|unset) (?P<drop>.+?)(?: out)?(?: from \w+)?"
    r"|(?:turn|switch) (?P<off>\S+) off|set (?P<on>\w+)|(?:use )?(?P<value>[\w\".-]+)"
    r"|(?:(?:use|set|add|write|give|export) )?(?P<name>[\w.-]+)(?:: | = |=| )(?P<to>\S+)"
    r"|(?P<blanks>separate the modules by spaces)"
)
_REMARK: Final = re.compile(r" \([^)]*\)|: (?=\w+ \w+ ).*|, and .*|\?$")
_REST: Final = re.compile(r"[ \t]*(?P<goes_on>\\)?[ \t]*(?:#[^\n]*)?(?:\n|$)")
"""What may follow an option that has a line of its own."""
Change = tuple[str, set[str]]
"""A text, and the names of the options that are not what they were."""


class Fixed(Struct, frozen=True, kw_only=True):
    """A text before and after its fixes, and what is left to be said of it."""

    before: str
    after: str
    report: LintReport

    @property
    def diff(self) -> str:
        """Unified; empty where nothing is changed."""
        name, texts = self.report.target, (self.before, self.after)
        found = difflib.unified_diff(*(text.splitlines(True) for text in texts), name, name)
        return "".join(f"{x.rstrip(chr(10))}\n" + _NO_END * (x[-1] != "\n") for x in found)


_NO_END: Final = "\\ No newline at end of file\n"


def fixed(path: Path, framework_version: str | None = None) -> Fixed:
    """A file of UTF-8 with every fix that holds; its line ends stay what they are."""
    try:
        before = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise UserError("--fix", path, "is not a file of UTF-8 text") from None
    mark = before[: before.startswith("\ufeff")]
    after = before.removeprefix(mark).replace("\r\n", "\n")
    report = lint_target(str(path), framework_version, after)
    for _ in range(_MOST):
        better = next(_better(path, after, report, framework_version), None)
        if better is None:
            break
        after, report = better
    ends = "\r\n" if "\r\n" in before else "\n"
    if before.count("\r\n") not in (0, before.count("\n")):
        raise UserError("--fix", path, "has lines that end in CR LF and lines that end in LF")
    return Fixed(before=before, after=mark + after.replace("\n", ends), report=report)


def _better(
    path: Path, text: str, report: LintReport, version: str | None
) -> Iterator[tuple[str, LintReport]]:
    """Texts without one of the findings."""
    for checked in report.checked:
        for finding in checked.findings:
            if finding.level is Level.NOTE or finding.place.file != report.target:
                continue
            for changed, names in _Edit(text, path.suffix, finding, checked).ways():
                try:
                    again = lint_target(str(path), version, changed)
                except UserError:
                    continue
                if changed != text and _holds(finding, report, again, names):
                    yield changed, again


def _holds(finding: Finding, before: LintReport, after: LintReport, names: set[str]) -> bool:
    """Whether the finding is gone, nothing as bad has come, and only `names` differ."""
    old, new = (Counter((f.rule, f.level) for f in one.findings) for one in (before, after))
    bad = (Level.ERROR,) if finding.level is Level.ERROR else (Level.ERROR, Level.WARNING)
    key = finding.rule, finding.level
    worse = any(level in bad and new[rule, level] > old[rule, level] for rule, level in new)
    said = [{frozenset(_said(c, names).items()) for c in one.checked} for one in (before, after)]
    return new[key] < old[key] and not worse and said[0] == said[1]


def _said(checked: Checked, names: set[str]) -> dict[str, str]:
    """What is read, but for `names` and what lies below them."""
    settings = checked.configuration.settings
    values: Mapping[str, Any] = getattr(settings, "given", settings).values
    said = {key: str(getattr(value, "value", value)) for key, value in values.items()}
    return {k: v for k, v in said.items() if not names & set(map(bare, k.split(".")))}


class _Edit:
    """The ways of one finding through a text."""

    def __init__(self, text: str, suffix: str, finding: Finding, checked: Checked) -> None:
        self.text, self.suffix, self.finding = text, suffix, finding
        self.entries, self.at = entries(text, suffix), offset_of(text, finding.place)
        read, file = checked.configuration.settings, finding.place.file
        places = getattr(read, "places", None) or {k: v.place for k, v in read.values.items()}
        self.places = {k: offset_of(text, p) for k, p in places.items() if p.file == file}
        self.said = _said(checked, set())
        starts = [start for start in self.entries if start <= self.at] or [*self.entries][:1]
        self.here = self.entries[max(starts)] if starts else None

    def ways(self) -> Iterator[Change]:
        """Every way of the fix in its order; of what does nothing, that which drops it first."""
        ways = re.split(r",? or ", self.finding.fix)
        if self.finding.level is Level.WARNING:
            ways.sort(key=lambda way: not way.startswith("drop"))
        for way in ways:
            found = _WAY.fullmatch(_REMARK.sub("", way).strip())
            if found and self.here:
                yield from self._way(self.here, {k: v for k, v in found.groupdict().items() if v})

    def _way(self, here: Entry, way: dict[str, str]) -> Iterator[Change]:
        match way:
            case {"drop": text}:
                yield from self._dropped(here, text)
            case {"meant": name} | {"written": name}:
                yield self._meant(here, name), self._names(here, name)
            case {"words": words}:
                names = self._names(here, *words.split())
                yield self._changed((here.start, here.stop, words)), names
            case {"off": name}:
                yield from (*self._set(here, name, "false"), *self._dropped(here, name))
            case {"on": name}:
                yield from self._set(here, name, "true")
            case {"name": name, "to": value}:
                yield from self._set(here, name, value)
            case {"value": value} if not _MATHEMATICS.match(here.name):
                yield self._put(here, value), self._names(here)
            case {"blanks": _}:
                words = self._value(here).strip("\"'").replace(",", " ")
                yield self._changed((here.value, here.stop, words)), self._names(here)

    def _find(self, name: str) -> Entry | None:
        """The option where it was read, or the nearest that is called so or begins so."""
        wanted = name.lstrip("-").replace("-", "_")
        read = (p for k, p in self.places.items() if f".{k}".endswith(f".{wanted}"))
        at = next((start for start in read if start in self.entries), None)
        if at is not None:
            return self.entries[at]
        near = sorted(self.entries.values(), key=lambda one: abs(one.start - self.at))
        same = (one for one in near if one.name == bare(name))
        return next(same, next((e for e in near if e.name.startswith(f"{wanted}_")), None))

    def _value(self, entry: Entry) -> str:
        return self.text[entry.value : entry.stop]

    def _names(self, entry: Entry, *more: str) -> set[str]:
        """What the settings may call an option."""
        read = (key for key, at in self.places.items() if entry.start <= at <= entry.stop)
        return set(map(bare, (entry.written, *read, *more)))

    def _changed(self, *spans: tuple[int, int, str]) -> str:
        text = self.text
        for start, stop, words in sorted(spans, reverse=True):
            text = text[:start] + words + text[stop:]
        return text

    def _meant(self, here: Entry, name: str) -> str:
        """The name, or the word of the value, that is most like it, as it was meant."""
        spans = [(here.start, here.name_stop)]
        for word in re.finditer(r"[\w.-]+", self._value(here)):
            spans.append((here.value + word.start(), here.value + word.end()))
        texts = [self.text[start:stop] for start, stop in spans]
        best = texts.index(difflib.get_close_matches(name, texts, 1, 0.0)[0])
        return self._changed((*spans[best], name if best else _like(here.written, name)))

    def _dropped(self, here: Entry, text: str) -> Iterator[Change]:
        """Options, or items of a list; with a list that is empty then goes its option."""
        items = text.split(", ")
        near = sorted(self.entries.values(), key=lambda one: abs(one.start - here.start))
        found = [here] if re.match("it$|the ", text) else list(filter(None, map(self._find, items)))
        if found:
            if any(_MATHEMATICS.match(e.name) for e in found) and self.finding.verdict.illegal:
                return
            names = set().union(*map(self._names, found))
            yield self._changed(*map(self._taken_out, found)), names
            return
        holds = [one for one in near if set(items) <= set(re.findall(r"[\w-]+", self._value(one)))]
        for entry in holds[:4]:
            value = self._value(entry)
            for item in items:
                value = _without(value, item)
            change, names = (entry.value, entry.stop, value), self._names(entry)
            if re.search(r"\w", value):
                yield self._changed(change), names
                continue
            granularity = (
                self._find("recompute_granularity") if "recompute" in entry.name else entry
            )
            if granularity is not None:
                both = {one.start: self._taken_out(one) for one in (entry, granularity)}
                yield self._changed(*both.values()), names | self._names(granularity)

    def _taken_out(self, entry: Entry) -> tuple[int, int, str]:
        """An option with the comma, the blanks or the line that were its own."""
        text, start, stop = self.text, entry.start, entry.stop
        switch = any(self.said[k] == "True" for k, at in self.places.items() if at == start)
        if switch and not entry.keyed and self._value(entry).lower() not in ("true", "false"):
            stop = entry.name_stop  # the words after it are not its own
        start = (
            re.search(r"\bexport[ \t]+$", text[:start]) or re.search("$", text[:start])
        ).start()
        comma = re.compile(r"[ \t]*,[ \t]*").match(text, stop) if entry.keyed else None
        if entry.keyed and not comma and text[:start].rstrip().endswith(","):
            return text[:start].rstrip().rindex(","), stop, ""
        stop = comma.end() if comma else stop
        line, rest = text.rfind("\n", 0, start) + 1, _REST.match(text, stop)
        if text[line:start].strip() or rest is None:
            before = re.search(r"([ \t]|\\\n)*$", text[:start])
            return (before.start() if before and not comma else start), stop, ""
        before = re.search(r"[ \t]*\\\n$", text[:line])
        if before and not rest["goes_on"]:  # the command ends a line earlier
            return before.start(), rest.end(), "\n" * rest[0].endswith("\n")
        return line, rest.end(), ""

    def _put(self, entry: Entry, value: str) -> str:
        return self._changed((entry.value, entry.stop, self._spelled(entry, value)))

    def _spelled(self, entry: Entry, value: str) -> str:
        """A value as its format and the entry write one."""
        old = self._value(entry)
        if value.lower() in ("true", "false"):
            return (
                value.title() if self.suffix == ".py" or old in ("True", "False") else value.lower()
            )
        if not entry.keyed or re.match(r"[\d\"\[.-]", value):
            return value
        needed = self.suffix in (".py", ".toml", ".json") or entry.written[0] == '"'
        quote = old[0] if old[:1] in ("'", '"') else '"' * needed
        return f"{quote}{value}{quote}"

    def _set(self, here: Entry, name: str, value: str) -> Iterator[Change]:
        """The option with another value; one that is not there, beside what was found."""
        if _MATHEMATICS.match(bare(name)):
            return
        for key, at in self.places.items():  # as the document spells it: activations_checkpoint_…
            end = next((n for n in range(len(key)) if here.name.endswith(key[n:])), 0)
            if at == here.start and end and name.startswith(key[:end]):
                name = here.name[: len(here.name) - len(key[end:])] + name[end:]
        entry = self._find(name)
        if entry is None:
            start, words = self._beside(here, name, value)
            yield self._changed((start, start, words)), {bare(name)}
            return
        inside = (e for e in self.entries.values() if entry.value < e.start < entry.stop)
        entry = next((e for e in inside if e.name == "enabled"), entry)
        yield self._put(entry, value), self._names(entry, name)

    def _beside(self, here: Entry, name: str, value: str) -> tuple[int, str]:
        """Where an option may stand beside another, and as what."""
        text, stop, (section, _, key) = self.text, here.stop, name.rpartition(".")
        indent = text[text.rfind("\n", 0, here.start) + 1 : here.start]
        between = text[here.name_stop : here.value] if here.value < stop else " "
        words = _like(here.written, name) + between + self._spelled(here, value)
        if not here.keyed:
            return stop, f" {words}"
        if self.suffix == ".toml" and section:
            header = re.search(rf"^\[{re.escape(section)}\].*\n", text, re.MULTILINE)
            above = "" if header else f"\n[{section}]\n"
            return header.end() if header else len(text), f"{above}{key} = {value}\n"
        if re.match(r"\s*,", text[stop:]) or text[: here.start].rstrip()[-1:] in ",{(":
            return stop, ", " + words if indent.strip() else f",\n{indent}{words}"
        return (text.find("\n", stop) + 1 or len(text) + 1) - 1, f"\n{indent}{words}"


def _like(written: str, name: str) -> str:
    """`name` with the dashes, quotes and sections of another."""
    quote, dashes, sections = re.match(r"([\"']?)([-+~]*)((?:\w+\.)*)", written).groups()  # type: ignore[union-attr]
    name = name.lstrip("-")
    if dashes == "--" and "_" not in written:
        name = name.replace("_", "-")
    return f"{quote}{dashes}{'' if '.' in name else sections}{name}{quote}"


def _without(value: str, item: str) -> str:
    """A list without an item, in whatever brackets, quotes or lines it stands."""
    found = re.search(
        rf"(\s*,\s*|\n\s*-\s*|\s+)?([\"']?)(?<![\w-]){re.escape(item)}(?![\w-])\2(\s*,\s*|[ \t]+)?",
        value,
    )
    if found is None:
        return value
    first = found[1] is None or "," in (found[3] or "")
    before = value[: found.end(1) if first and found[1] else found.start()]
    return before + ("" if first else found[3] or "") + value[found.end() :]
