// spd_solve
