"""Reads a shell script into its commands, the files that it writes, and what stays unknown."""

from advisor.base.place import Place
from advisor.reading.shell.expansion import Source
from advisor.reading.shell.script import Record, Script
from advisor.reading.shell.state import State
from advisor.reading.shell.walk import Walk
from advisor.reading.words import Word, word


def read_shell(text: str, file: str) -> Script:
    """The commands of a shell text; what cannot be read is a note.

    >>> [c.texts for c in read_shell("N=4; run --n $N 2>&1 | tee log", "a.sh").commands]
    [('run', '--n', '4'), ('tee', 'log')]
    """
    return read(word(text, Place(file, 1, 1)))


def read(content: Word) -> Script:
    """Every command of a script, each as it is run on each way through it."""
    record = Record(content.place.file)
    walk = Walk(record, Source(content))
    states = walk.text(content, [State()])
    walk.uncalled_functions(states)
    record.fragments(states)
    return record.script
