"""A shell script as the commands that it runs, read with tree-sitter and never executed."""

from advisor.reading.shell.script import Command, Note, Script, WrittenFile
from advisor.reading.shell.walk import read_shell

__all__ = ["Command", "Note", "Script", "WrittenFile", "read_shell"]
