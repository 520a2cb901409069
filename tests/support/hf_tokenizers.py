"""Small tokenizers of each kind, trained here and saved as the folders of real models are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|eot_id|>{% endfor %}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXT = (
    "The store holds tokens, and it's 3.14159 of them; they'll say we've 10,000.\n\n    def f(x):\n        return x\n"
    "naïve café Привет мир 你好，世界 こんにちは — the end of the text. "
) * 40
Made = tuple[Tokenizer, dict[str, Any]]


def byte_level(texts: Iterable[str], size: int) -> Made:
    """As Llama 3's: special tokens after the vocabulary, bos by a template."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    splits = [
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(special)
    _begin_with(tokenizer, special[0])
    names = {"bos_token": special[0], "eos_token": special[1], "chat_template": CHAT_TEMPLATE}
    return tokenizer, {**names, "tokenizer_class": "PreTrainedTokenizerFast"}


def sentencepiece_bpe(texts: Iterable[str], size: int) -> Made:
    """As Llama 2's: special tokens first, bytes as fallback, one space before a text."""
    tokenizer = _spaces_as_marks(texts, size, ["<unk>", "<s>", "</s>"], before_text=True)
    tokenizer.decoder = decoders.Sequence([*_fallback_decoders(), decoders.Strip(" ", 1, 0)])
    _begin_with(tokenizer, "<s>")
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "legacy": False}
    return tokenizer, {**config, "tokenizer_class": "LlamaTokenizer"}


def gemma(texts: Iterable[str], size: int) -> Made:
    """As Gemma's: no space before a text, ordinary added tokens for line breaks and tags, turns at the end."""
    tokenizer = _spaces_as_marks(texts, size, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], before_text=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("\n\n", "\n\n\n", "<table>", "</table>")])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    tokenizer.decoder = decoders.Sequence(_fallback_decoders())
    _begin_with(tokenizer, "<bos>")
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return tokenizer, {**config, "add_bos_token": True, "tokenizer_class": "GemmaTokenizer"}


def unigram(texts: Iterable[str], size: int) -> Made:
    """As T5's: a normalizer, an unknown token, eos after a text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False, n_sub_iterations=1
    )
    lines = (
        line for text in texts if len(set(text)) < size // 8 for line in text.splitlines()
    )  # it keeps every letter
    tokenizer.train_from_iterator(lines, trainer)
    after = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.post_processor = after  # type: ignore[assignment]
    config = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return tokenizer, {**config, "tokenizer_class": "PreTrainedTokenizerFast"}


KINDS: dict[str, Callable[[Iterable[str], int], Made]] = {
    "byte_level": byte_level,
    "sentencepiece_bpe": sentencepiece_bpe,
    "gemma": gemma,
    "unigram": unigram,
}


def make_tokenizer_folder(kind: str, folder: Path, texts: Iterable[str] = (TEXT,), size: int = 600) -> Path:
    """Train a tokenizer of this kind and write its folder."""
    tokenizer, config = KINDS[kind](texts, size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _spaces_as_marks(texts: Iterable[str], size: int, special: list[str], before_text: bool) -> Tokenizer:
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    learner = Tokenizer(model)
    words = (f"▁{word}" for text in texts for word in text.split(" "))
    tokens, letters = [*special, *BYTES], size // 4  # rarer letters are bytes, so that room is left for merges
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=tokens, limit_alphabet=letters, show_progress=False)
    learner.train_from_iterator(words, trainer)
    definition = json.loads(learner.to_str())
    # Bytes are ordinary pieces: a text that spells one is not that byte.
    definition["added_tokens"] = [each for each in definition["added_tokens"] if each["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if before_text else replace
    return tokenizer


def _fallback_decoders() -> list[Any]:
    return [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def _begin_with(tokenizer: Tokenizer, token: str) -> None:
    ids = [(token, tokenizer.token_to_id(token))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=ids)  # type: ignore[assignment]
