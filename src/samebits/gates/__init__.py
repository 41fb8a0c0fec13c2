"""The gates of a recipe: from its arms on disk to a judgement."""
