"""Any fast Hugging Face tokenizer: byte-level BPE, SentencePiece-style BPE, Unigram.

transformers reads the files once and says which tokenizer they define; its definition in the format of the
`tokenizers` library is kept with them. From then on neither transformers nor the original folder is needed.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..config import MissingExtra, SkytrainError
from ..storage import parse_json
from .byte_level import own_identity
from .chat import render_chat
from .decoding import StreamDecoder
from .definitions import METASPACE, byte_letters, is_byte_level, pieces_of
from .encoders import Encode, panics, tokenizers_engine
from .hf_encoders import hf_encoder, reference_encoder
from .hf_files import CONFIG_FILE, TEMPLATE_FILE, TokenizerFiles

GENERATION_FILE = "generation_config.json"
MODEL_FILE = "config.json"
CLASS_KEYS = ("model_type", "tokenizer_class", "transformers_version")
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # a piece of a model with byte fallback


@dataclass(frozen=True)
class TokenizerRules:
    """The rules of the tokenizer's own files for the tokens around a text."""

    begin: int  # the token that begins a document
    prefix: tuple[int, ...]  # what the post-processor puts before a text; empty where it adds nothing
    suffix: tuple[int, ...]  # what it puts after a text, unless the next document's first token is the same
    stop: tuple[int, ...]  # tokens that end a generated text
    special_tokens: dict[str, str]  # bos_token, eos_token, ...: their spelling, for chat templates


