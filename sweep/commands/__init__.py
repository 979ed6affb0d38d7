"""The commands of `servesweep`, one module each."""
