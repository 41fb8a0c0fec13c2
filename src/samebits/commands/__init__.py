"""The verbs, by what they do; `samebits.cli` puts them together."""
