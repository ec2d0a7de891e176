"""Python as the values that it assigns and passes on, by its syntax tree; nothing is executed.
Names are followed, parameters stand for their defaults, and a branch is a way of its own."""

import ast
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.limits import LARGEST, MOST_DEPTH, MOST_HELD, MOST_STEPS
from advisor.base.place import Place
from advisor.reading.words import Word

_MOST_WAYS: Final = 24


class Unknown:
    """The value of an expression that is not known; its text is kept."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"${self.text}"


def text_of(value: object) -> str:
    """A value as a text, an expression as it is written."""
    return value.text if isinstance(value, Unknown) else str(value)


class Value(Struct, frozen=True, kw_only=True):
    """What is assigned or passed, and where. passed: it is a parameter's default."""

    value: Any
    place: Place
    passed: bool = False

    @property
    def known(self) -> bool:
        """Whether all of it is a literal."""
        return not _holds_unknown(self.value)


class Call(Struct, frozen=True, kw_only=True):
    """A call by the dotted name of what is called, with its keyword arguments."""

    name: str
    keywords: dict[str, Value]
    place: Place
    positional: tuple[Value, ...] = ()


class Way(Struct, kw_only=True):
    """One way through a function or, without a name, the module. assigned: the last values of
    dotted targets, as `cfg.model.num_layers`. parameters: of the function; its caller decides."""

    name: str = ""
    place: Place
    names: dict[str, Any] = field(default_factory=dict)
    assigned: dict[str, Value] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    branch: tuple[str, ...] = ()
    ended: bool = False
    parameters: frozenset[str] = frozenset()

    def copy(self) -> "Way":
        """A way that parts from this one here."""
        return replace(
            self, names=dict(self.names), assigned=dict(self.assigned), calls=list(self.calls)
        )


class PythonSource(Struct, frozen=True, kw_only=True):
    """A module: names that it imports, and every way through it and its functions."""

    file: str
    imports: frozenset[str]
    ways: tuple[Way, ...]
    place: Place


def read_python(content: Word) -> PythonSource:
    """The ways through a module; UserError where it is no Python."""
    file = content.place.file
    try:
        module = ast.parse(content.text)
    except (SyntaxError, ValueError) as error:
        at = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError("lint", file, f"is not valid Python{at}") from None
    except (RecursionError, MemoryError):  # Python's parser calls itself
        raise UserError("lint", file, f"nests deeper than {MOST_DEPTH} levels") from None
    _check_depth(module, file)
    return PythonSource(
        file=file,
        imports=frozenset(_imports(module)),
        ways=tuple(_Reader(content).ways(module)),
        place=content.place,
    )


def _check_depth(module: ast.Module, file: str) -> None:
    """UserError where a syntax tree nests deeper than whoever walks it may call itself."""
    level: list[ast.AST] = [module]
    line = None
    for _ in range(MOST_DEPTH + 1):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        line = next((n.lineno for n in level if isinstance(n, ast.expr | ast.stmt)), line)
    if level:
        at = f" in line {line}" if line else ""
        raise UserError("lint", file, f"nests deeper than {MOST_DEPTH} levels{at}")


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_holds_unknown, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Unknown)


def _size(value: Any) -> int:
    """Values that a value holds, more than `MOST_HELD` where they nest too deep."""
    level, size = [value], 0
    for _ in range(MOST_DEPTH):
        size += len(level)
        holders = (v for v in level if isinstance(v, dict | list))
        inner = (v.values() if isinstance(v, dict) else v for v in holders)
        level = list(islice(chain.from_iterable(inner), MOST_HELD + 1))
        if not level or size > MOST_HELD:
            return size
    return MOST_HELD + 1


