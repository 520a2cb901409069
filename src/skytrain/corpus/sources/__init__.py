"""Document sources. A source has `documents()`, and `fingerprint()`, which identifies their content."""

from .addresses import AddressLists
from .hub import HubDataset
from .jsonl import JsonLines
from .python_docs import PythonDocs
from .synthetic import Synthetic
from .tables import CsvFiles, ParquetFiles
from .text import TextFiles
from .warc import WebArchive

__all__ = [
    "AddressLists",
    "CsvFiles",
    "HubDataset",
    "JsonLines",
    "ParquetFiles",
    "PythonDocs",
    "Synthetic",
    "TextFiles",
    "WebArchive",
]
