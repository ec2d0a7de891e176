"""What is found in a shell script: its commands, the files that it writes, what stays unknown."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.limits import MOST_DEPTH, MOST_STEPS
from advisor.base.place import Place
from advisor.reading.shell.state import State, Variable
from advisor.reading.words import Piece, Word, split_words


class ShellCommand(Struct, frozen=True, kw_only=True):
    """One program that is run, its words after expansion. environment: what was exported before it
    or stands in front of it. branch: conditions under which it is run, as they are written."""

    words: tuple[Word, ...]
    place: Place
    environment: Mapping[str, Word]
    branch: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The words without their places."""
        return tuple(word.text for word in self.words)


class WrittenFile(Struct, frozen=True, kw_only=True):
    """A here-document and the name of the file that it becomes, or of the program that reads it."""

    name: str
    content: Word
    branch: tuple[str, ...] = ()


class Note(Struct, frozen=True):
    """What cannot be known, and where it stands."""

    text: str
    place: Place


class Script(Struct):
    """Everything that reading it gave; `directives` are the words after #SBATCH, `texts` what its
    file holds and those that it names."""

    commands: list[ShellCommand] = field(default_factory=list)
    files: list[WrittenFile] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    directives: list[Word] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


class Record:
    """The commands found so far."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.script = Script()
        self._steps = self._depth = 0
        self._noted: set[Note] = set()
        self._seen: dict[object, int] = {}
        self.called: set[str] = set()
        self._assigned: dict[str, list[Variable]] = {}
        self._used: set[str] = set()

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
        """After a statement."""
        self._depth -= 1

    def add(self, command: ShellCommand) -> None:
        """Keep a command; found again with the same words, it depends only on what both share."""
        values = tuple((name, value.text) for name, value in command.environment.items())
        key = (command.place, command.texts, values)
        commands = self.script.commands
        if key in self._seen:
            at = self._seen[key]
            shared = tuple(text for text in commands[at].branch if text in command.branch)
            commands[at] = replace(commands[at], branch=shared)
        elif command.words:
            self._seen[key] = len(commands)
            commands.append(command)

    def add_file(self, file: WrittenFile) -> None:
        """Keep a here-document."""
        key = (file.name, file.content.place, file.content.text)
        if key not in self._seen:
            self._seen[key] = len(self.script.files)
            self.script.files.append(file)

    def note(self, text: str, place: Place) -> None:
        """Say what cannot be known."""
        note = Note(text, place)
        if note not in self._noted:
            self._noted.add(note)
            self.script.notes.append(note)

    def assigned(self, name: str, variable: Variable) -> None:
        """Remember what a variable was given, for scripts that only set options."""
        self._assigned.setdefault(name, []).append(variable)

    def uses(self, text: str) -> None:
        """Variables that a command's text names."""
        self._used.update(re.findall(r"\$\{?[#!]?(\w+)", text))

    def fragments(self, states: Sequence[State]) -> None:
        """Lists of options that no command of the script uses: another file runs them."""
        environment = states[0].environment() if states else {}
        unused = (given for name, given in self._assigned.items() if name not in self._used)
        for variable in chain.from_iterable(unused):
            words = tuple(split_words(_pieces(variable)))
            if any(w.text.startswith("--") for w in words):
                self.add(ShellCommand(words=words, place=words[0].place, environment=environment))


def _pieces(variable: Variable) -> Iterator[Piece | None]:
    for value in variable.values or ():
        yield from (piece.splitting(not variable.array) for piece in value.pieces)
        yield None
