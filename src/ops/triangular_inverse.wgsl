// triangular_inverse
