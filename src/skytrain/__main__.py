"""`python -m skytrain`, which is what torchrun starts: `torchrun --nproc-per-node 8 -m skytrain train parallel=fsdp`."""

from .jobs import tie_to_supervisor

tie_to_supervisor()  # before anything that takes time is imported

from .cli.main import main  # noqa: E402

main()
