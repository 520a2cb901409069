"""Where documents come from. A source has `documents()` and `fingerprint()`, what decides its bytes."""

from .jsonl import JsonLines
from .python_docs import PythonDocs
from .synthetic import Synthetic
from .text import TextFiles

__all__ = ["JsonLines", "PythonDocs", "Synthetic", "TextFiles"]
