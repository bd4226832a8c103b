"""The HTTP API: one model shared by many clients, in OpenAI's shapes (INTERFACE.md, HTTP).

Owns what is between a socket and an engine. `service.Service` is the model and the one thread that steps its engine,
`app` the Flask application over it, `routes` its routes, a file for each group, and `listener` the sockets (waitress).
Handler threads compute nothing: they check what was asked, wait for their request's events, and write.
"""
