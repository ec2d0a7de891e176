"""Nodes of tree-sitter's grammar of bash, and how to find one's way in them."""

import re
from time import monotonic
from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError, show
from advisor.base.limits import MOST_DEPTH
from advisor.reading.shell.expansion import Source

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

TOO_DEEP: Final = f"is nested deeper than {MOST_DEPTH} levels: not read"
_MOST_SECONDS: Final = 10
_BLOCK: Final = 1 << 16
_QUOTED_COMMENT: Final = re.compile(r"`\s*#[^`\n]*`")


def parsed(text: str) -> "Tree":
    """The syntax tree of a text, with ERROR nodes of what is no shell; UserError where the parser
    needs too long, as it does for brackets, arrays and here-documents without end."""
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    # a comment between backquotes, which runs nothing, hides the end of its line from the grammar
    plain = _QUOTED_COMMENT.sub(lambda match: " " * len(match[0].encode()), text)
    written, until = plain.encode(), monotonic() + _MOST_SECONDS
    try:
        return Parser(Language(tree_sitter_bash.language())).parse(
            lambda at, _: written[at : at + _BLOCK],
            progress_callback=lambda *_: monotonic() > until,
        )
    except ValueError:
        reason = f"is not read as shell text within {_MOST_SECONDS} s"
        raise UserError("lint", show(text), reason, "close its brackets") from None


def first_error(node: "Node") -> "Node":
    """The first node that is no shell."""
    while True:
        bad = (c for c in node.children if c.type == "ERROR" or c.is_missing or c.has_error)
        child = next(bad, None)
        if child is None or child.type == "ERROR" or child.is_missing:
            return child or node
        node = child


def too_deep(node: "Node") -> bool:
    """Whether more levels lie below a node than whoever walks it may call itself."""
    cursor = node.walk()
    while cursor.depth <= MOST_DEPTH:
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return False
    return True


def arms(node: "Node") -> list[tuple[list["Node"], list["Node"]]]:
    """Conditions and body of an if, of each elif, and of the else, which has no condition."""
    conditions = [c for c in node.children_by_field_name("condition") if c.is_named]
    known = {c.id for c in conditions}
    last = conditions[-1].end_byte if conditions else node.start_byte
    body = [c for c in node.named_children if c.start_byte >= last and c.id not in known]
    arms = [(conditions, [c for c in body if c.type not in ("elif_clause", "else_clause")])]
    for clause in node.named_children:
        if clause.type in ("elif_clause", "else_clause"):
            start = clause.start_byte if clause.type == "else_clause" else clause.end_byte
            then = next((c.start_byte for c in clause.children if c.type == "then"), start)
            inside = clause.named_children
            own = [c for c in inside if c.start_byte < then]
            arms.append((own, [c for c in inside if c.start_byte > then]))
    return arms


def assigned_in(node: "Node", source: Source) -> set[str]:
    """Names of the variables that a node assigns somewhere."""
    found, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        name = node.child_by_field_name("name")
        if node.type == "variable_assignment" and name is not None:
            found.add(source.text(name))
        waiting += node.children
    return found
