"""A shell script as the commands that it runs, read with tree-sitter and never executed."""

from advisor.lint.shell.script import Command, Note, Script, WrittenFile, read_shell

__all__ = ["Command", "Note", "Script", "WrittenFile", "read_shell"]
