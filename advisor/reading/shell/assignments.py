"""Assignments of a shell script, with `export`, `declare` and `unset`."""

from typing import TYPE_CHECKING

from advisor.reading.shell.expansion import Expander, Source, TooLongError, check_length
from advisor.reading.shell.script import Record
from advisor.reading.shell.state import UNKNOWN, State, Variable, appended, scalar
from advisor.reading.words import Piece

if TYPE_CHECKING:
    from tree_sitter import Node


class Assignments:
    """What a source sets on its way through the interpreter."""

    def __init__(self, record: Record, source: Source) -> None:
        self.record = record
        self.source = source

    def note(self, text: str, node: "Node") -> None:
        """Say what cannot be known, at a node."""
        self.record.note(text, self.source.place(node))

    def assign(self, node: "Node", state: State, *, export: bool = False) -> None:
        """`X=value`, `X+=value`, `X=(…)`; of one element of an array nothing is known after."""
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return
        name = self.source.text(name_node).partition("[")[0]
        if name_node.type == "subscript":
            state.set(name, UNKNOWN)
            return
        try:
            variable = self._value(value, state, node)
            if any(child.type == "+=" for child in node.children):
                variable = appended(state.variables.get(name), variable)
                check_length(variable)
        except TooLongError as error:
            self.note(f"{name} {error}", node)
            variable = UNKNOWN
        self.record.spend(variable.values or ())
        if value is not None:
            self.record.uses(self.source.text(value))
        state.set(name, variable, export=export or name in state.exported)
        self.record.assigned(name, variable)

    def _value(self, value: "Node | None", state: State, node: "Node") -> Variable:
        expander = Expander(self.source, state)
        if value is None:
            return scalar([Piece(text="", place=self.source.place(node))])
        if value.type == "array":
            array = Variable(values=tuple(expander.words(value.named_children)), array=True)
            check_length(array)
            return array
        return scalar(expander.scalar(value))

    def declare(self, node: "Node", state: State) -> None:
        """`export X=1`, `declare -a X=(…)`, `local X`."""
        keyword = self.source.text(node.children[0])
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, state, export=keyword == "export")
            elif child.type == "variable_name" and keyword == "export":
                state.exported.add(self.source.text(child))

    def unset(self, node: "Node", states: list[State]) -> list[State]:
        """`unset X`."""
        for state in states:
            for child in node.named_children:
                state.variables.pop(self.source.text(child), None)
                state.exported.discard(self.source.text(child))
        return states
