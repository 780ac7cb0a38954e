"""The names that a config may use: RULER's 13 tasks and MMLU's 57 subjects, in their benchmarks' own order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

RULER_TASKS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "vt",
    "cwe",
    "fwe",
    "qa_1",
    "qa_2",
)

MMLU_SUBJECTS = tuple(
    """abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
    econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
    high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
    high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
    high_school_physics high_school_psychology high_school_statistics high_school_us_history
    high_school_world_history human_aging human_sexuality international_law jurisprudence logical_fallacies
    machine_learning management marketing medical_genetics miscellaneous moral_disputes moral_scenarios nutrition
    philosophy prehistory professional_accounting professional_law professional_medicine professional_psychology
    public_relations security_studies sociology us_foreign_policy virology world_religions""".split()  # noqa: SIM905
)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something close is known, else an empty string."""
    known = list(known)
    folded = {k.lower().replace("-", "_").replace(" ", "_"): k for k in known}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_").replace(" ", "_"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
