"""One file per algorithm, all behind the same protocol."""