class HFTokenizer:
    """A Hugging Face tokenizer, with the ids of `AutoTokenizer`.

    The spelling of a special token in a text is encoded as ordinary text, unless `text_may_be_special`.
    """

    def __init__(
        self,
        id: str,
        files: TokenizerFiles,
        definition: dict[str, Any],
        rules: TokenizerRules,
        *,
        text_may_be_special: bool = False,
    ) -> None:
        self.id = id
        self.name = id.rpartition("-")[0]
        self.files = files
        self.definition = definition
        self.rules = rules
        self.text_may_be_special = text_may_be_special
        self.eot = rules.begin
        self.stop_ids = frozenset(rules.stop)
        self.vocab_size = files.vocab_size
        self.hash = _identity(definition, rules, text_may_be_special)

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of each text, without the tokens that rules add around it."""
        encode = self._encode_with_special if self.text_may_be_special else self._encode
        return [ids.astype(self._dtype, copy=False) for ids in encode(texts)]

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of each document after its first token, which the writer adds."""
        encoded = self.encode_batch(texts)
        before, after = (np.array(ids, self._dtype) for ids in (self.rules.prefix[1:], self.rules.suffix))
        return [np.concatenate([before, ids, after]) for ids in encoded] if len(before) or len(after) else encoded

    def encode_rendered(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of texts in which special tokens are spelled out, as a chat template renders them."""
        return [ids.astype(self._dtype, copy=False) for ids in self._encode_with_special(texts)]

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the ids that a model continues: the prompt after what the rules put before it."""
        return [*self.rules.prefix, *self._encode_one([prompt])[0].tolist()] or [self.eot]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text, special tokens spelled out."""
        with panics():
            text: str = self._engine.decode([int(id_) for id_ in ids], skip_special_tokens=False)
        return text

    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder:
        """Return a decoder of the tokens after this prompt."""
        # A decoder drops the space that begins a text only where no special token is before it.
        skip = next((i for i, id_ in enumerate(prompt) if id_ not in self._special_ids), len(prompt))
        return StreamDecoder(self.decode, prompt[skip:])

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """The number of bytes of text that each token stands for; special tokens stand for none.

        Where the tokenizer puts a space before each text, the token that begins a document takes that byte back.
        """
        lengths = _byte_lengths(self.definition, self.vocab_size)
        lengths[self.eot] = min(0, 1 - int(lengths[self._engine.encode("a", add_special_tokens=False).ids].sum()))
        return lengths

    @cached_property
    def chat_template(self) -> str | None:
        """The default chat template, in Jinja; None if the tokenizer has none."""
        if TEMPLATE_FILE in self.files.content:
            return self.files.content[TEMPLATE_FILE].decode()
        for name in (CONFIG_FILE, "chat_template.json"):
            template = self.files.parsed(name).get("chat_template")
            if isinstance(template, list):  # several templates, by name
                template = {each["name"]: each["template"] for each in template}.get("default")
            if template:
                return str(template)
        return None

    @property
    def special_tokens(self) -> dict[str, str]:
        """The spelling of bos_token, eos_token and the others that are set, for chat templates."""
        return self.rules.special_tokens

    @property
    def token_ids(self) -> dict[str, int]:
        """The ids of bos_token, eos_token and pad_token, for Hugging Face's configuration files."""
        known = {token["content"]: token["id"] for token in self.definition["added_tokens"]}
        ids = {f"{name}_id": known[token] for name, token in self.special_tokens.items() if token in known}
        bos = ids.get("bos_token_id", self.eot)
        eos = ids.get("eos_token_id", self.eot)
        return {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": ids.get("pad_token_id", eos)}

    def with_chat_template(self, template: str) -> HFTokenizer:
        """Return this tokenizer with another chat template, whose end of a turn also ends a generated text."""
        ends = [id_ for id_ in (self._end_of_turn(template),) if id_ is not None]
        rules = replace(self.rules, stop=tuple(sorted({*self.rules.stop, *ends})))
        content = {**self.files.content, TEMPLATE_FILE: template.encode()}
        files = TokenizerFiles(self.files.folder, content)
        return HFTokenizer(self.id, files, self.definition, rules, text_may_be_special=self.text_may_be_special)

    def _end_of_turn(self, template: str) -> int | None:
        """Return the special token that ends an assistant's turn, if the template has one there."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            text = render_chat(self, template, turns)
        except SkytrainError:
            return None  # it needs variables, or a system prompt
        ids = self.encode_rendered([text.rstrip()])[0]
        return int(ids[-1]) if len(ids) and int(ids[-1]) in self._special_ids else None

    def save(self, folder: str | Path) -> None:
        """Write the files as they were found; AutoTokenizer, vLLM and converters read them."""
        for name, data in self.files.content.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def to_json(self) -> bytes:
        """Return what the store keeps next to the files: the definition in effect and the rules."""
        kept = {
            "definition": self.definition,
            "rules": asdict(self.rules),
            "text_may_be_special": self.text_may_be_special,
            "vocab_size": self.vocab_size,
        }
        return json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, id: str, files: TokenizerFiles, data: bytes) -> HFTokenizer:
        kept = parse_json(data)
        rules = kept["rules"]
        for name in ("prefix", "suffix", "stop"):
            rules[name] = tuple(rules[name])
        return cls(
            id, files, kept["definition"], TokenizerRules(**rules), text_may_be_special=kept["text_may_be_special"]
        )

    @property
    def _dtype(self) -> type[np.unsignedinteger[Any]]:
        return np.uint16 if self.vocab_size <= 2**16 else np.uint32

    @cached_property
    def _engine(self) -> Any:
        return tokenizers_engine(json.dumps(self.definition, ensure_ascii=False))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(token["id"] for token in self.definition["added_tokens"] if token["special"])

    @cached_property
    def _encode_one(self) -> Encode:
        """The encoder for a few short texts: comparing engines would take longer than encoding them."""
        return reference_encoder(self.definition, text_may_be_special=self.text_may_be_special)

    @cached_property
    def _encode(self) -> Encode:
        return hf_encoder(self.definition, text_may_be_special=False)

    @cached_property
    def _encode_with_special(self) -> Encode:
        return hf_encoder(self.definition, text_may_be_special=True)


def read_hf_tokenizer(id: str, files: TokenizerFiles, *, text_may_be_special: bool) -> HFTokenizer:
    """Read a tokenizer's files with transformers, which decides what they define."""
    loaded = _load(files)
    definition = parse_json(loaded.backend_tokenizer.to_str())
    definition.update(truncation=None, padding=None)
    # A class of transformers may add special tokens that the files do not have, beyond the embedding of the model.
    size = files.vocab_size
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] < size]
    rules = _rules(loaded, files, size)
    return HFTokenizer(id, files, definition, rules, text_may_be_special=text_may_be_special)


def _load(files: TokenizerFiles) -> Any:
    """Read the files with transformers, without the model's configuration: it may be one that transformers refuses."""
    try:
        from transformers import AutoTokenizer, logging
    except ImportError:
        raise MissingExtra("transformers", "hf") from None
    folder = files.folder
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with tempfile.TemporaryDirectory(prefix="skytrain-tokenizer-") as scratch:
            _copy_files(files, Path(scratch))
            loaded = AutoTokenizer.from_pretrained(scratch, trust_remote_code=False)
    except Exception as error:  # whatever a class of transformers raises for files that it cannot read
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SkytrainError(
            f"{folder}: transformers cannot read this tokenizer: {problem}\n"
            f"  correct tokenizer_class in its {CONFIG_FILE}: PreTrainedTokenizerFast reads any tokenizer.json"
        ) from None
    finally:
        logging.set_verbosity(before)
    if not hasattr(loaded, "backend_tokenizer"):
        raise SkytrainError(
            f"{folder}: {type(loaded).__name__} is a slow tokenizer, written in Python\n"
            "  save it as a fast tokenizer (tokenizer.json) and give that folder"
        )
    return loaded


