"""`advisor.advise`, `advisor.evaluate` and `advisor.json_schema`."""

from typing import Any, Unpack

from advisor.answer.advice import Advice, Candidate
from advisor.answer.difference import Difference, difference
from advisor.api.answering import answer_to, checked_price
from advisor.api.keywords import JobKeywords, RequestKeywords, at_least_one, request_of
from advisor.base.errors import UserError
from advisor.base.fields import convert, show
from advisor.base.json_schema import json_schema as schema_of
from advisor.models.presets import ModelSource
from advisor.report.plain_advice import plain_advice
from advisor.request.request import Request


def advise(
    request: Request | None = None,
    *,
    model: ModelSource = "",
    gpus: str = "",
    top: int | None = None,
    explain: int | None = None,
    verify: int | None = None,
    price_per_gpu_hour: float | None = None,
    **keywords: Unpack[RequestKeywords],
) -> Advice:
    """Rank every legal recompute setting of a job: what `advise --format json` answers.

    Args:
        request: the whole job, instead of model, gpus and keywords.
        model: preset (``llama3_70b``), path of a YAML file or of a Hugging Face config.json,
            ModelSpec, or a mapping of its fields (``base`` names a preset to start from).
        gpus: ``COUNTxTYPE``, e.g. ``32xH100``.
        top: number of candidates to return; None returns all.
        explain: rank of the candidate whose bytes and seconds are to be explained; 0 is
            `Advice.best`.
        verify: number of candidates to rehearse with Megatron Core, which must be installed.
        price_per_gpu_hour: for `Candidate.price_per_trillion_tokens`, in any currency.
        keywords: those of RequestKeywords, e.g. ``tp=4``, ``seq_length=8192``,
            ``memory_budget="60GiB"``, ``recompute=["none", "selective:mlp"]``,
            ``search="layout"``, ``overrides={"model.num_layers": 12}``, ``quick=True`` for the
            job as typed alone.

    Sizes in the answer are bytes, times seconds. Raises UserError if the request is wrong. If
    nothing fits, `Advice.fits` is False.
    """
    if request is None:
        request = request_of(model, gpus, keywords)
    elif not isinstance(request, Request):
        raise UserError("request", show(request), "must be a Request")
    elif model or gpus or keywords:
        relation = "cannot be combined with model, gpus or keywords"
        raise UserError("request", None, relation, "give one or the other")
    for name, number in (("top", top), ("explain", explain), ("verify", verify)):
        if number is not None and (name, number) != ("explain", 0):
            at_least_one(number, name)
    if price_per_gpu_hour is not None:
        price = convert(price_per_gpu_hour, float, "", "price_per_gpu_hour")
        price_per_gpu_hour = checked_price(price, "price_per_gpu_hour")
    answer = answer_to(request, explain=explain, verify=verify)
    return plain_advice(answer, top=top, explained=explain, price_per_gpu_hour=price_per_gpu_hour)


def evaluate(
    recompute: str, *, model: ModelSource, gpus: str, **keywords: Unpack[JobKeywords]
) -> Candidate:
    """Predict memory and time of one setting: ``evaluate("selective:mlp", model=…, gpus=…)``.

    model, gpus, keywords: as for `advise`. Raises UserError if the request is wrong or the
    framework refuses the setting.
    """
    request = request_of(model, gpus, {**keywords, "recompute": recompute, "quick": True})
    return plain_advice(answer_to(request)).candidates[0]


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `Advice.to_json` and `advise --format json`; the same text
    is shipped as advisor/api/advice.schema.json."""
    return schema_of(Advice, title="advise --format json, schema_version 1")


def diff(first: Advice, second: Advice) -> Difference:
    """Compare two jobs as typed and the rows that are best of them (`Advice.as_typed`), as `advise
    diff --format json` does. Differences are second minus first, in bytes and seconds."""
    return difference(first, second)


def diff_schema() -> dict[str, Any]:
    """The JSON Schema of `Difference.to_json`; the same text is shipped as
    advisor/api/difference.schema.json."""
    return schema_of(Difference, title="advise diff --format json, schema_version 1")
