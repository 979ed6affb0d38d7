"""Files of ours: whole or not there, and no other than the one that was named."""

import os
import stat

import pyarrow as pa
import pytest
from servesweep.tables.atomic_write import own_folder, write_named, write_whole
from servesweep.tables.filenames import as_file_name
from servesweep.tables.parquet_files import UnreadableTable, read_table


def put(content):
    return lambda file: file.write(content)


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(b"mine")
    return folder


def test_a_link_is_replaced_and_what_is_behind_it_stays(tmp_path, outside):
    path = tmp_path / "cells.parquet"
    path.symlink_to(outside / "file")
    (tmp_path / f".cells.parquet.{os.getpid()}").symlink_to(outside / "file")  # where the new file will be written
    write_whole(path, put(b"new"))
    assert (path.is_symlink(), path.read_bytes(), (outside / "file").read_bytes()) == (False, b"new", b"mine")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.parquet", "outside"]


def test_a_link_that_somebody_named_is_followed_and_modes_stay(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside / "file")
    os.chmod(outside / "file", 0o600)
    write_named(tmp_path / "link", put(b"new"))
    assert ((tmp_path / "link").is_symlink(), (outside / "file").read_bytes()) == (True, b"new")
    assert stat.S_IMODE(os.stat(outside / "file").st_mode) == 0o600
    (tmp_path / "dangling").symlink_to(outside / "made")
    write_named(tmp_path / "dangling", put(b"new"))
    assert (outside / "made").read_bytes() == b"new"
    assert sorted(p.name for p in outside.iterdir()) == ["file", "made"]


def test_what_is_no_plain_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_named(tmp_path / "pipe", put(b"new"))
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    write_named("/dev/null", put(b"new"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_error_names_the_file_that_was_meant(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "nowhere" / "x", put(b""))
    assert caught.value.filename == str(tmp_path / "nowhere" / "x")


def test_names_of_any_length_and_bytes(tmp_path):
    for name in ("x" * 255, b"caf\xe9".decode("utf-8", "surrogateescape"), "s3:x", "~", "a\nb", "é" * 120):
        write_whole(tmp_path / name, put(b"new"))
        assert (tmp_path / name).read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 6


def test_nothing_is_made_behind_a_link(tmp_path, outside):
    (tmp_path / "plots").symlink_to(outside)
    with pytest.raises(OSError, match="is a link: must be a folder, or not be there"):
        own_folder(tmp_path, "plots")
    assert own_folder(tmp_path, "other").is_dir()


def test_columns_name_files_in_one_folder():
    assert as_file_name("curves-../../etc/\x1b[31m") == "curves-.._.._etc___31m"
    assert as_file_name("heatmap-block_size-policy") == "heatmap-block_size-policy"
    assert len(as_file_name("é" * 300)) == 100


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "cells.parquet")
    with pytest.raises(UnreadableTable, match="is no plain file"):
        read_table(tmp_path / "cells.parquet")
    with pytest.raises(UnreadableTable, match="cells of another run"):
        read_table(tmp_path / "cells of another run")
    write_whole(tmp_path / "x", lambda file: pa.parquet.write_table(pa.table({"a": [1]}), file))
    assert read_table(tmp_path / "x").to_pydict() == {"a": [1]}
