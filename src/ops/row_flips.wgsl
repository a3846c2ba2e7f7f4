// row_flips
