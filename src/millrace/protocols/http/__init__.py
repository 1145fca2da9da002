"""Push and lease jobs over HTTP. The web process sends these requests over the admin socket."""
