"""Conversations: rendered by a chat template, with the assistant's tokens trained and every other row accounted for."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skytrain.config import ConfigError, SkytrainError
from skytrain.tokens import ChatFiles, ChatRows
from skytrain.tokens.hf_files import find_tokenizer_files
from skytrain.tokens.hf_tokenizer import HFTokenizer, read_hf_tokenizer
from tests.support.hf_tokenizers import make_tokenizer_folder

CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|eot_id|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|eot_id|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
)
FORGETFUL = CHATML.replace("m['content']", "(m['content'] if loop.last else 'gone')")
MERGING = "{% for m in messages %}{{ m['content'] + 'The stor' if m['role'] == 'user' else 'e holds' }}{% endfor %}"
ASKED = [{"role": "user", "content": "What is two and two?"}, {"role": "assistant", "content": "It is four."}]
LONGER = [{"role": "system", "content": "Be brief."}, *ASKED, {"role": "user", "content": "Sure?"}, ASKED[1]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    folder = make_tokenizer_folder("byte_level", tmp_path_factory.mktemp("tokenizer") / "chat")
    return read_hf_tokenizer("chat-1", find_tokenizer_files(str(folder)), text_may_be_special=False)


def rows_of(
    tmp_path: Path, tokenizer: HFTokenizer, rows: list[Any], template: str = CHATML, **settings: Any
) -> ChatRows:
    path, chosen = tmp_path / "rows.jsonl", tmp_path / "template.jinja"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    chosen.write_text(template)
    settings = {"max_tokens": 512, "template": str(chosen), **settings}
    return ChatRows.of(ChatFiles(paths=str(path), **settings), tokenizer)


def parts(rows: ChatRows, tokenizer: HFTokenizer) -> list[list[tuple[bool, str]]]:
    """By row, the text in runs of trained and other tokens."""
    found = []
    for slice_ in rows.slices():
        for document in slice_.documents():
            assert document.trained is not None
            edges = [0, *(np.flatnonzero(np.diff(document.trained)) + 1).tolist(), len(document.tokens)]
            runs = [(bool(document.trained[a]), tokenizer.decode(document.tokens[a:b])) for a, b in pairwise(edges)]
            found.append(runs)
    return found


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by prefixes", "by its generation blocks"])
def test_the_assistants_tokens_and_the_end_of_its_turn_are_trained(
    tmp_path: Path, tokenizer: HFTokenizer, template: str
) -> None:
    (found,) = parts(rows_of(tmp_path, tokenizer, [{"messages": LONGER}], template), tokenizer)
    assert [text for trained, text in found if trained] == ["It is four.<|eot_id|>"] * 2
    whole = "".join(text for _, text in found)
    assert whole.endswith("<|eot_id|>\n") and "<|im_start|>user\nSure?<|eot_id|>" in whole


def test_the_tokens_are_those_of_transformers(tmp_path: Path, tokenizer: HFTokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(tokenizer.files.folder))
    (slice_,) = rows_of(tmp_path, tokenizer, [{"messages": LONGER}], MARKED).slices()
    expected = theirs.apply_chat_template(
        LONGER, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    assert slice_.tokens.tolist() == expected["input_ids"]
    assert slice_.trained is not None and slice_.trained.astype(int).tolist() == expected["assistant_masks"]


def test_the_loss_may_be_on_everything(tmp_path: Path, tokenizer: HFTokenizer) -> None:
    (found,) = parts(rows_of(tmp_path, tokenizer, [{"messages": ASKED}], loss_on="all"), tokenizer)
    assert [trained for trained, _ in found] == [True]


def test_columns_of_questions_and_answers_are_conversations(tmp_path: Path, tokenizer: HFTokenizer) -> None:
    table = {"q": ["What is two and two?"], "a": ["It is four."], "s": ["Be brief."]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    (tmp_path / "template.jinja").write_text(CHATML)
    source = ChatFiles(
        paths=str(tmp_path / "rows.parquet"), max_tokens=512, prompt_key="q", response_key="a", system_key="s",
        template=str(tmp_path / "template.jinja"),
    )  # fmt: skip
    (found,) = parts(ChatRows.of(source, tokenizer), tokenizer)
    assert found[0][1].count("<|im_start|>") == 3 and found[1] == (True, "It is four.<|eot_id|>")


def test_a_key_that_only_other_messages_have_is_not_in_a_message_of_parquet(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    table = pa.Table.from_pylist([{"messages": ASKED}, {"messages": [ASKED[0], call, *LONGER]}])
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m['tool_calls'][0]['name'] if 'tool_calls' in m else m['content'] }}<|eot_id|>{% endfor %}"
    )
    files = ChatFiles(paths=str(tmp_path / "rows.parquet"), max_tokens=512, template=str(tmp_path / "t.jinja"))
    found = parts(ChatRows.of(files, tokenizer), tokenizer)
    assert found[0] == [(False, "What is two and two?<|eot_id|>"), (True, "It is four.<|eot_id|>")]
    assert found[1][1] == (True, "add<|eot_id|>")


def test_every_row_that_is_dropped_or_truncated_is_counted_with_its_reason(
    tmp_path: Path, tokenizer: HFTokenizer
) -> None:
    long = [ASKED[0], {"role": "assistant", "content": "word " * 400}]
    late = [{"role": "user", "content": "word " * 400}, ASKED[1]]
    bad = {
        "no assistant turn": {"messages": ASKED[:1]},
        "empty content": {"messages": [ASKED[0], {"role": "assistant", "content": " "}]},
        "messages": {"messages": "hello"},
        "missing column": {"message": ASKED},
        "not JSON": '{"messages": [], "number": ' + "1" * 5000 + "}",  # longer than Python reads
        "not Unicode": {"messages": [{"role": "user", "content": "half \ud83d"}, ASKED[1]]},
        "content is not text": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, ASKED[1]]},
        "special token in a message": {"messages": [{"role": "user", "content": "<|eot_id|>"}, ASKED[1]]},
        "too long": {"messages": late},
    }
    rows = rows_of(tmp_path, tokenizer, [{"messages": ASKED}, *bad.values(), {"messages": long}], max_tokens=128)
    kept = parts(rows, tokenizer)
    report = rows.report
    assert (report.rows, report.kept, report.truncated) == (len(bad) + 2, 2, 1) and len(kept) == 2
    assert report.dropped == dict.fromkeys(bad, 1)
    for line, reason in enumerate(bad, start=2):
        assert f"rows.jsonl:{line}: " in report.examples[reason]
    assert "did you mean data.source.messages_key=message?" in report.examples["missing column"]
    shown = dict(report.table())
    assert shown["truncated"] == "1 row, to 128 tokens" and shown["dropped: empty content"].startswith("1 row, first ")
    dropping = rows_of(tmp_path, tokenizer, [{"messages": ASKED}, {"messages": long}], max_tokens=128, too_long="drop")
    assert len(parts(dropping, tokenizer)) == 1 and dropping.report.dropped == {"too long": 1}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (FORGETFUL, r"not a prefix.*\n.*message 2.*\n.*\{% generation %\}"),
        (MERGING, r"not a token boundary.*\n.*edge of the turn.*\n.*loss_on=all"),
        (
            "{{ raise_exception('no such role') }}",
            r"template.*\n.*rows\.jsonl:1: no such role\n.*data\.source\.template",
        ),
        ("{% for m in", r"template.*\n"),
        ("{{ 1 // 0 }}", r"template.*\n.*rows\.jsonl:1: .*zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", r"template.*\n.*rows\.jsonl:1: .*recursion"),
        ("nothing", r"not a prefix|no assistant turn"),
    ],
)
def test_a_template_that_fails_on_every_row_is_one_message(
    tmp_path: Path, tokenizer: HFTokenizer, template: str, reason: str
) -> None:
    rows = [{"messages": LONGER}, {"messages": LONGER}]
    with pytest.raises(SkytrainError, match=r"none of 2 rows can be used: 2 for .*" + reason):
        list(rows_of(tmp_path, tokenizer, rows, template).slices())


def test_a_tokenizer_without_a_template_and_wrong_settings_are_refused(tmp_path: Path, tokenizer: HFTokenizer) -> None:
    folder = make_tokenizer_folder("gemma", tmp_path / "base")  # of a base model: without a template
    base = read_hf_tokenizer("base-1", find_tokenizer_files(str(folder)), text_may_be_special=False)
    with pytest.raises(ConfigError, match=r"data\.source\.template: the tokenizer has no chat template"):
        ChatRows.of(ChatFiles(paths="x", max_tokens=8), base)
    with pytest.raises(ConfigError, match=r"loss_on: 'user' is not a choice\n  one of assistant, all"):
        ChatFiles(paths="x", max_tokens=8, loss_on="user")
    with pytest.raises(ConfigError, match=r"prompt_key: needs data\.source\.response_key"):
        ChatFiles(paths="x", max_tokens=8, prompt_key="q")
    with pytest.raises(ConfigError, match="choose tokenizer=hf"):
        ChatFiles(paths="x", max_tokens=8).template_for(object())  # type: ignore[arg-type]
