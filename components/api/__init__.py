"""Endpoints for programs and agents, typed and validated; nothing here is a second way to compute."""
