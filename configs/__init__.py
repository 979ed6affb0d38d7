"""TOML files: the catalogue of models, chips and links, and ready experiments."""
