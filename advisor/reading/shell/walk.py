"""Walks a shell script along all its branches: a condition that the script itself does not decide
parts the way in two, each with its own variables."""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.base.place import Place
from advisor.reading.shell.expansion import Expander, Source, TooLongError, calculate
from advisor.reading.shell.script import Record, Script
from advisor.reading.shell.simple_commands import Commands
from advisor.reading.shell.state import (
    UNKNOWN,
    State,
    Variable,
    doubted,
    fingerprint,
    joined,
    scalar,
)
from advisor.reading.shell.syntax import TOO_DEEP, arms, assigned_in
from advisor.reading.words import Piece, Word, split_words, word

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_WAYS: Final = 256
_MOST_ROUNDS: Final = 12
_DIRECTIVE: Final = re.compile(r"#\s?SBATCH\s+")


class Walk(Commands):
    """One source on its way through the interpreter."""

    def statements(self, nodes: Iterable["Node"], states: list[State]) -> list[State]:
        """Statements one after the other, each in all states that still run."""
        for node in nodes:
            running = [state for state in states if not state.ended]
            if not running:
                return states
            states = [s for s in states if s.ended] + self.statement(node, running)
        return states

    def statement(self, node: "Node", states: list[State]) -> list[State]:
        """One statement in all states; a note in its place where it is too long or too deep."""
        known = sum(len(state.variables) + len(state.assumed) for state in states)
        self.record.spend((), len(states) + known // 1000)
        if not self.record.enter():
            self.note(TOO_DEEP, node)
            return states
        try:
            return self._follow(node, states)
        except TooLongError as error:
            beginning = self.source.text(node).split("\n")[0][:40]
            self.note(f"{beginning} {error}", node)
            return states
        finally:
            self.record.leave()

    def _follow(self, node: "Node", states: list[State]) -> list[State]:
        step, effect = _STEPS.get(node.type), _EFFECTS.get(node.type)
        if step is not None:
            results = [result for state in states for result in step(self, node, state)]
            return self._bounded(results, states[0])
        if effect is not None:
            for state in states:
                effect(self, node, state)
            return states
        if node.type == "comment":
            self._directive(node)
            return states
        return self.statements(node.named_children, states)

    def _bounded(self, states: list[State], before: State) -> list[State]:
        """At most so many ways: beyond that, those that differ become one."""
        running = [state for state in states if not state.ended]
        if len(running) < 2:
            return running
        self.record.spend((), sum(len(w.variables) + len(w.assumed) for w in running) // 10)
        distinct: dict[object, State] = {}
        for state in running:
            values = tuple(sorted((n, fingerprint(v)) for n, v in state.variables.items()))
            distinct.setdefault((values, tuple(sorted(state.assumed.items()))), state)
        ways = list(distinct.values())
        return ways if len(ways) <= _MOST_WAYS else [joined(ways, before)]

    def _directive(self, node: "Node") -> None:
        text = self.source.text(node)
        if match := _DIRECTIVE.match(text):
            rest, place = text[match.end() :], self.source.place(node).after(match[0])
            piece = Piece(text=rest.partition(" #")[0], place=place, splits=True)
            self.record.script.directives.extend(split_words([piece]))

    def _if(self, node: "Node", state: State) -> list[State]:
        results: list[State] = []
        open_ways = [state]
        for conditions, body in arms(node):
            remaining: list[State] = []
            for way in open_ways:
                taken, not_taken = self._condition(conditions, way)
                results += self.statements(body, taken)
                remaining += not_taken
            open_ways = remaining
        return results + open_ways

    def _condition(self, nodes: Sequence["Node"], state: State) -> tuple[list[State], list[State]]:
        """States in which the condition holds, and those in which it does not."""
        if not nodes:
            return [state], []
        text = self.source.between(nodes[0].start_byte, nodes[-1].end_byte).rstrip("; \n")
        truth = judge(nodes[0], Expander(self.source, state)) if len(nodes) == 1 else None
        if truth is not None:
            return ([state], []) if truth else ([], [state])
        for node in nodes:
            if not is_test(node):
                self.statement(node, [state.copy()])
        yes, no = (assume(state, nodes[0], self.source, text, truth=t) for t in (True, False))
        return [yes], [no]

    def _case(self, node: "Node", state: State) -> list[State]:
        subject = node.child_by_field_name("value")
        words = Expander(self.source, state).expanded([subject]) if subject is not None else []
        known = "".join(w.text for w in words) if all(w.certain for w in words) else None
        results: list[State] = []
        matched = False
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = item.children_by_field_name("value")
            texts = [self.source.text(pattern).strip("\"'") for pattern in patterns]
            if known is not None and not any(fnmatchcase(known, text) for text in texts):
                continue
            way = state.copy()
            if subject is not None and known is None:
                self._assume_arm(way, subject, patterns[0], texts)
            body = [c for c in item.named_children if c.start_byte > patterns[-1].end_byte]
            results += self.statements(body, [way])
            matched = matched or "*" in texts or known is not None
            if known is not None:
                break
        if not matched:
            results.append(state)
        return results

    def _assume_arm(self, way: State, subject: "Node", pattern: "Node", texts: list[str]) -> None:
        way.branch = (*way.branch, f"{self.source.text(subject)} is {' or '.join(texts)}")
        name = self.source.text(subject).strip('"').removeprefix("$").strip("{}").partition(":")[0]
        if name.isidentifier() and len(texts) == 1 and not set(texts[0]) & set("*?[$"):
            way.set(name, scalar(word(texts[0], self.source.place(pattern)).pieces))

    def _for(self, node: "Node", state: State) -> list[State]:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        name = self.source.text(variable) if variable is not None else ""
        values = Expander(self.source, state).expanded(node.children_by_field_name("value"))
        known = values and not any(value.unknown or "*" in value.text for value in values)
        rounds = values[:_MOST_ROUNDS] if known else [None]
        states = [state]
        for value in rounds:
            for way in states:
                way.set(name, UNKNOWN if value is None else Variable(values=(value,)))
                way.branch = state.branch
            if body is not None:
                states = self._bounded(self.statements([body], states), state)
        return states

    def _while(self, node: "Node", state: State) -> list[State]:
        """The body is read once; what it changes is as likely as not to be changed."""
        for condition in node.children_by_field_name("condition"):
            if condition.is_named and not is_test(condition):
                self.statement(condition, [state.copy()])
        body = node.child_by_field_name("body")
        if body is None:
            return [state]
        inside = state.copy()
        for name in assigned_in(body, self.source):
            if name in inside.variables:
                inside.variables[name] = doubted(inside.variables[name])
        ways = [way for way in self.statements([body], [inside.copy()]) if not way.ended]
        return [joined([inside, *ways], state)]

    def _define(self, node: "Node", state: State) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            state.functions[self.source.text(name)] = (self.source, body)

    def _subshell(self, node: "Node", state: State) -> None:
        self.statements(node.named_children, [state.copy()])

    def _list(self, node: "Node", state: State) -> list[State]:
        """`A && B` and `A || B`."""
        left, right = node.named_children[0], node.named_children[-1]
        either = any(child.type == "||" for child in node.children)
        if is_test(left):
            yes, no = self._condition([left], state)
            runs, passes = (no, yes) if either else (yes, no)
            return self.statements([right], runs) + passes
        states = self.statement(left, [state])
        if either:
            self.statements([right], [way.copy() for way in states if not way.ended])
            return states
        return self.statements([right], states)


_STEPS: Final[dict[str, "Callable[[Walk, Node, State], list[State]]"]] = {
    "if_statement": Walk._if,
    "case_statement": Walk._case,
    "for_statement": Walk._for,
    "while_statement": Walk._while,
    "c_style_for_statement": Walk._while,
    "list": Walk._list,
    "redirected_statement": Walk.redirected,
    "command": Walk.command,
}
"""By the type of a statement, the states that it makes of one."""
_EFFECTS: Final[dict[str, "Callable[[Walk, Node, State], None]"]] = {
    "variable_assignment": Walk.assign,
    "declaration_command": Walk.declare,
    "unset_command": Walk.unset,
    "subshell": Walk._subshell,
    "function_definition": Walk._define,
}
"""Those that only change a state."""
_NUMBERS: Final = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_TESTS: Final = ("test_command", "negated_command", "binary_expression", "unary_expression")
_EQUAL: Final = re.compile(
    r"""\[+ "?\$\{?(?P<name>\w+)[^}\s]*\}?"? (?:==?|-eq) ["']?(?P<value>[\w.-]*)["']? \]+""",
    re.ASCII,
)
"""A test of one variable, `[ "$SIZE" = 8b ]`."""


def is_test(node: "Node") -> bool:
    """Whether a node only asks, and runs nothing."""
    arithmetic = node.type == "compound_statement" and node.children[0].type == "(("
    every = node.type == "list" and all(is_test(child) for child in node.named_children)
    return node.type in _TESTS or arithmetic or every


def judge(node: "Node", expander: Expander) -> bool | None:
    """Judge a test, `[ … ]`, `[[ … ]]`, `(( … ))` or a combination of them."""
    state, text, inside = expander.state, expander.source.text(node), node.named_children
    if text in state.assumed:
        return state.assumed[text]
    match node.type:
        case "compound_statement" if text.startswith("(("):
            found = calculate(text[2:-2], state)
            return bool(found[0]) if found is not None and found[1] else None
        case "test_command" | "parenthesized_expression" if len(inside) == 1:
            return judge(inside[0], expander)
        case "negated_command" | "unary_expression":
            return _unary(expander.source.text(node.children[0]), inside[-1], expander)
        case "binary_expression" | "list":
            left, right = inside[0], inside[-1]
            signs = (expander.source.text(c) for c in node.children[1:-1] if c != right)
            return _binary(left, next(signs, ""), right, expander)
        case "command" if text in ("true", "false"):
            return text == "true"
    return None


def _unary(sign: str, operand: "Node", expander: Expander) -> bool | None:
    if sign == "!":
        truth = judge(operand, expander)
        return None if truth is None else not truth
    text = _text(operand, expander) if sign in ("-z", "-n") else None
    return None if text is None else bool(text) == (sign == "-n")


def _binary(left: "Node", sign: str, right: "Node", expander: Expander) -> bool | None:
    if sign in ("&&", "||", "-a", "-o"):
        both, stops = (judge(left, expander), judge(right, expander)), sign in ("||", "-o")
        if stops in both:
            return stops
        return None if None in both else not stops
    one, other = _text(left, expander), _text(right, expander)
    if one is None or other is None:
        return None
    if sign in ("=", "==", "!="):
        return fnmatchcase(one, other) == (sign != "!=")
    found = calculate(f"{one} {_NUMBERS.get(sign, '?')} {other}", expander.state)
    return bool(found[0]) if found is not None and found[1] else None


def _text(node: "Node", expander: Expander) -> str | None:
    """What one side stands for, None where that is not certain."""
    words = expander.expanded([node])
    return "".join(w.text for w in words) if all(w.certain for w in words) else None


def assume(state: State, node: "Node", source: Source, text: str, *, truth: bool) -> State:
    """The state in which a condition is `truth`: a variable that equals a value has it; of one that
    does not equal its default nothing is known."""
    way = state.copy()
    equal = _EQUAL.fullmatch(text)
    if equal is not None:
        name, (start, stop) = equal["name"], equal.span("value")
        known = way.variables.get(name)
        if truth:
            at = node.start_byte
            way.set(name, scalar(source.pieces(at + start, at + stop)))
        elif known is not None and known.values and known.values[0].text == equal["value"]:
            way.variables[name] = UNKNOWN
    way.assumed[text] = truth
    way.branch = (*way.branch, text if truth else f"not {text}")
    return way


def read_shell(text: str | Word, file: str, folder: Path | None = None) -> Script:
    """Every command of a shell text as it is run on each way through it; what cannot be read is a
    note. folder: of the script, whose files it may source.

    >>> [c.texts for c in read_shell("N=4; run --n $N 2>&1 | tee log", "a.sh").commands]
    [('run', '--n', '4'), ('tee', 'log')]
    """
    content, record = word(text, Place(file, 1, 1)) if isinstance(text, str) else text, Record(file)
    walk = Walk(record, Source(content))
    states = walk.text(content, [State(folder=folder)])
    walk.uncalled_functions(states)
    record.fragments(states)
    return record.script
