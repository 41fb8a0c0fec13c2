"""The folder that stands first on PYTHONPATH: nothing but a `sitecustomize`, so that no other name is shadowed."""
