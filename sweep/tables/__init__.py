"""The Parquet tables: their schemas, how they are built and read."""
