"""Odd files in a run directory: the page and the readers go on, in bounded time, and nothing outside is touched."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra dash is not installed")

from roboloop.cli import main
from roboloop.dash import catalog, connections, series
from roboloop.dash.server import make_app
from roboloop.launch.watch import look
from tests.dash.kit import HOST, client, make_run, run_id
from tests.own import own_s

LIMIT_S = 20.0
FILES = (
    "status.json", "config.yaml", "meta.json", "metrics.jsonl", "timing.jsonl", "eval.jsonl", "eval/a.jsonl",
    "launch/facts.json", "launch/output.log", "launch/lock", "lock", "videos/a.mp4", "dataset/schema.json",
    "dataset/index.log", "checkpoints/step-000000000100/manifest.json",
)  # fmt: skip


def within(act, limit_s=LIMIT_S):
    """Do something that may hang, and return what it returns."""
    done = []
    thread = threading.Thread(target=lambda: done.append(act()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert not thread.is_alive(), "hangs"
    assert done, "raised"
    return done[0]


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(20 << 30)


def listening(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": listening,
    "directory": Path.mkdir,
    "loop of links": lambda path: path.symlink_to(path.name),
    "huge file": sparse,
    "endless line": lambda path: path.write_bytes(b'{"step": 1, "train/return": 1, "a": "' + b"x" * (5 << 20)),
    "deep JSON": lambda path: path.write_bytes(b'{"step":' * 200_000 + b"1" + b"}" * 200_000 + b"\n"),
    "zeros": lambda path: path.write_bytes(bytes(3 << 20)),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x1b[2J" * 1000),
}


@pytest.mark.parametrize("kind", ODD)
def test_the_page_answers_everything_about_all_runs_whatever_stands_in_place_of_a_file(tmp_path, kind, capsys):
    root = tmp_path / "runs"
    good = make_run(root, "sound/reach/0")
    for number, name in enumerate(FILES):
        path = make_run(root, f"odd/reach/{number}") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        ODD[kind](path)
    page = client(root)

    def ask(path):
        return within(lambda: page.get(path))

    rows = ask("/api/runs").json()["runs"]
    assert {row["name"] for row in rows} >= {"sound/reach/0", *(f"odd/reach/{n}" for n in range(len(FILES)))}
    ids = ",".join(row["id"] for row in rows)
    every = [f"/api/keys?runs={ids}", f"/api/diff?runs={ids}"]
    every += [f"/api/curves?runs={ids}&key=train/return{more}" for more in ("", "&by=group", "&x=wall")]
    for row in rows:
        every += [f"/{what}/{row['id']}" for what in ("api/run", "api/log")]
        every += [f"/sheet/{row['id']}/dataset", f"/media/{row['id']}/videos/a.mp4"]
    for path in every:
        assert ask(path).status_code in (200, 404, 409), path
    lines = ask(f"/api/curves?runs={run_id(good)}&key=train/return").json()["lines"]
    assert lines[0]["y"] == [float(i) for i in range(20)]
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ODD)
def test_a_list_and_a_report_name_the_sound_run_beside_odd_ones(tmp_path, kind, capsys):
    root, out = tmp_path / "runs", tmp_path / "out"
    make_run(root, "sound/reach/0")
    for number, name in enumerate(FILES[:12]):
        path = make_run(root, f"odd/reach/{number}") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        ODD[kind](path)
    assert within(lambda: main(["runs", str(root)])) == 0
    assert within(lambda: main(["report", str(root), "--out", str(out / "r.html"), "--save", str(out / "r.json")])) == 0
    said = capsys.readouterr()
    assert "sound/reach/0" in said.out
    assert "Traceback" not in said.err
    saved = json.loads((out / "r.json").read_text())["runs"]
    assert "sound" in {run["experiment"] for run in saved}


@pytest.mark.parametrize("folder", ["videos", "plots", "eval", "dataset", "checkpoints", "launch"])
def test_a_folder_that_is_a_link_is_not_walked(tmp_path, folder):
    outside = tmp_path / "outside"
    for number in range(30):
        inner = outside / f"{number}" / "inner"
        inner.mkdir(parents=True)
        (inner / "secret.mp4").write_bytes(b"secret")
    run = make_run(tmp_path / "runs")
    (run / folder).symlink_to(outside if folder != "videos" else "/")
    page = client(tmp_path / "runs")
    answer = within(lambda: page.get(f"/api/run/{run_id(run)}"), 5)
    assert answer.json()["media"] == []
    assert within(lambda: page.get(f"/api/log/{run_id(run)}"), 5).json()["file"] == "metrics.jsonl"


def test_of_very_many_films_the_page_looks_at_some(tmp_path, monkeypatch):
    monkeypatch.setattr("roboloop.track.inside.names_in.__defaults__", (8, 100))
    run = make_run(tmp_path)
    (run / "videos").mkdir()
    for number in range(300):
        (run / "videos" / f"{number}.mp4").touch()
    assert 50 < len(client(tmp_path).get(f"/api/run/{run_id(run)}").json()["media"]) <= 100


def test_a_look_that_takes_long_holds_up_no_request(tmp_path, monkeypatch):
    run, slow = make_run(tmp_path), threading.Event()
    page = client(tmp_path)
    assert len(page.get("/api/runs").json()["runs"]) == 1

    def crawl(root, most):
        slow.wait(60)
        return look(root, most)

    monkeypatch.setattr(catalog, "looked_at", crawl)
    monkeypatch.setattr(catalog, "_PATIENCE_S", 0.2)
    page.app.state.page.catalog.forget()
    try:
        for path in ("/api/runs", f"/api/keys?runs={run_id(run)}", f"/api/run/{run_id(run)}"):
            answer = within(lambda path=path: page.get(path), 10)
            assert answer.status_code == 200
        assert within(lambda: page.get("/api/runs"), 10).json()["looking"]
    finally:
        slow.set()


def test_of_more_runs_than_a_page_can_show_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_MOST_RUNS", 3)
    for seed in range(5):
        make_run(tmp_path, f"sac/reach/{seed}")
    rows = client(tmp_path).get("/api/runs").json()["runs"]
    assert len(rows) == 4
    assert "only 3 of its runs" in next(row["error"] for row in rows if row["state"] == "damaged")


def test_thousands_of_folders_are_no_runs_and_take_seconds(tmp_path):
    make_run(tmp_path / "runs")
    for number in range(2_000):
        (tmp_path / "runs" / f"{number}").mkdir()
    assert len(within(lambda: look(tmp_path / "runs"), 30)) == 1


def test_a_log_that_grows_while_it_is_read_is_read_as_far_as_it_was(tmp_path, monkeypatch):
    log = tmp_path / "metrics.jsonl"
    row = b'{"step": 1, "a": 1.0}\n'
    log.write_bytes(row * 100)
    really = series._whole_lines

    def growing(file):
        with open(log, "ab") as more:
            more.write(row * 100)
        return really(file)

    monkeypatch.setattr(series, "_whole_lines", growing)
    assert len(within(lambda: series.Logs().column(log, "a"), 10).step) <= 300


def test_a_log_that_never_ends_keeps_no_other_one_waiting(tmp_path, monkeypatch):
    row = b'{"step": 1, "a": 1.0}\n'
    endless, other = tmp_path / "endless.jsonl", tmp_path / "other.jsonl"
    for log in (endless, other):
        log.write_bytes(row * 100_000)
    logs = series.Logs(sketch_bytes=1000)
    assert not logs.column(endless, "a").is_whole
    assert not logs.column(other, "a").is_whole
    for _ in range(40):
        logs.work()
        with open(endless, "ab") as more:
            more.write(row * 20_000)
    assert logs.column(other, "a").is_whole
    assert not logs.column(endless, "a").is_whole


def test_names_that_are_no_utf8_or_hold_escape_sequences_are_shown_and_printed_harmlessly(tmp_path, capsys):
    root = tmp_path / "runs"
    for name in (b"bad\xff/reach/0", b"\x1b[2Jred\n/reach/0", b"a<script>$\\frac{$/reach/0"):
        path = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
        made = make_run(tmp_path, "made/reach/0")
        path.parent.mkdir(parents=True)
        made.rename(path)
    page = client(root)
    rows = page.get("/api/runs").json()["runs"]
    assert len(rows) == 3
    for row in rows:
        assert page.get(f"/api/run/{row['id']}").status_code == 200
        assert page.get(f"/api/curves?runs={row['id']}&key=train/return&by=group").json()["lines"]
    for words in (["runs", str(root)], ["plot", str(root), "--out", str(tmp_path / "p.png")],
                  ["report", str(root), "--out", str(tmp_path / "r.html"), "--save", str(tmp_path / "r.json")],
                  *(["stop", str(path)] for path in root.glob("*/reach/0"))):  # fmt: skip
        assert main(words) in (0, 2), words
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "Traceback" not in said.err
    assert "\\xff" in said.out
    assert (tmp_path / "p.png").exists()


def test_the_end_of_a_log_without_lines_or_without_end_is_printed_in_short(tmp_path, capsys):
    run = make_run(tmp_path)
    (run / "launch").mkdir()
    sparse(run / "launch" / "output.log")
    assert within(lambda: main(["tail", str(run)])) == 0
    assert len(capsys.readouterr().out) < 100_000


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The page behind a real socket, in a thread of ours: its port, and a clock of that thread."""
    make_run(tmp_path / "runs")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = make_app([tmp_path / "runs"], "secret", port, frozenset({HOST, f"127.0.0.1:{port}"}))
    server = connections.make_server(app)
    server.capture_signals = contextlib.nullcontext
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    yield port, lambda: own_s(thread.native_id)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def get(port, path="/", limit_s=10.0):
    with socket.create_connection(("127.0.0.1", port), limit_s) as asking:
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return asking.recv(100).split(b"\r\n")[0]


