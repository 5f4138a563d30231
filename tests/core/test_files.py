"""Files that may come from a stranger are read as data; files of ours survive a power cut."""

import errno
import os
import stat

import pytest

from roboloop.core import files
from roboloop.core.errors import DataError, DiskError, RunExists


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def test_a_link_is_not_read(tmp_path, victim):
    (tmp_path / "status.json").symlink_to(victim)
    with pytest.raises(DataError, match=r"status\.json is a symbolic link"):
        files.read_bytes(tmp_path / "status.json")


def test_what_the_user_typed_may_be_a_link(tmp_path, victim):
    (tmp_path / "mine.yaml").symlink_to(victim)
    assert files.read_bytes(tmp_path / "mine.yaml", follow=True) == b"precious"


@pytest.mark.parametrize("what", ["fifo", "directory", "device"])
def test_only_regular_files_are_read_and_nothing_waits(tmp_path, what):
    path = tmp_path / "odd"
    {"fifo": os.mkfifo, "directory": os.mkdir, "device": lambda p: p.symlink_to("/dev/zero")}[what](path)
    with pytest.raises(DataError, match="not a regular file"):
        files.read_bytes(path, follow=True)


def test_a_huge_file_is_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "meta.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(DataError, match="more than the"):
        files.read_json(path)


def test_deep_json_is_one_line_and_brackets_in_texts_do_not_count(tmp_path):
    with pytest.raises(DataError, match="nested"):
        files.parse_json(b"[" * 60_000, "it")
    text = b'{"a": "' + b"[{" * 500 + b'\\"", "b": [[1]]}'
    assert files.parse_json(text, "it")["b"] == [[1]]


@pytest.mark.parametrize("write", [files.replace_atomic, files.replace_durable])
def test_a_temporary_name_that_links_elsewhere_is_not_written_through(tmp_path, victim, write):
    (tmp_path / ".config.yaml.tmp").symlink_to(victim)
    write(tmp_path / "config.yaml", b"new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "config.yaml").read_bytes() == b"new"
    assert stat.S_ISREG((tmp_path / "config.yaml").lstat().st_mode)


def test_a_lock_that_links_elsewhere_is_not_taken(tmp_path, victim):
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(DataError, match="symbolic link"):
        files.take_lock(tmp_path, "running in")
    assert victim.read_text() == "precious"


def test_a_held_lock_names_its_process(tmp_path):
    with files.take_lock(tmp_path, "running in"), pytest.raises(RunExists, match=str(os.getpid())):
        files.take_lock(tmp_path, "running in")


def test_staging_never_empties_the_directory_that_a_link_leads_to(tmp_path, victim):
    target = tmp_path / "theirs"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / ".out.tmp").symlink_to(target)
    with pytest.raises(DataError, match="symbolic link"), files.staged(tmp_path / "out"):
        pass
    assert (target / "kept").exists()


def test_a_replaced_file_and_its_name_are_synced_in_this_order(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.replace_durable(tmp_path / "config.yaml", b"x")
    assert synced == [str(tmp_path / ".config.yaml.tmp"), str(tmp_path)]


def test_new_directories_are_durable_up_to_the_one_that_was_there(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert set(synced) == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_cannot_write_has_its_own_exit_code(number):
    with pytest.raises(DiskError, match="while writing it") as caught, files.disk_errors("it"):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == 5
