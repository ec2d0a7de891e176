"""Reads a shell script into its commands, the files that it writes, and what stays unknown."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.limits import MOST_DEPTH, MOST_STEPS
from advisor.base.place import Place
from advisor.reading.shell.expansion import Source
from advisor.reading.shell.script import Command, Note, Script, WrittenFile
from advisor.reading.shell.state import State, Variable
from advisor.reading.shell.syntax import TOO_DEEP, assigned_in, first_error, parsed, too_deep
from advisor.reading.shell.walk import Walk
from advisor.reading.words import Piece, Word, split_words, word

if TYPE_CHECKING:
    from tree_sitter import Node


def read_shell(text: str, file: str) -> Script:
    """The commands of a shell text; what cannot be read is a note.

    >>> [c.texts for c in read_shell("N=4; run --n $N 2>&1 | tee log", "a.sh").commands]
    [('run', '--n', '4'), ('tee', 'log')]
    """
    return read(word(text, Place(file, 1, 1)))


def read(content: Word) -> Script:
    """Every command of a script, each as it is run on each way through it."""
    reading = Reading(content.place.file)
    states = reading.text(content, [State()])
    reading.uncalled_functions(states)
    reading.fragments(states)
    return reading.script


class Reading:
    """The commands found so far."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.script = Script()
        self._steps = self._depth = 0
        self._noted: set[Note] = set()
        self._seen: dict[object, int] = {}
        self._called: set[str] = set()
        self._assigned: dict[str, list[Variable]] = {}
        self._used: set[str] = set()

    def text(self, content: Word, states: list[State]) -> list[State]:
        """Walk a whole text: a script, or what stands behind `bash -c`."""
        source = Source(content)
        tree = parsed(content.text)
        for state in states:
            state.declared |= assigned_in(tree.root_node, source)
        if tree.root_node.has_error:
            place = source.place(first_error(tree.root_node))
            self._note(
                "this is not complete shell text; the rest is read as far as possible", place
            )
        read = []
        for node in tree.root_node.children:
            if too_deep(node):
                self.note(TOO_DEEP, source, node)
            else:
                read.append(node)
        return Walk(self, source).statements(read, states)

    def spend(self, words: Iterable[Word], steps: int = 0) -> None:
        """Count the steps of following a script; UserError beyond the limit."""
        self._steps += steps + sum(len(w.pieces) + len(w.text) // 100 for w in words)
        if self._steps > MOST_STEPS:
            reason = f"has too many branches to follow (more than {MOST_STEPS:,} steps)"
            raise UserError("lint", self._file, reason, "give only the training command")

    def enter(self) -> bool:
        """Whether a statement within the others may be followed; if so, `leave` it after."""
        deeper = self._depth < MOST_DEPTH
        self._depth += deeper
        return deeper

    def leave(self) -> None:
        """Behind a statement."""
        self._depth -= 1

    def add(self, command: Command) -> None:
        """Keep a command; found again with the same words, it depends only on what both share."""
        values = tuple((name, value.text) for name, value in command.environment.items())
        key = (command.place, command.texts, values)
        commands = self.script.commands
        if key in self._seen:
            at = self._seen[key]
            commands[at] = replace(commands[at], branch=_shared(commands[at], command))
        elif command.words:
            self._seen[key] = len(commands)
            commands.append(command)

    def add_file(self, file: WrittenFile) -> None:
        """Keep a here-document."""
        key = (file.name, file.content.place, file.content.text)
        if key not in self._seen:
            self._seen[key] = len(self.script.files)
            self.script.files.append(file)

    def _note(self, text: str, place: Place) -> None:
        note = Note(text, place)
        if note not in self._noted:
            self._noted.add(note)
            self.script.notes.append(note)

    def note(self, text: str, source: Source, node: "Node") -> None:
        """Say what cannot be known."""
        self._note(text, source.place(node))

    def calls(self, name: str) -> None:
        """A function was called."""
        self._called.add(name)

    def assigned(self, name: str, variable: Variable) -> None:
        """Remember what a variable was given, for scripts that only set options."""
        self._assigned.setdefault(name, []).append(variable)

    def uses(self, text: str) -> None:
        """Variables that a command's text names."""
        self._used.update(re.findall(r"\$\{?[#!]?(\w+)", text))

    def uncalled_functions(self, states: Sequence[State]) -> None:
        """Bodies of functions that the script defines and leaves to others to call."""
        for state in states[:1]:
            for name, (source, body) in list(state.functions.items()):
                if name not in self._called:
                    Walk(self, source).statements([body], [state.copy()])

    def fragments(self, states: Sequence[State]) -> None:
        """Lists of options that no command of the script uses: another file runs them."""
        environment = states[0].environment() if states else {}
        for name, variables in self._assigned.items():
            if name in self._used:
                continue
            for variable in variables:
                words = _as_words(variable)
                if any(w.text.startswith("--") for w in words):
                    self.add(Command(words=words, place=words[0].place, environment=environment))


def _shared(one: Command, other: Command) -> tuple[str, ...]:
    return tuple(text for text in one.branch if text in other.branch)


def _as_words(variable: Variable) -> tuple[Word, ...]:
    pieces: list[Piece | None] = []
    for value in variable.values or ():
        pieces += [replace(piece, splits=not variable.array) for piece in value.pieces]
        pieces.append(None)
    return tuple(split_words(pieces))
