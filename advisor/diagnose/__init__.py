"""Known failures in a training log: found, explained from their numbers, with what helps.

``diagnose(Path("train.log"))`` gives the findings; report/diagnosis.py is their page.
"""

from advisor.diagnose.catalog import (
    Case,
    Catalog,
    Evidence,
    Failure,
    Reading,
    Severity,
    Symptom,
    Template,
    load_catalog,
    symptoms,
)
from advisor.diagnose.meaning import Meaning, meaning_of
from advisor.diagnose.scan import Diagnosis, Finding, diagnose, scan

__all__ = [
    "Case",
    "Catalog",
    "Diagnosis",
    "Evidence",
    "Failure",
    "Finding",
    "Meaning",
    "Reading",
    "Severity",
    "Symptom",
    "Template",
    "diagnose",
    "load_catalog",
    "meaning_of",
    "scan",
    "symptoms",
]
