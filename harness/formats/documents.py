"""run.json and the JSON of a table as pydantic models: what a reader can rely on. JSON Schema is made from them.

Keys that are added later do not break a reader, so every model allows more keys than it names. What older versions did
not write has a default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["complete", "incomplete", "running"]
Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Document(BaseModel):
    """A JSON object with at least these keys."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class PlannedCell(Document):
    """A cell of the plan: what one number of a per-task table stands for."""

    model: str
    """Label of the model."""
    context: str
    """Label of the context setting."""
    benchmark: str
    task: str
    length: Count = 0
    """Tokens of prompt and answer; 0 where the benchmark has no length."""
    planned: Count | None = None
    """Samples that the plan asks for; null where it does not say."""


class PlannedProbe(Document):
    """One probe of the plan; its numbers are in probe/probes.jsonl under the same hash."""

    model: str
    context: str
    length: Count
    """Tokens of the text, as the config names them."""
    hash: str


class PlannedRounds(Document):
    """One reported number whose samples come in rounds. Lists over tasks have the order of `tasks`."""

    models: list[str]
    """Labels: one model, or a decision's baseline and candidate."""
    context: str
    benchmark: str
    length: Count = 0
    tasks: list[str]
    weights: list[float]
    """Of every task in the number; they sum to 1."""
    population: list[Count] | None = None
    """Questions of every task that samples are drawn from without replacement; null where samples are generated."""
    at_least: Count
    most: list[Count]
    """The most samples of every task."""
    goal: Literal["precision", "decide"]
    target: float
    """Half-width of the 95% interval, or a decision's margin; points."""
    tests: Count = 1
    """Decisions that share the family-wise level."""
    samples: list[list[Count]]
    """Per round, the samples of every task."""
    widths: list[float] = []
    """Per finished round, the half-width in points."""
    ended: str | None = None
    """Why no further round follows; null while one may."""
    paces: list[int] = []
    """Of a decision whose engines take turns: how many looks each round after the first one counts as."""


class Session(Document):
    """One process that wrote the run."""

    start: str
    """UTC, ISO 8601."""
    end: str | None = None
    """Absent where the process was killed."""
    pid: int | None = None
    host: str | None = None
    engines: dict[str, list[dict[str, Any]]] | None = None
    """Model (`MODEL in DTYPE` for a benchmark's dtype) -> the engines of a cluster that answered: name, place, device,
    answers, arithmetic, and why one died."""


class RunModel(Document):
    """What a model of the run was."""

    gate: str | None = None
    """none, headwise, elementwise, or another gate in words."""
    architecture: str | None = None
    parameters: Count | None = None
    """Numbers in the checkpoint's weight files."""
    fingerprint: str | None = None
    """Hash of config.json and weights; part of every sample's hash."""
    tokenizer: str | None = None
    """sha256 of the tokenizer's files."""
    max_lengths: dict[str, Count] = {}
    """Context label -> the longest prompt plus answer, in tokens."""
    rotary: dict[str, Any] = {}
    """Context label -> `frequencies` (radians per position of every rotated pair), `factor` on cos and sin, `trained`
    (tokens)."""
    engine: dict[str, Any] = {}
    """What the engine reported: dtype that ran, device, ranks, seconds, tokens."""
    other_engines: dict[str, dict[str, Any]] = {}
    """Dtype -> the same of the engine that answered the benchmarks which ask for this dtype and not for the model's."""


class DataFile(Document):
    """One file that prompts were made from."""

    sha256: Sha256
    name: str | None = None
    file: str | None = None
    source: str | None = None
    revision: str | None = None


class Run(Document):
    """run.json: the manifest of a run directory."""

    cells: list[PlannedCell]
    """The plan, in its order."""
    gatedeval: str | None = None
    """The version that wrote the run."""
    name: str | None = None
    state: State | None = None
    start: str | None = None
    """ISO 8601."""
    end: str | None = None
    """Null while the run is written."""
    seed: int | None = None
    config: dict[str, Any] = {}
    """The resolved config: the schema's definition `Config`. Empty in a run that no config made."""
    models: dict[str, RunModel] = {}
    """Label -> facts."""
    data: dict[str, DataFile] = {}
    versions: dict[str, str] = {}
    """Package -> version."""
    hardware: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    git: str | None = None
    """Commit of gatedeval; "-dirty" where files differed from it."""
    caption: list[str] = []
    """Lines that every table of the run has beneath it."""
    options: dict[str, Any] = {}
    """Options that depart from an original benchmark's procedure."""
    cost: dict[str, Any] = {}
    """`sessions`: predicted and real seconds of each. `models`: label (`LABEL in DTYPE` for a benchmark's dtype) ->
    what its speed depends on (`key`), seconds of engine starts and of changes of the setting, and `observations`: work
    and seconds of each cell of each session."""
    budget: dict[str, Any] = {}
    """The run's `--budget`: `seconds`; `samples` per task and length of every entry (older runs: one number), and what
    each had `asked`; `half_width` of the widest reported number in points, if scores vary as much as they can."""
    comparisons: dict[str, Any] = {}
    """`baselines`: context label -> the model that the others are compared with."""
    failures: dict[str, str] = {}
    """Cell key -> the error that ended it."""
    probes: list[PlannedProbe] | None = None
    """The plan of the run's probes; absent in a run without probes."""
    rounds: list[PlannedRounds] | None = None
    """How the samples of numbers with a precision, or of a decision, were chosen; absent in a run of plain counts."""
    sessions: list[Session] = []
    imported: dict[str, Any] = {}
    """In an imported run: source, facts, and how many samples have a prompt of the run `like`."""


class TableColumn(Document):
    """One column of a table."""

    name: str
    """Key of the column in a row."""
    title: str
    group: str
    """The heading above the title; empty for none."""
    score: bool
    """Whether its fields are objects with a value, or text."""


class TableValue(Document):
    """One number of a table."""

    value: float | None
    """Null for a dash: there is no number, which is not zero."""
    interval: tuple[float, float] | None = None
    """95%, in the unit of the value."""
    interval_clustered: tuple[float, float] | None = None
    """The same with tasks (MMLU: subjects) as clusters."""
    samples: Count | None = None
    """Absent where the numbers of samples are a plain count."""
    change: float | None = None
    """Against the same model's first un-extended context."""
    marks: str = ""
    """▲ and ▼: significantly above or below the baseline; †: partial."""
    best: bool = False
    spread: float | None = None
    """Of an arm: the standard deviation between its checkpoints, in the unit of the value; null for one checkpoint."""
    checkpoints: list[float] | None = None
    """Of an arm: the number of each of its checkpoints. Absent elsewhere."""


class TableDocument(Document):
    """`gatedeval table RUN --format json`: a table and the cells behind it."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    style: str
    run: str
    columns: list[TableColumn]
    rows: list[dict[str, TableValue | str]]
    """Column name -> text, or a value."""
    cells: list[dict[str, Any]]
    """The tidy rows that the CSV has too."""
    caption: list[str]
    missing: list[str]
    """What the run lacks, in words."""
