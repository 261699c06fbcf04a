"""Endpoints for programs and agents, typed and validated; they run the same analyses as the pages."""
