"""How long tests wait for what may take long on a busy machine."""

HANGS_S = 1500
"""Only what hangs takes so long: no test depends on how quick the machine is."""
