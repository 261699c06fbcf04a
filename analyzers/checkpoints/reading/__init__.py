"""Reading weights as a stream, whole or as a sample, in bounded memory."""
