"""What is found in a shell script: its commands, the files that it writes, what stays unknown."""

from collections.abc import Mapping

from msgspec import Struct, field

from advisor.base.place import Place
from advisor.reading.words import Word


class Command(Struct, frozen=True, kw_only=True):
    """One program that is run, its words after expansion.

    environment: what was exported before it or stands in front of it.
    branch: conditions under which it is run, as they are written.
    launchers: words of srun, torchrun and the like that stand before the program's own.
    """

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
    """Everything that reading gave; `directives` are the words behind #SBATCH."""

    commands: list[Command] = field(default_factory=list)
    files: list[WrittenFile] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    directives: list[Word] = field(default_factory=list)
