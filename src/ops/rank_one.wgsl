// rank_one
