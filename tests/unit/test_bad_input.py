"""Inputs that would break a command, or change a prompt without a word: half characters, nulls, missing fields."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.benchmarks import lm_tasks
from harness.commands.main import cli
from harness.config import load
from harness.data.folder import DataFolder
from harness.store import Store
from harness.types import GatedevalError
from tasks.ruler.common_words import english_words
from tasks.ruler.haystack import essay_text
from tasks.ruler.qa import load_documents

HALF = "a \\ud835 42"  # as JSON writes it: half of a mathematical letter


def command(*arguments: str | Path) -> Result:
    """The command in this process, its output in UTF-8 as on a terminal: half a character cannot be written."""
    return CliRunner(charset="utf-8").invoke(cli, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two imported runs of the same questions, with half a character in responses and references; and their merger."""
    root = tmp_path_factory.mktemp("halves")
    for model, first in (("one", "no"), ("two", "it is 42")):
        lines = [
            f'{{"task": "qa_1", "outputs": ["42", "{HALF}"], "pred": "{HALF}"}}',
            f'{{"task": "qa_1", "outputs": ["42"], "pred": "{first} \\ud835"}}',
        ]
        (root / f"{model}.jsonl").write_text("\n".join(lines))
        done = command("import", root / f"{model}.jsonl", root / model, "--model", model, "--length", "4096")
        assert done.exit_code == 0, done.output
    done = command("merge", root / "one", root / "two", root / "both")
    assert done.exit_code == 0, done.output
    return root / "both", root / "one.jsonl"


@pytest.mark.parametrize(
    "arguments",
    [
        ["table", "RUN", "-f", "md"],
        ["table", "RUN", "--style", "tasks", "-f", "html"],
        ["table", "RUN", "--style", "delta", "-f", "json"],
        ["table", "RUN", "--style", "samples", "-f", "json"],
        ["table", "RUN", "--style", "samples", "-f", "csv"],
        ["table", "RUN", "--style", "lm_eval", "-f", "json", "--model", "one"],
        ["compare", "RUN"],
        ["report", "RUN", "-o", "OUT/report.html"],
        ["rebuild", "RUN"],
        ["ruler", "score", "FILE"],
    ],
    ids=lambda a: " ".join(a[:5]),
)
def test_half_a_character_in_a_response_breaks_no_command(
    halves: tuple[Path, Path], tmp_path: Path, arguments: list[str]
) -> None:
    names = {"RUN": str(halves[0]), "FILE": str(halves[1])}
    done = command(*(names.get(a, a.replace("OUT", str(tmp_path))) for a in arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    done.output.encode()
    for file in tmp_path.iterdir():
        file.read_text(encoding="utf-8")


def test_half_a_character_is_one_replacement_character_and_the_score_is_what_it_was(halves: tuple[Path, Path]) -> None:
    (cell,) = (c for c in Store.read(halves[0]).cells if c.model == "one")
    samples = list(Store.read(halves[0]).samples(cell))
    assert [s.response for s in samples] == ["a \N{REPLACEMENT CHARACTER} 42", "no \N{REPLACEMENT CHARACTER}"]
    assert [s.scores["score"] for s in samples] == [1.0, 0.0]


def test_bytes_that_are_no_text_in_a_sample_file_break_no_export(halves: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(halves[0], tmp_path / "run")
    for file in (run / "samples").glob("*.jsonl"):
        file.write_bytes(file.read_bytes().replace(b" 42", b" 42\xff"))
    assert command("table", run, "--style", "samples", "-f", "json").exit_code == 0


def test_half_a_character_in_a_config_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text('name: x\nmodels: [{label: "\\ud835", path: .}]\nbenchmarks: [{gsm8k: {}}]\n')
    with pytest.raises(GatedevalError, match=r"c\.yaml:2: '.ud835' has half a character"):
        load(tmp_path / "c.yaml")


GSM8K = '{"question": "2 + 2?", "answer": "It is 4.\\n#### 4"}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": null, "answer": "#### 4"}', r"test.jsonl, line 3: .*'question' is null"),
        ('{"question": 5, "answer": "#### 4"}', "line 3: .*'question' is 5"),
        ('{"question": " ", "answer": "#### 4"}', "line 3: .*'question' is \" \""),
        ('{"question": "q", "answer": null}', "line 3: .*'answer' is null"),
        ('{"question": "q"}', "line 3: .*has no 'answer'"),
        ('{"question": "q", "answer": "4"}', "line 3: a GSM8k answer ends in `#### NUMBER`, this one in '4'"),
        ('{"question": "\\ud835", "answer": "#### 4"}', "line 3: 'question' has half a character"),
        ('["q", "#### 4"]', "line 3: .*this is "),
    ],
)
def test_gsm8k_rows_that_are_no_texts_are_refused_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "gsm8k").mkdir()
    for split in ("train", "test"):
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text(GSM8K)
    (tmp_path / "gsm8k" / "test.jsonl").write_text(GSM8K + "\n" + line + "\n")  # an empty line counts as a line
    assert len(DataFolder(tmp_path).gsm8k_rows("train")) == 1
    with pytest.raises(GatedevalError, match=message):
        DataFolder(tmp_path).gsm8k_rows("test")


def test_mmlu_rows_without_a_question_or_a_choice_are_refused_with_their_row(tmp_path: Path) -> None:
    (tmp_path / "mmlu" / "test").mkdir(parents=True)
    (tmp_path / "mmlu" / "test" / "anatomy_test.csv").write_text("q,1,2,3,4,A\nq,1,,3,4,A\n")
    with pytest.raises(GatedevalError, match=r"anatomy_test.csv, row 2: the question or a choice is empty"):
        DataFolder(tmp_path).mmlu_rows("test", "anatomy")


