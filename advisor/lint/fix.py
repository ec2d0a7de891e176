"""`advise lint --fix`: the fix of a finding, written into the text that it was found in. Its forms:
`drop X, Y`, `use X V`, `X = V`, `did you mean X?`, ways apart by `, or `. Each is tried in memory:
it counts where the finding is gone, nothing as bad has come and no other option has changed."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from difflib import get_close_matches, unified_diff
from pathlib import Path
from typing import Any, Final, NamedTuple

from advisor.base.documents import read_text
from advisor.base.errors import UserError
from advisor.base.rule import Finding, Level
from advisor.lint.entries import BREAK, Entry, bare, entries, offset_of
from advisor.lint.target import LintReport, lint_target
from advisor.reading.read_configuration import Checked

_MOST: Final = 100  # texts that are tried for a file
_MATHEMATICS: Final = re.compile(
    r"(?!recompute|.*(checkpoint|offload))(.*(precision|dtype|bf16|fp8|fp4|dropout|jitter|router|bias"
    r"|capacity|optimizer|(?<!micro_)batch|seq_len|num_layers$|experts|hidden|heads"
    r"|(?<!expert_model_)parallel_size|_degree)"
    r"|lr$|(?!.*virtual).*stage$)"
)
"""Options that change what is trained, or over how many GPUs: only their user sets them."""
_WAY: Final = re.compile(
    r"(?:did you mean |write (?=--))(?P<meant>\S+)|use (?P<words>--.*)|set (?P<on>\w+)"
    r"|(?:keep .*, )?(?:drop|leave|unset) (?P<drop>.+?)(?: out)?(?: from \w+)?"
    r"|add (?P<item>\w+) to (?P<list>\w+)|(?:turn|switch) (?P<off>\S+) off"
    r"|(?:use )?(?P<value>[\w\".-]+)"
    r"|(?:(?:use|set|add|write|give|export) )?(?P<name>[\w.-]+)(?:: | = |=| )(?P<to>\S+)"
    r"|(?P<blanks>separate the modules by spaces)"
)
_CHOICES: Final = re.compile(r"use \w+(, \w+)+ or \w+")
"""Of these only the user chooses."""
_REMARK: Final = re.compile(r" \([^)]*\)|: (?=\w+ \w+ ).*|, and .*|\?$")
_AROUND: Final = [
    (re.compile(before + "$"), re.compile(after))
    for before, after in (
        (r",\s*", r"(?=\s*[}\])])"),
        (rf"[ \t]*{BREAK}[ \t]*", r"(?=[ \t]*(?:#.*)?(?:\r?\n|$))"),
        (r"(?m:^)[ \t]*(?:export )?", rf",?[ \t]*(?:{BREAK}|(?:#.*)?(?:\r?\n|$))"),
        (r"", r"[ \t]*,[ \t]*"),
        (r"(?m:^)(?P<kept>[ \t]*)", r"[ \t]+(?=\S)"),
        (rf"(?:[ \t]|{BREAK})*", r""),
    )
]
"""What goes with an option: the break before it where its command ends, its line, a comma."""
Change = tuple[str, set[str]]
"""A text, and the names of the options that are not what they were."""


class Fixed(NamedTuple):
    """A text before and after its fixes, and what is left to be said of it."""

    before: str
    after: str
    report: LintReport

    @property
    def diff(self) -> str:
        """Unified; empty where nothing is changed."""
        old, new = self.before.splitlines(True), self.after.splitlines(True)
        lines = unified_diff(old, new, self.report.target, self.report.target)
        cut = "\n\\ No newline at end of file\n"
        return "".join(x if x.endswith("\n") else x + cut for x in lines)


def fixed(path: Path, framework_version: str | None = None) -> Fixed:
    """A file with every fix that holds."""
    before = after = read_text(path)
    report, tried = lint_target(str(path), framework_version, after), {before}
    while better := next(_better(path, after, report, framework_version, tried), None):
        after, report = better
    return Fixed(before, after, report)


def _better(
    path: Path, text: str, report: LintReport, version: str | None, tried: set[str]
) -> Iterator[tuple[str, LintReport]]:
    """Texts without one of the findings, that were not tried before."""
    found = {f: c for c in report.checked for f in c.findings if f.place.file == report.target}
    for finding in sorted(found, key=lambda f: (list(Level).index(f.level), f.fix[:5] != "drop ")):
        if finding.level is Level.NOTE:
            return
        for changed, names in _Edit(text, path.suffix, finding, found[finding]).ways():
            if changed in tried or len(tried) > _MOST:
                continue
            tried.add(changed)
            with suppress(UserError):
                again = lint_target(str(path), version, changed)
                if _holds(finding, report, again, names):
                    yield changed, again


def _holds(finding: Finding, before: LintReport, after: LintReport, names: set[str]) -> bool:
    """Whether the finding is gone, nothing as bad has come, and only `names` differ."""
    old, new = (Counter((f.level, f.rule) for f in one.findings) for one in (before, after))
    worse = any(one[0] in (Level.ERROR, finding.level) and new[one] > old[one] for one in new)
    said = [{frozenset(_said(c, names).items()) for c in one.checked} for one in (before, after)]
    key = finding.level, finding.rule
    return new[key] < old[key] and not worse and said[0] == said[1]


def _said(checked: Checked, names: Set[str] = frozenset()) -> dict[str, str]:
    """What is read, less `names` and what lies below them."""
    settings = checked.configuration.settings
    values: Mapping[str, Any] = getattr(settings, "given", settings).values
    stated = {key: one for key, one in values.items() if not getattr(one, "omitted", False)}
    said = {key: str(getattr(value, "value", value)) for key, value in stated.items()}
    return {k: v for k, v in said.items() if not names & set(map(bare, k.split(".")))}


class _Edit:
    """The ways of one finding through a text."""

    def __init__(self, text: str, suffix: str, finding: Finding, checked: Checked) -> None:
        self.text, self.suffix, self.finding = text, suffix, finding
        at = offset_of(text, finding.place)
        found = entries(text, suffix)
        here = max((one.start for one in found if one.start <= at), default=0)
        self.near = sorted(found, key=lambda one: (one.start != here, abs(one.start - at)))
        read, file = checked.configuration.settings, finding.place.file
        values = getattr(read, "values", {})
        its_own = {k: v.place for k, v in values.items() if not getattr(v, "omitted", False)}
        places = getattr(read, "places", its_own)
        self.places = {k: offset_of(text, p) for k, p in places.items() if p.file == file}
        self.said = _said(checked)

    def ways(self) -> Iterator[Change]:
        """Every way of the fix in its order; of what does nothing, that which drops it first."""
        ways = re.split(r",? or ", _CHOICES.sub("", self.finding.fix)) if self.near else []
        if self.finding.level is Level.WARNING:
            ways.sort(key=lambda way: not way.startswith("drop"))
        for way in ways:
            found = _WAY.fullmatch(_REMARK.sub("", way).strip())
            if found:
                yield from self._way(self.near[0], found.lastgroup or "", found)

    def _way(self, here: Entry, kind: str, found: "re.Match[str]") -> Iterator[Change]:
        text, names = found[kind], self._names(here, *re.split(r"[ =]", found[kind]))
        match kind:
            case "drop":
                yield from self._dropped(here, text)
            case "meant":
                yield self._meant(here, text), names
            case "words":
                yield self._changed((here.start, here.stop, text)), names
            case "blanks":
                words = self._value(here).strip("\"'").replace(",", " ")
                yield self._changed((here.value, here.stop, words)), names
            case "off":
                yield from (*self._set(here, text, "false"), *self._dropped(here, text))
            case "on":
                yield from self._set(here, text, "true")
            case "list" if listed := self._find(text):
                value, item = self._value(listed), found["item"]
                more = f", {self._spelled(listed, item)}]" if value[-1] == "]" else f" {item}"
                yield self._changed((listed.value, listed.stop, value.rstrip("]") + more)), names
            case "to":
                yield from self._set(here, found["name"], text)
            case "value" if not _MATHEMATICS.match(here.name):
                yield self._changed((here.value, here.stop, self._spelled(here, text))), names

    def _find(self, name: str) -> Entry | None:
        """The option where it was read, or the nearest that is called so or begins so."""
        wanted = name.lstrip("-").replace("-", "_")
        read = {at for key, at in self.places.items() if f".{key}".endswith(f".{wanted}")}
        found = [one for one in self.near if one.start in read]
        found += [one for one in self.near if one.name == bare(name)]
        found += [one for one in self.near if one.name.startswith(f"{wanted}_")]
        return next(iter(found), None)

    def _value(self, entry: Entry) -> str:
        return self.text[entry.value : entry.stop]

    def _names(self, entry: Entry, *more: str) -> set[str]:
        """What the settings may call an option."""
        read = (key for key, at in self.places.items() if entry.start <= at <= entry.stop)
        about = re.findall(r"\w+", self.finding.reason)
        return set(map(bare, (entry.written, *read, *about, *more)))

    def _changed(self, *spans: tuple[int, int, str]) -> str:
        text = self.text
        for start, stop, words in sorted(set(spans), reverse=True):
            text = text[:start] + words + text[stop:]
        return text

    def _meant(self, here: Entry, name: str) -> str:
        """The name, or the word of the value, that is most like it, as it was meant."""
        words = re.finditer(r"[\w.-]+", self._value(here))
        spans = [(here.start, here.name_stop)]
        spans += ((here.value + word.start(), here.value + word.end()) for word in words)
        texts = [self.text[start:stop] for start, stop in spans]
        best = texts.index(get_close_matches(name, texts, 1, 0.0)[0])
        return self._changed((*spans[best], name if best else _like(here.written, name)))

    def _dropped(self, here: Entry, text: str) -> Iterator[Change]:
        """Options, or items of a list; with a list that is empty then goes its option."""
        items = text.split(", ")
        found = [here] if re.match("it$|the ", text) else list(filter(None, map(self._find, items)))
        if found:
            unsafe = any(_MATHEMATICS.match(one.name) for one in found)
            if not (unsafe and self.finding.verdict.illegal):
                yield self._taken_out(*found)
            return
        for entry in self.near:
            value, names = self._value(entry), self._names(entry)
            holds = set(items) <= set(re.findall(r"[\w-]+", value))
            if not holds or any(entry.value <= one.start < entry.stop for one in self.near):
                continue
            for item in items:
                value = _without(value, item)
            names |= {bare(k) for k, said in self.said.items() if all(i in said for i in items)}
            if re.search(r"\w", value):
                yield self._changed((entry.value, entry.stop, value)), names
                return
            switch = self._find("recompute_granularity") if "recompute" in entry.name else entry
            if switch is not None:
                yield self._taken_out(entry, switch)
            return
        read = [key for key, at in self.places.items() if at == here.start]
        if " " not in text and any(key.startswith("recompute_") for key in read):
            yield self._taken_out(here)  # its default list

    def _taken_out(self, *taken: Entry) -> Change:
        """Without options, and the comma, the blanks or the line that were their own."""
        spans: list[tuple[int, int]] = []
        for entry in sorted(set(taken), key=lambda one: one.start):
            start, stop = entry.start, entry.stop
            switch = any(self.said[k] == "True" for k, at in self.places.items() if at == start)
            if switch and not entry.keyed and self._value(entry).lower() not in ("true", "false"):
                stop = entry.name_stop  # the words after it are not its own
            if spans and not self.text[spans[-1][1] : start].strip(" \t\r\n,\\"):
                start = spans.pop()[0]
            spans.append((start, stop))
        return self._changed(*map(self._alone, spans)), set().union(*map(self._names, taken))

    def _alone(self, span: tuple[int, int]) -> tuple[int, int, str]:
        for before, after in _AROUND:
            left, right = before.search(self.text, 0, span[0]), after.match(self.text, span[1])
            if left and right:
                return left.start(), right.end(), left.groupdict().get("kept", "")
        return *span, ""

    def _spelled(self, entry: Entry, value: str) -> str:
        """A value as its format and the entry write one."""
        old = self._value(entry)
        if value.lower() in ("true", "false"):
            titled = self.suffix == ".py" or old in ("True", "False")
            return value.title() if titled else value.lower()
        if not entry.keyed or re.match(r"[\d\"\[.-]|None$", value):
            return value
        needed = self.suffix in (".py", ".toml", ".json") or entry.written[0] == '"'
        quote = old[0] if old[:1] in ("'", '"') else '"' * needed
        return f"{quote}{value}{quote}"

    def _set(self, here: Entry, name: str, value: str) -> Iterator[Change]:
        """The option with another value; one that is not there, next to what was found."""
        if _MATHEMATICS.match(bare(name)):
            return
        names = {bare(name)}
        for key, at in self.places.items():  # as the document spells it: activations_checkpoint_…
            end = next((n for n in range(len(key)) if here.name.endswith(key[n:])), 0)
            if at == here.start and end and name.startswith(key[:end]):
                name = here.name[: len(here.name) - len(key[end:])] + name[end:]
        entry = self._find(name)
        if entry is None:
            yield self._changed(self._added(here, name, value)), names
            return
        inside = (one for one in self.near if entry.value < one.start < entry.stop)
        entry = next((one for one in inside if one.name == "enabled"), entry)
        put = (entry.value, entry.stop, self._spelled(entry, value))
        yield self._changed(put), names | self._names(entry)

    def _added(self, here: Entry, name: str, value: str) -> tuple[int, int, str]:
        """An option next to another, in its form."""
        text, stop, (section, _, key) = self.text, here.stop, name.rpartition(".")
        indent = text[text.rfind("\n", 0, here.start) + 1 : here.start]
        between = text[here.name_stop : here.value] if here.value < stop else " "
        words = _like(here.written, name) + between + self._spelled(here, value)
        if not here.keyed:
            return stop, stop, f" {words}".removesuffix(" true")
        end = "\r\n" if "\r\n" in text else "\n"
        if self.suffix == ".toml" and section:
            header = re.search(rf"^\[{re.escape(section)}\].*\n", text, re.MULTILINE)
            stop, above = (header.end(), "") if header else (len(text), f"{end}[{section}]{end}")
            return stop, stop, f"{above}{key} = {value}{end}"
        if re.match(r"\s*,", text[stop:]) or text[: here.start].rstrip().endswith((",", "{", "(")):
            return stop, stop, ", " + words if indent.strip() else f",{end}{indent}{words}"
        stop = re.compile("$", re.MULTILINE).search(text.replace("\r", "\n"), stop).start()  # type: ignore[union-attr]
        return stop, stop, f"{end}{indent}{words}"


def _like(written: str, name: str) -> str:
    """`name` with the dashes, quotes and sections of another."""
    quote, dashes, sections = re.match(r"([\"']?)([-+~]*)((?:\w+\.)*)", written).groups()  # type: ignore[union-attr]
    name = name.lstrip("-")
    if dashes == "--" and "_" not in written:
        name = name.replace("_", "-")
    return f"{quote}{dashes}{'' if '.' in name else sections}{name}{quote}"


def _without(value: str, item: str) -> str:
    """A list without an item, in whatever brackets, quotes or lines it stands."""
    word = rf"([\"']?)(?<![\w-]){re.escape(item)}(?![\w-])\2"
    found = re.search(rf"(\s*,\s*|\r?\n\s*-\s*|\s+)?{word}(\s*,\s*|[ \t]+)?", value)
    if found is None:
        return value
    first = found[1] is None or "," in (found[3] or "")
    before = value[: found.end(1) if first and found[1] else found.start()]
    return before + ("" if first else found[3] or "") + value[found.end() :]
