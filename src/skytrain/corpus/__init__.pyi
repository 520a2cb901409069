from .build import write_corpus as write_corpus
from .characters import utf8_size as utf8_size
from .clean import stages_of as stages_of
from .documents import BadRecord as BadRecord, Document as Document
from .duplicates import (
    duplicate_files as duplicate_files,
    proposal_probability as proposal_probability,
    read_duplicates as read_duplicates,
)
from .export import Compression as Compression, export_documents as export_documents
from .files import InputFile as InputFile, find_files as find_files, unpacked_bytes as unpacked_bytes
from .manifest import (
    CorpusManifest as CorpusManifest,
    corpus_folder as corpus_folder,
    find_corpus as find_corpus,
    find_corpus_by_name as find_corpus_by_name,
    open_corpus as open_corpus,
    read_part as read_part,
    read_part_texts as read_part_texts,
)
from .pool import ordered_threads as ordered_threads, worker_count as worker_count
from .progress import Pace as Pace
from .sources.base import VALIDATION_FILE as VALIDATION_FILE
from .sources.hub import HubDataset as HubDataset
from .sources.synthetic import Synthetic as Synthetic
from .spark.build import write_corpus_on_spark as write_corpus_on_spark
from .spark.jobs import FinishedStages as FinishedStages, SparkJobs as SparkJobs, raised as raised
from .spark.session import open_jobs as open_jobs
from .versions import (
    choose_version as choose_version,
    corpus_version as corpus_version,
    fingerprint_of as fingerprint_of,
    recipe_hash as recipe_hash,
)
from .warnings import corpus_warnings as corpus_warnings
