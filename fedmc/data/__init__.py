"""Data: from any source to Ratings, and from Ratings to shards, one per client."""
