"""One file an algorithm, all behind the same protocol."""
