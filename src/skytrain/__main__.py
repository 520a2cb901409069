"""`python -m skytrain`, which is what torchrun starts: `torchrun --nproc-per-node 8 -m skytrain train parallel=fsdp`."""

from .cli.main import main

main()
