"""The web server beyond the pages: the layer in front of Gradio, stored results, badges, embeds, exports, and visitors' identities."""
