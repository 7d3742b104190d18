"""FedMC-ADMM as one would write it first: sparse residuals, one pass over the ratings a step, scipy's products.

What `make bench` measures fedmc against. It follows the paper's Algorithm 1 and keeps nothing of fedmc.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse


class PlainClient:
    def __init__(self, matrix, U, V, p):
        self.matrix, self.p = matrix, p
        self.rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        self.U, self.W = U.copy(), V.copy()
        self.Y = -(self.residual().T @ self.U) / p

    def residual(self):
        scores = np.einsum("kr,kr->k", self.U[self.rows], self.W[self.matrix.indices])
        return sparse.csr_array((scores - self.matrix.data, self.matrix.indices, self.matrix.indptr), self.matrix.shape)

    def update(self, V, beta, N, weight):
        L = np.linalg.norm(self.W.T @ self.W)
        for _ in range(N):
            self.U = (self.U - self.residual() @ self.W / L) / (1 + weight / L)
        L = np.linalg.norm(self.U.T @ self.U) / self.p
        for _ in range(N):
            gradient = self.residual().T @ self.U / self.p
            self.W = (L * self.W + beta * V - gradient - self.Y) / (L + beta)
        self.Y = self.Y + beta * (self.W - V)
