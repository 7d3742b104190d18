"""A trained model behind HTTP: recommend, predict, fold in visitors, find items; a new model replaces the old one.

`api.make` is the ASGI application, `server.run` serves it.
"""
