"""Folders, keys, certificates and identities of a federation."""
