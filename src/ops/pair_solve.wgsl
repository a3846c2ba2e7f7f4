// pair_solve
