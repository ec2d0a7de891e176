"""How much of what a user gives is read: beyond these a file is broken or meant to do harm."""

from typing import Final

MOST_CONFIG_BYTES: Final = 512 * 1024
"""YAML and TOML: ten times the largest configuration of any framework read here. What Python makes
of as many bytes takes two seconds and 100 MiB at worst."""
MOST_JSON_BYTES: Final = 32 * 2**20
"""A plan of ten thousand trials; a result has some 100 kB."""
MOST_JSON_VALUES: Final = 1_000_000
"""What Python makes of as many values takes a second and 200 MiB."""
MOST_TEXT_BYTES: Final = 8 * 2**20
"""Tables and scripts; the largest table of recipes has some 100 kB."""
MOST_DEPTH: Final = 100
"""Levels of lists and mappings; configurations have at most ten. Python's own stack ends at 1,000
calls, and whoever walks a document takes several of them for a level."""
MOST_EXPANDED: Final = 100_000
"""Nodes of a YAML document once every alias stands for a copy of what it names: whoever walks or
prints the document meets them all."""
MOST_DIGITS: Final = 40
"""Of an integer in a document: Hugging Face writes int(1e30), 31 digits, for "no limit"."""
LARGEST: Final = 10**18
"""Bound of integers that are computed with, and of sizes in a log: frameworks count in 64 bits, and
products of a few of them stay floats."""
MOST_COUNT_DIGITS: Final = 18
"""Of a count in a log: at most `LARGEST`."""
LARGEST_FLOAT: Final = 1e100
"""Of a measured number, a loss that diverges included: its square is still a float."""
MOST_VALUE: Final = 100_000
"""Characters of one value in a shell script, with one for each piece that it is put together of:
`X=$X$X` doubles it. The longest lists of options have some 5,000."""
MOST_COMMAND: Final = 200_000
"""Characters of all words of one command, counted the same way. As many unknown options are
compared with the known ones in two seconds."""
MOST_HELD: Final = 10_000
"""Values in one list or mapping of a Python file: `x = [x, x]` doubles them."""
MOST_STEPS: Final = 200_000
"""Of following a shell script on all its ways: a word, 100 characters of a value, 10 variables that
a command is given or two ways are compared by are one each. They take three seconds."""
