"""The web room: pages, HTTP API, live stream, metrics.

A process of its own, started by server/site.py; everything it knows of jobs it asks the server over
the control socket. `doors.py` says who may enter where; each module of `pages` and `api` has its
own DOORS; `app.py` puts them together.
"""
