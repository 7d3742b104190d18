"""One organisation's side: its node, what the node refuses, and its durable store."""
