"""What a federated model is measured against, on the same split: pooled, each client alone, biases only."""