def is_closed(connection):
    connection.settimeout(0.0)
    try:
        return connection.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"POST /enter HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                  b"Content-Length: 999999\r\n\r\nx"])  # fmt: skip
def test_a_connection_that_does_not_finish_its_request_is_dropped(served, monkeypatch, sent):
    monkeypatch.setattr(connections, "WAIT_S", 0.5)
    port, now_s = served
    slow = socket.create_connection(("127.0.0.1", port))
    slow.sendall(sent)
    end_s = now_s() + 8
    closed = False
    while not closed and now_s() < end_s:
        time.sleep(0.2)
        try:
            slow.send(b"1" if sent and not sent.endswith(b"x") else b"")  # a byte now and then buys no time
            closed = is_closed(slow)
        except OSError:
            closed = True
    slow.close()
    assert closed
    assert b"200" in get(port)


def test_who_stops_reading_an_answer_is_dropped(served, monkeypatch, tmp_path):
    monkeypatch.setattr(connections, "STUCK_S", 0.5)
    port, _ = served
    (tmp_path / "runs/sac/reach/0/videos").mkdir()
    with open(tmp_path / "runs/sac/reach/0/videos/a.mp4", "wb") as film:
        film.truncate(64 << 20)
    entry = connections_cookie(port)
    stuck = socket.create_connection(("127.0.0.1", port))
    path = f"/media/{run_id(tmp_path / 'runs/sac/reach/0')}/videos/a.mp4"
    stuck.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {entry}\r\n\r\n".encode())
    assert b"200 OK" in stuck.recv(15)
    time.sleep(3)
    assert b"200" in get(port)
    stuck.settimeout(5)
    got, data = 0, b"x"
    try:
        while data:
            data = stuck.recv(1 << 20)
            got += len(data)
    except ConnectionResetError:
        pass
    stuck.close()
    assert got < 64 << 20


def connections_cookie(port):
    from roboloop.dash.guard import Pass

    entry = Pass("secret", port)
    return f"{entry.cookie_name}={entry.cookie_value}"


def test_five_hundred_idle_connections_and_few_files_do_not_stop_the_page(tmp_path):
    make_run(tmp_path / "runs")
    command = f'ulimit -n 256; exec "{sys.executable}" -m roboloop.cli dash "{tmp_path / "runs"}"'
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    idle = []
    try:
        port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
        for number in range(500):
            idle.append(socket.create_connection(("127.0.0.1", port), 10))
            idle[-1].sendall([b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nA: "][number % 3])
        for _ in range(5):
            assert b"200" in get(port)
    finally:
        for each in idle:
            each.close()
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert len(said) < 1000, said[:2000]
