"""Extends the web server beyond Gradio's pages.

Adds checks in front of Gradio, stored results, badges, embeds, exports, and visitors' identities.
"""
