"""Versions of prepared data: a hash of everything that determines the bytes, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from ..config import BEFORE, DATA, DataConfig, NearDedupConfig, SkytrainError, make, plural, select
from .files import InputFile, find_files

VERSION_DIGITS = 12
FORMER_MIN_SIMILARITY = 0.76


def canonical_json(value: Any) -> bytes:
    """Serialize a value canonically, so that its hash can be compared between machines."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def corpus_version(data: DataConfig, fingerprint: dict[str, Any]) -> str:
    """Return the version: a hash of the settings and of the source's fingerprint."""
    return _digest({"recipe": _recipe(data), "fingerprint": fingerprint})


def fingerprint_of(data: DataConfig, source: Any) -> dict[str, Any]:
    """Return what determines the bytes besides the settings: the source, evaluation sets to exclude, and the code.

    It is part of the version but not of the recipe, so that data prepared by another revision is still found.
    """
    fingerprint: dict[str, Any] = source.fingerprint()
    if code := _code_revisions(data):
        fingerprint = {**fingerprint, "code": code}
    if data.cleaning.decontaminate.enabled:
        fingerprint = {**fingerprint, "decontaminate": [file.fingerprint() for file in _evaluation_files(data)]}
    return fingerprint


def _code_revisions(data: DataConfig) -> dict[str, Any]:
    """Return the revisions of all enabled rules, and of the libraries and character tables that they use."""
    from .clean import stages_of
    from .rules.registry import find_rule

    revisions: dict[str, Any] = {}
    for name in stages_of(data):
        if name in vars(data.cleaning):
            rule = find_rule(name)
            revisions[name] = (
                f"{rule.revision} {rule.library} {version(rule.library)}" if rule.library else rule.revision
            )
    if data.near_dedup.enabled:
        from .near import REVISION

        revisions["near_dedup"] = REVISION
    return {**revisions, "unicode": unicodedata.unidata_version} if revisions else {}


def evaluation_examples(data: DataConfig) -> list[str]:
    """Return the evaluation examples with which no document may share a word n-gram."""
    if not data.cleaning.decontaminate.enabled:
        return []
    from .decontaminate import examples_in

    examples: list[str] = []
    for file in _evaluation_files(data):
        with file.open() as stream:
            try:
                examples += examples_in(line.decode() for line in stream)
            except ValueError as error:  # not UTF-8, or not JSON
                raise SkytrainError(
                    f"{file.url}: {error}\n  data.cleaning.decontaminate.paths takes text or JSON lines"
                ) from None
    return examples


def _evaluation_files(data: DataConfig) -> list[InputFile]:
    return find_files(data.cleaning.decontaminate.paths, "data.cleaning.decontaminate.paths")


def version_at_hand(data: DataConfig) -> str:
    """Return the version that preparing now would give; raises if the sources are unavailable."""
    source = make(data.source.target, data.source.args, key="data.source")
    return corpus_version(data, fingerprint_of(data, source))


def choose_version(data: DataConfig, versions: Sequence[str], where: str) -> str:
    """Choose among several versions for the same settings: the one that matches the current sources.

    `where` names the location in error messages.
    """
    if len(versions) == 1:
        return versions[0]
    try:
        wanted = version_at_hand(data)
        if wanted in versions:
            return wanted
        problem = f"the current sources match none of them: they would give version {wanted}"
    except (SkytrainError, OSError) as error:
        problem = f"the sources could not be compared with them: {str(error).partition(chr(10))[0]}"
    raise SkytrainError(
        f"{where} holds {plural(len(versions), 'preparation')} of these settings: {', '.join(versions)}\n  {problem}\n"
        "  choose one with data.version=VERSION, or run `skytrain prepare` with the same KEY=VALUEs"
    )


def recipe_hash(data: DataConfig) -> str:
    """Return a hash of only the settings, so that a machine without the sources can find data prepared from them."""
    return _digest({"recipe": _recipe(data)})


def _recipe(data: DataConfig) -> dict[str, Any]:
    recipe = select(DataConfig, dataclasses.asdict(data), {DATA})
    near = recipe["near_dedup"]
    if not data.near_dedup.enabled:
        # Unused, so it is hashed with its former default: data prepared before the default changed is still found.
        near = {"enabled": False, "min_similarity": FORMER_MIN_SIMILARITY}
    elif near["permutations"] == near["bands"] * near["rows"]:
        near["permutations"] = None  # the same signatures
    # Settings that had no name once are hashed only where they differ from what was done then.
    before = BEFORE[NearDedupConfig]
    recipe["near_dedup"] = {key: near[key] for key in near if key not in before or near[key] != before[key]}
    args = recipe["source"].get("args", {})
    # A data set of the hub is hashed as before it could be read from files, or be split by its own.
    unset = [key for key in ("paths", "validation_files") if args.get(key, "") is None]
    if unset:
        recipe["source"] = {**recipe["source"], "args": {key: args[key] for key in args if key not in unset}}
    return recipe


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:VERSION_DIGITS]
