"""What the guides' settings, failures and jobs come to."""

from functools import lru_cache

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.rule import Level
from advisor.diagnose.scan import scan
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import find
from advisor.frameworks.names import Framework
from advisor.lint.target import lint_target
from advisor.request.request import Request
from advisor.search.advise import advise

BRIDGE = resolve_revision(Framework.MEGATRON_BRIDGE, "main")
CORE = resolve_revision(Framework.MEGATRON_LM, "0.16")


def lint(text: str, version: str | None = None) -> list[str]:
    """Findings of `advise lint`, as ``LEVEL-VERDICT rule``'s rule names, worst first."""
    return [finding.rule for finding in lint_target(text, version).findings]


def refused(text: str, version: str | None = None) -> list[str]:
    """Rules by which nothing trains."""
    return [f.rule for f in lint_target(text, version).findings if f.level is Level.ERROR]


def refused_by_bridge(**fields: object) -> list[str]:
    """Rules by which a model provider of Megatron Bridge with these fields is refused."""
    given = {"hidden_dropout": 0.0, "attention_dropout": 0.0, **fields}
    found = find(RawSettings(**given), BRIDGE)
    return [finding.rule for finding in found if finding.verdict.illegal]


def remarks_by_bridge(**fields: object) -> list[str]:
    """Rules that say something of accepted fields."""
    given = {"hidden_dropout": 0.0, "attention_dropout": 0.0, **fields}
    found = find(RawSettings(**given), BRIDGE)
    return [finding.rule for finding in found if not finding.verdict.illegal]


def failures(text: str) -> list[str]:
    """Known failures in a log."""
    return [finding.failure.id for finding in scan(text).findings]


@lru_cache(maxsize=32)
def advice(model: str, gpus: str, **fields: object) -> Answer:
    """The answer for the job as typed."""
    return advise(Request(model=model, gpus=gpus, **{"quick": True, **fields}))


def evaluation(found: Answer, spec: str) -> Evaluation:
    """The row of one setting."""
    return next(c.evaluation for c in found.candidates if c.evaluation.setting.spec == spec)


def layer_bytes(found: Answer, spec: str) -> int:
    """Bytes that one dense layer keeps for one microbatch on one rank."""
    (saved,) = evaluation(found, spec).detail.saved_bytes_per_layer.values()
    return saved


def saved_share(found: Answer, spec: str) -> float:
    """Share of a layer's bytes that `spec` does not keep."""
    return 1 - layer_bytes(found, spec) / layer_bytes(found, "none")
