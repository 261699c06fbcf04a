"""Extends the web server beyond Gradio's pages: checks in front of Gradio, stored results, badges, embeds, exports,
visitors' identities.
"""
