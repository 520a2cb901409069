"""Models: put the weights and the tokenizer of a repository of the Hugging Face hub into the store, once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..config import Config, MissingExtra, SkytrainError, skytrain_cache_folder, variable
from ..runs import Reporter
from ..storage import (
    DamagedRecord,
    NotFound,
    StagedFile,
    StagedModel,
    Store,
    explain_hub_error,
    hub_http_error,
    is_hub_name,
    open_store,
    read_staged,
    read_typed,
    staged_folder,
    write_staged,
)
from ..tokens import HUB_PATTERNS

INDEX = "model.safetensors.index.json"
PARTS = "model-*.safetensors"
WHOLE = "model.safetensors"
TERMS = ("LICENSE*", "NOTICE*", "USE_POLICY*", "README.md")
RECORDS = "fetched"  # a folder of records of files that have arrived, until the manifest lists them
READ_BYTES = 1 << 24


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository, with the hash that the hub has of it: sha256 of large files, git's of others."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True)
class HubModel:
    """A commit of a repository of the hub."""

    repository: str
    commit: str
    license: str | None
    files: Mapping[str, RepositoryFile]


def fetch_model(config: Config, name: str, reporter: Reporter) -> tuple[StagedModel, str]:
    """Copy `owner/name[@revision]` from the hub to the store, and return it with its URL there.

    One file at a time is on this machine's disk. What has arrived is kept: the same call resumes, also in the middle of
    a file. Every file is compared with the hub's hash. Weights are safetensors; a repository with pickles only is refused.
    """
    repository, _, revision = name.partition("@")
    if not is_hub_name(name) or Path(name).is_dir():
        raise SkytrainError(f"models fetch {name}: not a repository of the Hugging Face hub\n  give OWNER/NAME")
    store = open_store(config.store)
    found = _look_up(name, repository, revision or None)
    reporter.table(
        repository,
        [("commit", found.commit), ("license", found.license or "not stated: read the repository's page")],
    )
    known = read_staged(store, staged_folder(repository, found.commit))
    if known is not None and _is_whole(store, known):
        reporter.note("the store has this commit already")
    else:
        known = _copy(store, found, reporter)
    write_staged(store, known, revision or "main")
    return known, store.url(known.folder)


def _is_whole(store: Store, model: StagedModel) -> bool:
    sizes = {stat.key.removeprefix(f"{model.folder}/"): stat.size for stat in store.list(model.folder)}
    return all(sizes.get(name) == file.bytes for name, file in model.files.items())


def _look_up(name: str, repository: str, revision: str | None) -> HubModel:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtra("huggingface_hub", "data") from None
    try:
        info = HfApi(library_name="skytrain").model_info(
            repository, revision=revision, files_metadata=True, token=_token()
        )
    except (hub_http_error(), OSError, ValueError) as error:
        raise explain_hub_error(name, error) from None
    files = {
        each.rfilename: RepositoryFile(
            name=each.rfilename,
            size=int(each.size or 0),
            sha256=each.lfs.sha256 if each.lfs is not None else None,
            git_sha1=each.blob_id if each.lfs is None else None,
        )
        for each in info.siblings or []
    }
    card: Any = info.card_data or {}
    license_ = card.get("license_name") or card.get("license")
    terms = card.get("license_link")
    return HubModel(
        repository=repository,
        commit=str(info.sha),
        license=f"{license_} ({terms})" if license_ and terms else license_,
        files=files,
    )


def _copy(store: Store, found: HubModel, reporter: Reporter) -> StagedModel:
    folder = staged_folder(found.repository, found.commit)
    wanted = [*_described(found), *_weights(found)]
    total = sum(file.size for file in wanted)
    key = hashlib.sha256(f"{store.root} {folder}".encode()).hexdigest()[:16]
    scratch = skytrain_cache_folder() / "fetch" / key
    scratch.mkdir(parents=True, exist_ok=True)
    files: dict[str, StagedFile] = {}
    done = 0.0
    for file in wanted:
        began = done

        def advance(amount: float, began: float = began, size: int = file.size) -> None:
            nonlocal done
            done = min(began + size, done + amount)
            reporter.progress("fetch", done, total, "bytes")

        files[file.name] = _stage(store, found, file, scratch, advance)
        done = began
        advance(file.size)
    shutil.rmtree(scratch)
    return StagedModel(repository=found.repository, commit=found.commit, license=found.license, files=files)


def _described(found: HubModel) -> list[RepositoryFile]:
    """Return the small files: the description of the model, its tokenizer and its terms."""
    patterns = (*HUB_PATTERNS, *TERMS)
    chosen = [
        file
        for file in found.files.values()
        if any(file.name.count("/") == pattern.count("/") and fnmatch(file.name, pattern) for pattern in patterns)
    ]
    if "config.json" not in found.files:
        raise SkytrainError(f"{found.repository} is not a model: it has no config.json, which names the architecture")
    return chosen


def _weights(found: HubModel) -> list[RepositoryFile]:
    """Return the files of the weights: several with their index, or one."""
    if INDEX in found.files:
        return [file for name, file in found.files.items() if name == INDEX or fnmatch(name, PARTS)]
    if WHOLE in found.files:
        return [found.files[WHOLE]]
    pickles = [name for name in found.files if name.endswith((".bin", ".pt", ".pth"))]
    has = f"only pickles ({', '.join(pickles[:3])}), which can run code" if pickles else "no weights"
    raise SkytrainError(
        f"{found.repository} has {has}\n"
        "  take a repository or a revision with safetensors, or convert them once: "
        "AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)"
    )


def _stage(
    store: Store, found: HubModel, file: RepositoryFile, scratch: Path, advance: Callable[[float], None]
) -> StagedFile:
    """Copy one file to the store, unless an interrupted fetch has; its record says so."""
    folder = staged_folder(found.repository, found.commit)
    key = f"{folder}/{file.name}"
    record = f"{folder}/{RECORDS}/{file.name}.json"
    there = store.stat(key)
    if there is not None and there.size == file.size:
        try:
            return read_typed(store, record, StagedFile)
        except (NotFound, DamagedRecord):
            pass  # it arrived, or its record did not: copy it again
    path = _download(found, file, scratch, advance)
    sha256 = _verify(found, file, path)
    staged = StagedFile(path.stat().st_size, store.upload(path, key, sha256=sha256))
    store.write(record, json.dumps(asdict(staged)).encode())
    path.unlink()
    return staged


def _download(found: HubModel, file: RepositoryFile, scratch: Path, advance: Callable[[float], None]) -> Path:
    from huggingface_hub import hf_hub_download
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):
        """The download's progress, passed on: the command draws one bar for all files."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "disable": True})

        def update(self, n: float | None = 1) -> None:
            advance(n or 0)

    try:
        path = hf_hub_download(
            found.repository,
            file.name,
            revision=found.commit,
            local_dir=scratch,
            token=_token(),
            library_name="skytrain",
            tqdm_class=Bar,
        )
    except (hub_http_error(), OSError, ValueError) as error:
        raise explain_hub_error(found.repository, error) from None
    return Path(path)


def _verify(found: HubModel, file: RepositoryFile, path: Path) -> str:
    """Return the sha256 of a downloaded file. Raises, and removes it, if it is not the hub's."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    of_git = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as data:
        while block := data.read(READ_BYTES):
            digest.update(block)
            of_git.update(block)
    same = digest.hexdigest() == file.sha256 if file.sha256 is not None else of_git.hexdigest() == file.git_sha1
    if not same:
        path.unlink()
        raise SkytrainError(
            f"{found.repository}: {file.name} is not what the hub describes ({size:,} bytes, expected {file.size:,})\n"
            "  run it again: it is downloaded anew"
        )
    return digest.hexdigest()


def _token() -> str | bool:
    """Return the hub's token from the environment, and from nowhere else; False: none."""
    return variable("HF_TOKEN") or False
