"""What every analyzer shares: reports as facts, the words that are made of them, and the tables that draw them."""
