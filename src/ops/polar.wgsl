// polar
