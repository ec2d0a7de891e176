"""A shell script as the commands that it runs, read with tree-sitter and never executed."""

from advisor.reading.shell.reading import read_shell
from advisor.reading.shell.script import Command, Note, Script, WrittenFile

__all__ = ["Command", "Note", "Script", "WrittenFile", "read_shell"]
