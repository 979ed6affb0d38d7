"""The most memory that a process had for a while."""

from pathlib import Path


def peak_bytes():
    """The most memory since the last call, in Linux; 0 elsewhere."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