class _Reader:
    def __init__(self, content: Word) -> None:
        self.content = content
        self._steps = 0
        self._texts: dict[ast.AST, str] = {}
        self._lines = [0]
        for line in content.text.split("\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def _spend(self, steps: int) -> None:
        """Count the steps of following a module; UserError beyond the limit."""
        self._steps += steps
        if self._steps > MOST_STEPS:
            reason = f"has too many branches to follow (more than {MOST_STEPS:,} steps)"
            raise UserError("lint", self.content.place.file, reason, "give only the configuration")

    def _text(self, node: ast.AST) -> str:
        if node not in self._texts:
            self._texts[node] = ast.unparse(node)
            self._spend(len(self._texts[node]) // 10)
        return self._texts[node]

    def place(self, node: ast.AST) -> Place:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)  # in bytes
        start = self._lines[line - 1]
        before = self.content.text[start : start + column].encode()[:column]
        return self.content.place_at(start + len(before.decode("utf-8", "ignore")))

    def ways(self, module: ast.Module) -> Iterator[Way]:
        """Those of the module, then those of each function, which sees the module's names."""
        top = self._block(module.body, [Way(place=self.content.place)])
        yield from top
        names = top[0].names if top else {}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                way = Way(name=node.name, place=self.place(node), names=dict(names))
                self._spend(len(names) // 50)
                self._defaults(node.args, way)
                yield from self._block(node.body, [way])

    def _defaults(self, arguments: ast.arguments, way: Way) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        way.parameters = frozenset(a.arg for a in (*positional, *arguments.kwonlyargs))
        way.names |= {name: Unknown(name) for name in way.parameters}
        last = zip(reversed(positional), reversed(arguments.defaults), strict=False)
        named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for argument, default in (*last, *named):
            if default is not None:
                way.names[argument.arg] = self._value(default, way)

    def _block(self, body: Iterable[ast.stmt], ways: list[Way]) -> list[Way]:
        for node in body:
            ended = [way for way in ways if way.ended]
            after = [new for way in ways if not way.ended for new in self._statement(node, way)]
            ways = (ended + after)[:_MOST_WAYS]
        return ways

    def _statement(self, node: ast.stmt, way: Way) -> list[Way]:
        self._spend(1)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import():
                return [way]
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, body, orelse, way)
            case ast.For() | ast.While() | ast.With() | ast.Try():
                return self._block(node.body, [way])
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, way)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, way)
            case ast.Return() | ast.Raise():
                self._visit(node, way)
                way.ended = True
                return [way]
        self._visit(node, way)
        return [way]

    def _if(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], way: Way
    ) -> list[Way]:
        if self._text(test).startswith("__name__"):
            return self._block(body, [way])
        known = self._value(test, way)
        names = {inner.id for inner in ast.walk(test) if isinstance(inner, ast.Name)}
        if isinstance(known, bool) and not names & way.parameters:
            return self._block(body if known else orelse, [way])
        self._visit(test, way)
        self._spend((len(way.names) + len(way.assigned) + len(way.calls) + len(way.branch)) // 50)
        other, text = way.copy(), self._text(test)
        way.branch, other.branch = (*way.branch, text), (*other.branch, f"not {text}")
        return self._block(body, [way]) + self._block(orelse, [other])

    def _assign(self, target: ast.expr, value: ast.expr, way: Way) -> None:
        found = self._value(value, way)
        size = _size(found)
        self._spend(size // 10)
        if size > MOST_HELD:
            found = Unknown(self._text(value))
        passed = isinstance(value, ast.Name) and value.id in way.parameters
        if isinstance(target, ast.Name):
            way.names[target.id] = found
            way.parameters -= {target.id}
        name = _dotted(target)
        if name:
            way.assigned[name] = Value(value=found, place=self.place(target), passed=passed)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other, way)

    def _visit(self, node: ast.AST, way: Way) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                way.calls.append(self._call(inner, way))

    def _call(self, node: ast.Call, way: Way) -> Call:
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            found = self._value(keyword.value, way)
            place = self.place(keyword)
            if keyword.arg is not None:
                passed = isinstance(keyword.value, ast.Name) and keyword.value.id in way.parameters
                keywords[keyword.arg] = Value(value=found, place=place, passed=passed)
            elif isinstance(found, dict):  # **options
                keywords |= {str(k): Value(value=v, place=place) for k, v in found.items()}
        positional = tuple(Value(value=self._value(a, way), place=self.place(a)) for a in node.args)
        name = _dotted(node.func) or self._text(node.func)
        return Call(name=name, keywords=keywords, place=self.place(node), positional=positional)

    def _value(self, node: ast.expr, way: Way) -> Any:
        """A literal, a name that is known, or Unknown."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in way.names:
                return way.names[name]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self._value(item, way) for item in items]
            case ast.Dict(keys=keys, values=values):
                pairs = ((k, v) for k, v in zip(keys, values, strict=True) if k is not None)
                return {str(self._value(k, way)): self._value(v, way) for k, v in pairs}
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return {k.arg: self._value(k.value, way) for k in keywords if k.arg is not None}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self._value(operand, way)
                return -number if isinstance(number, int | float) else Unknown(self._text(node))
            case ast.BinOp(left=left, op=op, right=right):
                return self._calculated(node, self._value(left, way), op, self._value(right, way))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self._value(operand, way)
                return not truth if isinstance(truth, bool) else Unknown(self._text(node))
            case ast.Attribute(value=ast.Name(), attr="bfloat16" | "float16" | "float32" as attr):
                return attr
        return Unknown(self._text(node))

    def _calculated(self, node: ast.expr, left: Any, op: ast.operator, right: Any) -> Any:
        if _computable(left) and _computable(right):
            match op:
                case ast.Mult():
                    return left * right
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.FloorDiv() if right:
                    return left // right
        return Unknown(self._text(node))


def _computable(value: Any) -> bool:
    return isinstance(value, int) and abs(value) <= LARGEST


def _dotted(node: ast.expr) -> str:
    """`cfg.model.num_layers`, also of `cfg["model"]["num_layers"]`; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case (
            ast.Attribute(value=value, attr=key)
            | ast.Subscript(value=value, slice=ast.Constant(value=str(key)))
        ):
            return f"{before}.{key}" if (before := _dotted(value)) else ""
    return ""
