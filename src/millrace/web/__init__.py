"""The web process: pages, HTTP API, live stream and metrics.

server/site.py starts this separate process. It obtains all data on jobs from the server over the
control socket. `routing.py` implements access control; the packages `routes` and `api` define the
routes in DOORS; `app.py` combines them.
"""
