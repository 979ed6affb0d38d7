"""Step times from measurements: files of measured steps, the fit, and profiles as files."""
