"""The data sets that the benchmarks read: where each lies in a data folder, what reads it, where it is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

_GITHUB = "https://raw.githubusercontent.com"
_RULER = "c3f5e3b4f87f97e048793bb510a3a6b19a46bf3a"
_NLTK_DATA = "550b6625bcef1f2abff2ff770a5a0d272c9c6b2a"


@dataclass(frozen=True)
class Dataset:
    """One named data set: a file, or a folder of files."""

    patterns: tuple[str, ...]  # globs below the data folder, best first
    used_by: str  # the benchmarks that read it
    bring: str  # the file that a user should put there, for messages
    url: str | None = None  # of a fixed revision; "hf:REPO@REVISION/FILE" is downloaded by huggingface_hub
    sha256: str | None = None  # of the downloaded bytes, where known
    revision: str | None = None  # of a download, for the manifest
    unpack: str | None = None  # the folder of a downloaded zip that is kept, e.g. "punkt_tab/english"

    def folder(self) -> str:
        """The sub-folder of a data folder that this data set belongs in."""
        return self.patterns[0].split("/", 1)[0]


def _json_patterns(folder: str, *stems: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{stem}{end}" for stem in stems for end in (".json", ".json.gz", ".jsonl", ".jsonl.gz"))


DATASETS: dict[str, Dataset] = {
    "essays": Dataset(
        _json_patterns("essays", "*PaulGrahamEssays*", "*"),
        "RULER niah_single_2/3, niah_multikey_1, niah_multivalue, niah_multiquery",
        'PaulGrahamEssays.json, {"text": ...}, as NVIDIA/RULER\'s download script writes it',
        f"{_GITHUB}/Rya-Sanovar/RULER/99cd4ca0dc227d0635f860e4ac6af3c2a9efb75e/scripts/data/synthetic/json/PaulGrahamEssays.json",
        "1af094ff36d47893ea3c09cc570038053b711a9ba728c9d2dca036dbb231fa41",
        "Rya-Sanovar/RULER@99cd4ca",
    ),
    "squad": Dataset(
        _json_patterns("squad", "*dev-v2.0*", "squad", "*"),
        "RULER qa_1",
        "SQuAD's dev-v2.0.json",
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
        "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
        "dev-v2.0",
    ),
    "hotpotqa": Dataset(
        _json_patterns("hotpotqa", "*dev_distractor*", "hotpotqa", "*"),
        "RULER qa_2",
        "HotpotQA's hotpot_dev_distractor_v1.json",
        "hf:namlh2004/hotpotqa@7e54db4656209750ff487f6fdf8e39a66dba136b/hotpot_dev_distractor_v1.json",
        None,
        "namlh2004/hotpotqa@7e54db4",
    ),
    "punkt": Dataset(
        ("nltk_data/tokenizers/punkt_tab/english", "punkt_tab/english"),
        "RULER's essay tasks (sentence splitting)",
        "NLTK's punkt_tab, English, as nltk_data/tokenizers/punkt_tab/english/",
        f"{_GITHUB}/nltk/nltk_data/{_NLTK_DATA}/packages/tokenizers/punkt_tab.zip",
        "e57f64187974277726a3417ca6f181ec5403676c717672eef6a748a7b20e0106",
        "nltk/nltk_data@550b662",
        "punkt_tab/english",
    ),
    "mmlu": Dataset(
        ("mmlu/data", "mmlu/*.tar.gz", "mmlu/*.tgz", "mmlu/*.tar", "mmlu"),
        "MMLU",
        "MMLU's data.tar, or its folders data/test/*_test.csv and data/dev/*_dev.csv",
        "https://people.eecs.berkeley.edu/~hendrycks/data.tar",
    ),
    "gsm8k_train": Dataset(
        _json_patterns("gsm8k", "*train*"),
        "GSM8k's worked examples",
        "GSM8k's train.jsonl",
        f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/train.jsonl",
        None,
        "openai/grade-school-math@3101c7d",
    ),
    "gsm8k_test": Dataset(
        _json_patterns("gsm8k", "test", "gsm8k*test*"),
        "GSM8k",
        "GSM8k's test.jsonl",
        f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/test.jsonl",
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        "openai/grade-school-math@3101c7d",
    ),
    "english_words": Dataset(
        (*_json_patterns("english_words", "*"), *_json_patterns("essays", "*english_words*"), "english_words.json"),
        "RULER cwe beyond 8,166 distinct words (lengths from about 190,000 tokens)",
        "NVIDIA/RULER's english_words.json (kept in Git LFS: the file itself, not its pointer)",
        f"https://media.githubusercontent.com/media/NVIDIA/RULER/{_RULER}/scripts/data/synthetic/json/english_words.json",
        None,
        "NVIDIA/RULER@c3f5e3b",
    ),
}

_SUBJECTS = """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
    college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
    econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
    high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
    high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
    high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
    human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
    medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory
    professional_accounting professional_law professional_medicine professional_psychology public_relations
    security_studies sociology us_foreign_policy virology world_religions
"""
MMLU_SUBJECTS: tuple[str, ...] = tuple(_SUBJECTS.split())
"""The 57 subjects, in alphabetical order."""
