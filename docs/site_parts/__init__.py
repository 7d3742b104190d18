"""What the site needs beyond Sphinx: the navigation from docs/README.md, docstrings, the notebook."""
