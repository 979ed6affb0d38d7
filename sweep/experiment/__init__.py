"""From a TOML file to a plan: keys, tables, what goes together, the cells."""
