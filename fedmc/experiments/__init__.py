"""Comparisons as data: a `Study` says what is run on what, `run` fills a folder with its outcomes, tables come out."""