def _copy_files(files: TokenizerFiles, target: Path) -> None:
    """Copy the tokenizer's files, and what decides its class from the model's config.json."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    for name, data in files.content.items():
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_bytes(data)
    if CONFIG_FILE in files.content:  # it may name other files of this computer, which would be read in place of these
        kept = {key: value for key, value in files.parsed(CONFIG_FILE).items() if not key.endswith("_file")}
        (target / CONFIG_FILE).write_text(json.dumps(kept), encoding="utf-8")
    path = files.folder / MODEL_FILE
    described = TokenizerFiles(files.folder, {MODEL_FILE: path.read_bytes()} if path.is_file() else {}).parsed(
        MODEL_FILE
    )
    classes = {name: described[name] for name in CLASS_KEYS if name in described}
    if str(classes.get("model_type")) in CONFIG_MAPPING_NAMES:
        (target / MODEL_FILE).write_text(json.dumps(classes), encoding="utf-8")


def _rules(loaded: Any, files: TokenizerFiles, vocab_size: int) -> TokenizerRules:
    """Find which tokens belong around a text by encoding one with and without them."""
    engine = loaded.backend_tokenizer
    plain, ruled = (engine.encode("a", add_special_tokens=added).ids for added in (False, True))
    at = next(i for i in range(len(ruled) + 1) if ruled[i : i + len(plain)] == plain)
    prefix = ruled[:at]
    suffix = ruled[at + len(plain) :]
    known = [id_ for id_ in (loaded.eos_token_id, loaded.bos_token_id) if id_ is not None and id_ < vocab_size]
    candidates = [*prefix[:1], *known, *suffix[-1:]]
    if not candidates:
        raise SkytrainError(
            f"{files.folder} names no bos_token and no eos_token, so there is none to begin a document with\n"
            f"  add one of them to its {CONFIG_FILE}"
        )
    begin = candidates[0]
    if suffix and suffix[-1] == begin:
        suffix = suffix[:-1]  # the next document's first token ends this one
    stop = {begin, *known[:1], *suffix[-1:], *_generation_stops(files.folder, vocab_size)}
    special = {name: str(token) for name, token in loaded.special_tokens_map.items() if isinstance(token, str)}
    return TokenizerRules(
        begin=begin, prefix=tuple(prefix), suffix=tuple(suffix), stop=tuple(sorted(stop)), special_tokens=special
    )


def _generation_stops(folder: Path, vocab_size: int) -> list[int]:
    """Return the tokens that end a text by `generation_config.json`, such as the end of a turn."""
    path = folder / GENERATION_FILE
    files = TokenizerFiles(folder, {GENERATION_FILE: path.read_bytes()} if path.is_file() else {})
    ids = files.parsed(GENERATION_FILE).get("eos_token_id")
    return [id_ for id_ in (ids if isinstance(ids, list) else [ids]) if type(id_) is int and 0 <= id_ < vocab_size]


def _identity(definition: dict[str, Any], rules: TokenizerRules, text_may_be_special: bool) -> str:
    """Hash what decides the tokens of a document."""
    if not (text_may_be_special or rules.prefix or rules.suffix):
        own = own_identity({**definition, "post_processor": None}, rules.begin)
        if own is not None:
            return own
    parts = {name: definition.get(name) for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    decides = {
        **parts,
        "begin": rules.begin,
        "prefix": rules.prefix,
        "suffix": rules.suffix,
        "special": text_may_be_special,
    }
    return hashlib.sha256(
        json.dumps(decides, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    ).hexdigest()


def _byte_lengths(definition: dict[str, Any], vocab_size: int) -> np.ndarray:
    lengths = np.zeros(vocab_size, np.int64)
    letters = set(byte_letters().values())
    byte_level = is_byte_level(definition)
    for piece, id_ in pieces_of(definition).items():
        if byte_level and letters.issuperset(piece):
            lengths[id_] = len(piece)
        elif BYTE_PIECE.fullmatch(piece):
            lengths[id_] = 1
        else:
            lengths[id_] = len(piece.replace(METASPACE, " ").encode())
    for token in definition["added_tokens"]:
        lengths[token["id"]] = 0 if token["special"] else len(token["content"].encode())
    return lengths