def squad(**changes: Any) -> dict[str, Any]:
    """SQuAD with one paragraph; `changes` replace its fields, None takes one away."""
    qa = {"question": "Where?", "is_impossible": False, "answers": [{"text": "France"}]}
    for key, value in changes.items():
        if key in qa:
            qa[key] = value
    paragraph = {"context": changes.get("context", "In France."), "qas": changes.get("qas", [qa])}
    return {"data": [{"paragraphs": [{k: v for k, v in paragraph.items() if v is not None}]}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": None}, r"dev.json, data\[0\], paragraphs\[0\]: .*has no 'context'"),
        ({"context": 7}, r"paragraphs\[0\]: .*'context' is 7"),
        ({"qas": None}, r"paragraphs\[0\]: .*no list 'qas'"),
        ({"question": None}, r"qas\[0\]: .*'question' is null"),
        ({"answers": [{"text": ""}]}, r"answers\[0\]: .*'text' is \"\""),
        ({"answers": [{}]}, r"answers\[0\]: .*has no 'text'"),
        ({"answers": "France"}, r"qas\[0\]: .*no list 'answers'"),
    ],
)
def test_squad_that_lacks_a_part_is_refused_with_its_place(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(squad(**changes)))
    with pytest.raises(GatedevalError, match=message):
        load_documents("squad", DataFolder(None, {"squad": tmp_path / "dev.json"}))


ROW = {"question": "Where?", "answer": "France", "context": [["Rouen", ["It is in France."]]]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "question": None}, r"dev.jsonl, line 2: .*'question' is null"),
        ({**ROW, "answer": ""}, "line 2: .*'answer' is \"\""),
        ({"question": "q", "answer": "a"}, "line 2: .*no list 'context'"),
        ({**ROW, "context": {"title": ["Rouen"], "sentences": [["It."]]}}, "line 2: .*no list 'context'"),
        ({**ROW, "context": [["Rouen", [None]]]}, r"line 2, context\[0\]: .*a sentence is no text"),
        ({**ROW, "context": [["Rouen", "It is."]]}, r"line 2, context\[0\]: .*this is no \[title"),
        ({**ROW, "context": [[None, ["It is."]]]}, r"line 2, context\[0\]: .*'title' is null"),
        ({**ROW, "supporting_facts": "Rouen"}, "line 2: .*supporting_facts is no list"),
        ("Where?", "line 2: .*no list 'context'"),
    ],
)
def test_hotpotqa_that_lacks_a_part_is_refused_with_its_line(tmp_path: Path, row: Any, message: str) -> None:
    (tmp_path / "dev.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    with pytest.raises(GatedevalError, match=message):
        load_documents("hotpotqa", DataFolder(None, {"hotpotqa": tmp_path / "dev.jsonl"}))


def test_essays_and_words_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"text": null}')
    with pytest.raises(GatedevalError, match=r"x.json: .*'text' is null"):
        essay_text(file)
    file.write_text('{"0": "word", "1": null}')
    with pytest.raises(GatedevalError, match=r"x.json: .*'1' is null"):
        english_words(DataFolder(None, {"english_words": file}))


def custom_task(folder: Path, rows: list[Any], **keys: Any) -> lm_tasks.LmEvalTask:
    """A task of lm-eval over a JSON-lines file of one's own."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = f"custom_{folder.name}"
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "exact_match"}],
        **keys,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_tasks, "OUR_TASKS", folder)
        return lm_tasks.load_tasks(name, 0)[name]


CHOICES = {"output_type": "multiple_choice", "doc_to_choice": "choices", "metric_list": [{"metric": "acc"}]}


@pytest.mark.parametrize(
    ("bad", "keys"),
    [
        ({"question": None, "answer": "2"}, {}),
        ({"question": "q", "answer": None}, {}),
        ({"question": None, "answer": "2"}, {"doc_to_text": "question"}),
        ({"question": "q", "answer": None}, {"doc_to_target": "answer"}),
        ({"question": "q", "answer": 1, "choices": ["a", None]}, CHOICES),
    ],
    ids=["question", "answer", "question by name", "answer by name", "choice"],
)
def test_null_in_a_custom_lm_eval_document_is_refused_with_file_and_number(
    tmp_path: Path, bad: dict[str, Any], keys: dict[str, Any]
) -> None:
    good = {"question": "p", "answer": bad["answer"] or "1", "choices": ["a", "b"]}
    task = custom_task(tmp_path, [good, {"choices": ["a", "b"], **bad}], **keys)
    documents = list(task.documents(None))
    assert task.request(*documents[0], None)[0]
    with pytest.raises(GatedevalError, match=r"rows.jsonl\), document 1 \(counted from 0\): its prompt cannot be made"):
        task.request(*documents[1], None)


def test_first_document_that_does_not_fit_the_template_is_not_said_to_be_missing_on_the_hub(tmp_path: Path) -> None:
    rows = [{"question": None, "answer": "2"}]
    with pytest.raises(GatedevalError, match=r"first document does not fit its template .*null"):
        custom_task(tmp_path, rows)
    (tmp_path / "more").mkdir()
    with pytest.raises(GatedevalError, match=r"first document does not fit its template .*'context' is undefined"):
        custom_task(tmp_path / "more", [{"question": "q", "answer": "2"}], doc_to_text="{{question}} {{context}}")
