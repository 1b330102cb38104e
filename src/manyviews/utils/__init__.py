"""Low-level helpers that any other package may import; they import no other package."""
