"""`advise lint`: a file or a command line becomes documents, and every framework is asked."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_text
from advisor.base.errors import UserError, show, show_path
from advisor.base.limits import MOST_COMMAND, MOST_CONFIG_BYTES
from advisor.base.place import Place
from advisor.base.rule import Finding, Level, Verdict
from advisor.frameworks.dialect_rows import LAUNCHERS, dialect_of
from advisor.frameworks.readers import readers_of
from advisor.frameworks.registry import framework_of_recipe
from advisor.lint.ignored import without_ignored
from advisor.lint.left_out import left_out, with_left_out
from advisor.models.presets import load_model
from advisor.reading.command_options import num_gpus, options
from advisor.reading.document_tree import Tree, read_tree
from advisor.reading.inherited import DEFAULTS, with_inherited
from advisor.reading.python_source import read_python
from advisor.reading.read_configuration import (
    EXPANDABLE_SEGMENTS,
    Checked,
    Document,
    LentJob,
    ReadConfiguration,
    Reader,
    expandable_segments,
)
from advisor.reading.shell import Note, Script, ShellCommand, read_shell
from advisor.reading.words import Word, word
from advisor.request.recipes import load_recipes, preset_of, with_split

COMMAND_LINE: Final = "command line"
_TREES: Final = (".yaml", ".yml", ".json", ".toml")
_MOST: Final = 64


class LintReport(Struct, frozen=True, kw_only=True):
    """What one target holds, each with its findings; ignored: those that comments ignore."""

    target: str
    checked: tuple[Checked, ...]
    notes: tuple[Note, ...] = ()
    ignored: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them once, worst first, then as they stand in the file."""
        order = list(Level)
        found = {(f.rule, f.reason, f.place): f for c in self.checked for f in c.findings}
        return tuple(sorted(found.values(), key=lambda f: (order.index(f.level), f.place)))

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is in no prediction, or was not read, each once."""
        files = frozenset(Path(c.configuration.place.file).name for c in self.checked)
        found = (one for c in self.checked for one in left_out(c.configuration, files))
        return tuple(dict.fromkeys((*found, *(note.text for note in self.notes))))

    @property
    def verdict(self) -> str:
        """OK only where everything was read and is modelled; empty where findings say it all."""
        if not self.left_out:
            return "" if self.findings else "OK       nothing to report"
        bad = {f.verdict for f in self.findings} - {Verdict.NOTE, Verdict.NOT_MODELLED}
        start = "" if bad else "no fault found in what was read; "
        return f"{start}not included: {', '.join(self.left_out)}"

    @property
    def exit_code(self) -> int:
        """1 where there is an error or a warning, 0 where there are at most notes."""
        return int(any(finding.level is not Level.NOTE for finding in self.findings))


class NothingToLintError(UserError):
    """A text that holds no setting of a known framework."""


class ReadTarget(Struct, frozen=True, kw_only=True):
    """The configurations of a target, each with the reader that understands it."""

    name: str
    configurations: tuple[tuple[Reader, ReadConfiguration], ...]
    notes: tuple[Note, ...]
    texts: Mapping[str, str]


def lint_target(
    target: str | Sequence[str], framework_version: str | None = None, text: str | None = None
) -> LintReport:
    """Check a file (shell script, YAML, JSON, TOML, Python), a command line, or its split words.
    text: what the file is read as, instead of what it holds. framework_version: by default the one
    that the keys tell, or the newest. UserError where no framework knows a setting in it."""
    read = read_target(target, text)
    found = (reader.check(one, framework_version) for reader, one in read.configurations)
    every = tuple(map(with_left_out, found))
    checked, ignored = without_ignored(every, read.texts)
    return LintReport(target=read.name, checked=checked, notes=read.notes, ignored=ignored)


def read_target(target: str | Sequence[str], text: str | None = None) -> ReadTarget:
    """The configurations in a file or a command line; UserError where there are none."""
    try:
        name, documents, script = _documents(target, text)
    except (RecursionError, MemoryError):
        name = show(target) if isinstance(target, str) else COMMAND_LINE
        raise UserError("lint", name, "is nested too deep to be followed") from None
    found = list(islice(_asked(documents, script), _MOST))
    if not found:
        _refuse_programs(name, script)
        unread = "".join(f"; {note.place} {note.text}" for note in script.notes[:1])
        give = f"give flags, a launch script or a configuration file{unread}"
        raise NothingToLintError("lint", name, "holds no setting of a known framework", give)
    notes = tuple(dict.fromkeys((*script.notes, *(note for _, c in found for note in c.notes))))
    return ReadTarget(name=name, configurations=tuple(found), notes=notes, texts=script.texts)


def _refuse_programs(name: str, script: Script) -> None:
    """UserError where programs run with options that are no settings: those are somewhere else."""
    for command in script.commands:
        program = next((text for text in command.texts if text.endswith(".py")), None)
        if program is None:
            continue
        given = ", ".join(dict.fromkeys(one.name for one in options(command.words)))
        read = f"with {given}" if given else "without options"
        relation = (
            f"runs {show(program)} in line {command.place.line} {read}: batch, precision, "
            "sharding and recompute of a known framework are missing"
        )
        give = f"give the file that has them ({show(program)}, YAML, JSON or TOML), or the options"
        raise NothingToLintError("lint", name, relation, give)


def _asked(
    documents: Sequence[Document], script: Script
) -> Iterator[tuple[Reader, ReadConfiguration]]:
    commands = [one for one in documents if isinstance(one, ShellCommand)]
    named = {Path(f).name: dialect_of(one) for one in commands for f in _file_names(one)}
    for document in documents:
        # a dialect's command may name DeepSpeed's or Accelerate's file too
        own = isinstance(document, Tree) and LAUNCHERS.isdisjoint(document.values)
        spoken = named.get(Path(document.place.file).name, "") if own else ""
        for reader in readers_of(document, spoken):
            for configuration in reader.read(document):
                if isinstance(document, ShellCommand):
                    of_slurm = script.directives
                    first = () if hasattr(reader, "cycle") else of_slurm  # engines may have GPUs
                    configuration = replace(
                        configuration,
                        branch=document.branch,
                        names_files=frozenset(_file_names(document)),
                        num_gpus=num_gpus(document, first)
                        or configuration.num_gpus
                        or num_gpus(document, of_slurm),
                        world_size=configuration.num_gpus
                        or num_gpus(document, of_slurm, sure=True),
                    )
                exported = expandable_segments(_environment(document, script))
                if exported is not None:
                    values = {EXPANDABLE_SEGMENTS: exported, **configuration.values}
                    configuration = replace(configuration, values=values)
                lent, unread = _lent(configuration), configuration.unread
                if configuration.recipe and not (lent and lent.certain):
                    unread = (*unread, Note("the recipe that it changes", configuration.place))
                yield reader, replace(configuration, lent=lent, unread=unread)


def _lent(configuration: ReadConfiguration) -> LentJob | None:
    """The recipe that a configuration names; else the one of its model that pretrains on most."""
    texts = {text.rpartition(".")[2].removesuffix("_config") for text in configuration.recipe}
    recipes = load_recipes(configuration.model) if configuration.model and texts else ()
    its = [r for r in recipes if framework_of_recipe(r.framework) == configuration.framework]
    if not its:
        return None
    recipe = max(its, key=lambda one: (one.name in texts, one.task == "pretrain", one.num_gpus))
    preset, certain = with_split(preset_of(recipe)), recipe.name in texts
    model = preset.configure(load_model(preset.model))
    return LentJob(model, preset.layout, preset.config, preset.shipped, certain)


def _environment(document: Document, script: Script) -> dict[str, tuple[str, Place]]:
    """Variables of a command, or of those that read a file, with their places."""
    if isinstance(document, ShellCommand):
        commands = [document]
    else:
        file = document.place.file
        commands = [one for one in script.commands if reads(_file_names(one), one.place.file, file)]
    return {name: (w.text, w.place) for one in commands for name, w in one.environment.items()}


def reads(names: Iterable[str], script: str, file: str) -> bool:
    """Whether a command that names `names` reads a file, or the script that runs it holds it."""
    return file == script or Path(file).name in map(os.path.basename, names)


def _documents(
    target: str | Sequence[str], instead: str | None
) -> tuple[str, list[Document], Script]:
    words = [target] if isinstance(target, str) else list(target)
    if len(words) != 1:
        if sum(len(text) + 1 for text in words) > MOST_COMMAND:
            reason = f"is longer than {MOST_COMMAND:,} characters"
            raise UserError("lint", COMMAND_LINE, reason, "give only the flags that matter")
        starts = accumulate((len(text) + 1 for text in words), initial=1)
        placed = (Place(COMMAND_LINE, 1, column) for column in starts)
        command = ShellCommand(
            words=tuple(map(word, words, placed)), place=Place(COMMAND_LINE, 1, 1), environment={}
        )
        return COMMAND_LINE, [command], Script()
    text = words[0]
    if len(text) < 4096 and "\n" not in text and os.path.exists(text):
        return show_path(text), *_file(Path(text), instead)
    if "=" not in text and not text.lstrip().startswith("-") and not {" ", "\n"} & set(text):
        raise UserError("lint", show_path(text), "is neither a file nor flags")
    return COMMAND_LINE, *_shell(text, COMMAND_LINE)


def _file(path: Path, text: str | None) -> tuple[list[Document], Script]:
    if path.suffix in (*_TREES, ".py"):
        text = read_text(path, MOST_CONFIG_BYTES) if text is None else text
        content = word(text, Place(show_path(path), 1, 1))
        document = _document(content, path.suffix, path.parent)
        if document is None:
            raise UserError("lint", show_path(path), "holds no mapping of settings")
        embedded = None
        if path.suffix in (".yaml", ".yml"):
            from advisor.lint.embedded import commands_in

            embedded = commands_in(text, show_path(path))
        commands, script = _shell(embedded, show_path(path)) if embedded else ([], Script())
        script.texts[show_path(path)] = text
        texts = _texts(_said(document)) if isinstance(document, Tree) else ()
        names = dict.fromkeys(filter(_names_tree, texts))
        return [document, *commands, *_named_files(names, path.parent, script)], script
    text = read_text(path) if text is None else text
    documents, script = _shell(text, show_path(path), path.parent)
    script.texts[show_path(path)] = text
    names = dict.fromkeys(name for one in script.commands for name in _file_names(one))
    return [*documents, *_named_files(names, path.parent, script)], script


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _names_tree(text: str) -> bool:
    return text.endswith(_TREES) and len(text) <= 255


def _named_files(names: Iterable[str], folder: Path, script: Script) -> Iterator[Document]:
    """Configurations that a document names, in its own folder or in the one where it is run."""
    paths = ([path for path in (folder / name, Path(name)) if path.is_file()] for name in names)
    for path in (found[0] for found in paths if found):
        place = Place(show_path(os.path.normpath(path)), 1, 1)
        try:
            text = script.texts[place.file] = read_text(path, MOST_CONFIG_BYTES)
            document = _document(word(text, place), path.suffix, path.parent)
        except UserError as error:
            script.notes.append(Note(f"this file is not read: {error}", place))
            continue
        if document is not None:
            yield document


def _file_names(command: ShellCommand) -> Iterator[str]:
    """Words of a command and its environment that name a configuration."""
    texts = (*command.texts, *(word.text for word in command.environment.values()))
    return filter(_names_tree, (text.rpartition("=")[2] for text in texts))


def _document(content: Word, suffix: str, folder: Path | None = None) -> Document | None:
    if suffix == ".py":
        return read_python(content)
    tree = read_tree(content, suffix)
    return with_inherited(tree, folder) if tree is not None and folder is not None else tree


def _said(tree: Tree) -> dict[str, Any]:
    """What it holds but the files that it inherits, which are read."""
    return {name: value for name, value in tree.items() if name != DEFAULTS}


def _shell(
    text: str | Word, file: str, folder: Path | None = None
) -> tuple[list[Document], Script]:
    """Commands of a script, and the files that it writes."""
    plain = re.sub("\r\n", "\n", text) if isinstance(text, str) else text
    script = read_shell(plain, file, folder)
    documents: list[Document] = list(script.commands)
    for written in script.files:
        suffix = Path(written.name).suffix
        try:
            found = _document(written.content, suffix) if suffix in (*_TREES, ".py") else None
            documents += [] if found is None else [found]
        except UserError:
            text = f"{written.name} is not read because it holds variables"
            script.notes.append(Note(text, written.content.place))
    return documents, script
