"""What tests of traces share: a function that writes a file."""

import pytest


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
