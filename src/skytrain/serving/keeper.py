"""Runs a server and ends it with its owner: `python -m skytrain.serving.keeper FD COMMAND ...`.

The owner holds the other end of the pipe FD. The kernel closes it however the owner ends, even by kill -9, and the
keeper then ends the server. vLLM starts processes, some of which outlive it when it is killed. They become children of
the keeper, which kills them last. If the keeper is killed instead, the owner kills what is left; if both are killed, a
shell that waits for that does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from ..jobs import adopt_orphans, die_with_parent, handled_signals, kill_descendants

STOP_SECONDS = 15.0  # for requests in flight, and for the server to end
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # unless it was started by nohup


def main() -> None:
    owner = int(sys.argv[1])
    command = sys.argv[2:]
    adopt_orphans()
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    stopping: list[int] = []
    for number in set(STOPPING) & set(handled_signals()):
        signal.signal(number, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the server's end wakes the loop
    server = subprocess.Popen(command, preexec_fn=die_with_parent, stdin=subprocess.DEVNULL)
    while server.poll() is None and not stopping:
        ready, _, _ = select.select([owner, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
        if owner in ready and not os.read(owner, 1):
            break
    _end(server)
    kill_descendants()
    code = server.returncode
    sys.exit(code if code is not None and 0 <= code < 256 else 1)


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is not None:
        return
    server.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if server.poll() is None:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
