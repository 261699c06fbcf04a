"""The Hugging Face Hub, read by HTTP range. Nothing else reads it."""
