"""What-if: replays a recorded period through the engine with other workers, limits or policies."""
