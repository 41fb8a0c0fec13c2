"""An arm's directory on disk: fingerprint files, table and manifest. Standard library and numpy only."""
