"""Constants of step times from benchmarks of real servers."""
