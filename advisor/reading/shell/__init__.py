"""A shell script as the commands that it runs, read with tree-sitter and never executed."""

from advisor.reading.shell.script import Note, Script, ShellCommand, WrittenFile
from advisor.reading.shell.walk import read_shell

__all__ = ["Note", "Script", "ShellCommand", "WrittenFile", "read_shell"]
