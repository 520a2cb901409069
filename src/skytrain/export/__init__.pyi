from .folder import follow_umask as follow_umask
from .hf import export_hf as export_hf
from .llmc import export_llmc as export_llmc
