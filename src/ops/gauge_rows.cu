// gauge_rows
