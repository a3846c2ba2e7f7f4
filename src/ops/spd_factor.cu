// spd_factor
