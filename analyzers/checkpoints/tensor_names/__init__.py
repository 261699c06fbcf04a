"""What the name of a tensor says: its role, its layer, an adapter, the prefix of a program."""
