"""The audit: every event exists once, events are consistent, and the server agrees with them."""
