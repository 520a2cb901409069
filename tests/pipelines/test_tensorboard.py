"""`skytrain tensorboard`: event files of the store, joined and kept up to date, and TensorBoard over them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from skytrain.cli.main import main
from skytrain.config import SkytrainError, compose
from skytrain.jobs.lifeline import lives
from skytrain.pipelines.tensorboard import BoardFolder, choose_port
from skytrain.runs import EventCopies, EventFiles, events_key, new_record, save_run, sync
from skytrain.storage import Store, StoreError, open_store
from tests.runs.test_sync import record

pytestmark = pytest.mark.usefixtures("default_signals")


def test_parts_are_joined_to_files_that_only_ever_grow(s3_store: Store, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "PART_BYTES", 60)
    folder, written = tmp_path / "events", b"".join(record(bytes([n]) * 10) for n in range(12))
    folder.mkdir()
    stream = EventFiles(s3_store, folder, events_key("r"))
    copies = EventCopies(s3_store, "r", tmp_path / "copies")
    assert copies.refresh() == 0
    for name, shift in (("events.out.tfevents.1.host.7.0", 0), ("events.out.tfevents.2.host.8.0", 1)):
        copy = tmp_path / "copies" / name
        for end in range(26, len(written) + 1, 26 * (1 + shift)):
            (folder / name).write_bytes(written[:end])
            stream.flush()
            copies.refresh()
            assert copy.read_bytes() == written[:end]
    (folder / "hparams.yaml").write_text("{}")
    stream.flush()
    assert copies.refresh() == 0 and len(list((tmp_path / "copies").iterdir())) == 2


def test_only_event_files_are_shown_since_others_can_name_files_of_this_computer(tmp_path):
    store, config = open_store(str(tmp_path / "store")), compose([f"store.root='{tmp_path}/store'"]).config
    save_run(store, new_record(config, name="one", data={}, tokenizer_id="gpt2", parameters=1, hardware={}))
    store.write(f"{events_key('one')}/a/events.out.tfevents.1.host.2.0", b"events")
    for folder in ("a", "tfevents"):
        key = f"{events_key('one')}/{folder}/projector_config.pbtxt"
        store.write(key, b'embeddings { tensor_path: "/etc/passwd" }')
    BoardFolder(config, ["one"], tmp_path / "board").refresh()
    [shown] = [path for path in (tmp_path / "board").rglob("*") if path.is_file()]
    assert shown.read_bytes() == b"events" and "tfevents" in shown.name


def test_a_name_that_no_folder_takes_is_one_message(tmp_path):
    """A machine of the run decides the names: here one that is both a file's and a folder's."""
    store = open_store(str(tmp_path / "store"))
    for name in ("a.tfevents.1.00000", "a.tfevents.1/b.tfevents.2.00000"):
        store.write(f"runs/mine/tensorboard/{name}", b"x")
    with pytest.raises(StoreError, match="delete it"):
        EventCopies(store, "mine", tmp_path / "copies").refresh()


def test_the_port_is_tensorboards_own_or_a_free_one_and_a_taken_one_is_refused(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SkytrainError, match=f"--port {port}: Address already in use"):
            choose_port("127.0.0.1", port)
        monkeypatch.setattr("skytrain.pipelines.tensorboard.PORT", port)
        assert choose_port("127.0.0.1", None) not in (0, port)
    assert choose_port("127.0.0.1", None) == port


@pytest.mark.parametrize(
    ("words", "said"), [(["gone"], "no run"), (["cloud.region=us-east-2"], "give at least one run")]
)
def test_what_cannot_be_shown_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["skytrain", "tensorboard", *words, f"store.root='{tmp_path}'"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("skytrain.pipelines.tensorboard.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["skytrain", "tensorboard", "r"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code and "skytrain[train]" in capsys.readouterr().err


def scalars(port: int, run: str) -> list[list[float]]:
    address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag=train%2Floss&run={run}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            found: list[list[float]] = json.load(answer)
            return found
    except (urllib.error.URLError, OSError):
        return []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_tensorboard_shows_runs_of_the_store_while_they_grow_and_ends_with_the_command(
    kind, tmp_path, request, monkeypatch
):
    from torch.utils.tensorboard import SummaryWriter

    root = request.getfixturevalue("s3_root") if kind == "s3" else str(tmp_path / "store")
    store, config = open_store(root), compose().config
    writers = {}
    for run in ("one", "two"):
        save_run(store, new_record(config, name=run, data={}, tokenizer_id="gpt2", parameters=1, hardware={}))
        folder = store.local_path(events_key(run)) or tmp_path / run
        writers[run] = (SummaryWriter(str(folder)), EventFiles(store, folder, events_key(run)))

    def write(run: str, step: int) -> None:
        writer, stream = writers[run]
        writer.add_scalar("train/loss", 4.0 - step, step)
        writer.flush()
        if kind == "s3":
            stream.flush()

    for run in writers:
        write(run, 1)
    port = choose_port("127.0.0.1", 0)
    command = [sys.executable, "-m", "skytrain", "tensorboard", "one", "two", f"store.root='{root}'"]
    board = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: scalars(port, "one") and scalars(port, "two"), board)
        write("two", 2)
        wait_for(lambda: [point[1:] for point in scalars(port, "two")] == [[1, 3.0], [2, 2.0]], board)
        started = children(board.pid)
        assert started
        board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
        wait_for(lambda: not any(lives(pid) for pid in started))
    finally:
        board.kill()
        board.wait()


def wait_for(done, process: subprocess.Popen[str] | None = None, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert process is None or process.poll() is None, process.stderr.read() if process and process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.2)
